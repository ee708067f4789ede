"""Paths of the Open Inference Protocol v2, and what each answers."""

import importlib.metadata
import ipaddress
import logging
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from edgepack.agent.inference_protocol.messages import (
    EXTENSIONS,
    PLATFORM,
    SERVER_NAME,
    ModelFacts,
    ModelMetadata,
    SequenceAnswer,
    SequenceRequest,
    TensorMetadata,
)
from edgepack.agent.inference_protocol.tensors import datatype_of, describe_shape
from edgepack.agent.runtime.sessions import SessionTensor
from edgepack.agent.server.connection import Exchange, Request, error_response
from edgepack.agent.server.hosted_model import HostedModel, Inference
from edgepack.agent.server.hosting import Hosting
from edgepack.agent.server.http_messages import HttpError, Response
from edgepack.agent.server.inferring import (
    Decoded,
    check_outputs,
    decode_request,
    encode_response,
)
from edgepack.agent.server.regions import Regions, RegisterRequest
from edgepack.agent.server.statistics import Stopwatch
from edgepack.decoding import decode_json
from edgepack.errors import EdgepackError

log = logging.getLogger(__name__)

_EMPTY, _FAULT = b"{}", "fault in edgepack: see the server's log"
_METHODS = "GET, HEAD, POST, OPTIONS"


class Call(NamedTuple):
    """Request with the open parts of its path.

    Attributes:
        request: The request.
        exchange: Takes the response.
        names: Open parts of the path, in order.
    """

    request: Request
    exchange: Exchange
    names: tuple[str, ...]


Act = Callable[[Call], Response | None]
"""Answers a request at once, or takes care of the response and returns None."""


class Routes:
    """Answers requests; used by the event loop's thread alone.

    Args:
        hosting: The models.
        render_metrics: Returns the response for `/metrics`.
        origins: Origins of web pages that may use the server.
    """

    def __init__(
        self,
        hosting: Hosting,
        render_metrics: Callable[[Request], Response],
        origins: tuple[str, ...],
    ) -> None:
        self._hosting, self._origins = hosting, frozenset(origins)
        self._regions = Regions()
        self._version = importlib.metadata.version("edgepack")
        read: dict[str, Act] = {
            "v2": self._describe_server,
            "v2/health/live": self._answer_live,
            "v2/health/ready": self._answer_ready,
            "v2/models": lambda call: _json({"models": sorted(self._hosting.models)}),
            "v2/models/stats": self._answer_statistics,
            "v2/models/{}": self._describe_model,
            "v2/models/{}/ready": self._answer_model_ready,
            "v2/models/{}/stats": self._answer_statistics,
            "v2/models/{}/versions/{}": self._describe_model,
            "v2/models/{}/versions/{}/ready": self._answer_model_ready,
            "v2/models/{}/versions/{}/stats": self._answer_statistics,
            "v2/systemsharedmemory/status": self._list_regions,
            "v2/systemsharedmemory/region/{}/status": self._list_regions,
            "metrics": lambda call: render_metrics(call.request),
        }
        write: dict[str, Act] = {
            "v2/models/{}/infer": self._infer,
            "v2/models/{}/versions/{}/infer": self._infer,
            "v2/models/{}/sequences": self._begin_sequence,
            "v2/models/{}/sequences/{}/end": self._end_sequence,
            "v2/repository/index": self._list_repository,
            "v2/systemsharedmemory/unregister": self._unregister,
            "v2/systemsharedmemory/region/{}/register": self._register,
            "v2/systemsharedmemory/region/{}/unregister": self._unregister,
        }
        self._fixed: dict[str, tuple[str, Act, tuple[str, ...]]] = {}
        self._tree: dict[str, Any] = {}
        for method, table in (("GET", read), ("POST", write)):
            for path, act in table.items():
                if "{}" not in path:
                    self._fixed[path] = (method, act, ())
                    continue
                node = self._tree
                for part in path.split("/"):
                    node = node.setdefault(part, {})
                node[""] = (method, act)

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer a request, now or later.

        Raises:
            HttpError: The request is wrong, or cannot be carried out now.
        """
        head = request.head
        cors = self._check_origin(request) if request.is_web else ""
        if cors:
            exchange = _WithFields(exchange, cors)
        if head.method == "OPTIONS":
            exchange.respond(Response(204, fields=f"Allow: {_METHODS}\r\n"))
            return
        method, act, names = self._find(head.target)
        if head.method != method and (head.method, method) != ("HEAD", "GET"):
            raise HttpError(405, f"{head.target[:200]} takes {method}")
        try:
            response = act(Call(request, exchange, names))
        except HttpError as error:
            response = error_response(error)
        if response is not None:
            exchange.respond(response)

    def _find(self, target: str) -> tuple[str, Act, tuple[str, ...]]:
        """Return method and function of a path, and the open parts of the path.

        Raises:
            HttpError: There is no such path.
        """
        path = target.partition("?")[0].strip("/")
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed
        node, names = self._tree, []
        for part in path.split("/"):
            found = node.get(part) if part else None
            if found is None and part and "{}" in node:
                found = node["{}"]
                names.append(unquote(part) if "%" in part else part)
            if found is None:
                break
            node = found
        if found is None or "" not in node:
            raise HttpError(404, f"there is no {target[:200]}: GET /v2 describes the server")
        return (*node[""], tuple(names))

    def _check_origin(self, request: Request) -> str:
        """Return header fields for a web page.

        A page of any site can send requests to loopback, and can let its own name lead there.

        Raises:
            HttpError: The page may not use the server.
        """
        fields = request.head.fields
        host = fields.get(b"host", b"").decode("latin-1")
        if host and not _is_loopback(host):
            raise HttpError(403, f"the host {host[:100]!a} is not this device's loopback")
        origin = fields.get(b"origin", b"").decode("latin-1")
        if not origin:
            return ""
        if origin not in self._origins:
            raise HttpError(
                403, f"pages of {origin[:100]!a} may not use the server: name it in server.origins"
            )
        return (
            f"Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n"
            f"Access-Control-Allow-Methods: {_METHODS}\r\nAccess-Control-Allow-Headers: *\r\n"
            "Access-Control-Expose-Headers: *\r\n"
        )

    def _describe_server(self, call: Call) -> Response:
        return _json({"name": SERVER_NAME, "version": self._version, "extensions": EXTENSIONS})

    def _answer_live(self, call: Call) -> Response:
        is_live = self._hosting.is_live
        return _json({"live": is_live}, 200 if is_live else 503)

    def _answer_ready(self, call: Call) -> Response:
        is_ready = self._hosting.is_ready
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    def _answer_model_ready(self, call: Call) -> Response:
        model = self._model(call)
        return _json({"name": model.name, "ready": True})

    def _describe_model(self, call: Call) -> Response:
        model = self._model(call)
        serving = model.follower.serving
        metadata = ModelMetadata(
            name=model.name,
            versions=[serving.pointer.bundle.version],
            platform=PLATFORM,
            inputs=_tensors(serving.session.inputs),
            outputs=_tensors(serving.session.outputs),
            parameters=ModelFacts(
                bundle=serving.pointer.bundle,
                choice=serving.pointer.choice,
                inputs=serving.session.inputs,
                outputs=serving.session.outputs,
                troubles=model.follower.troubles,
            ),
        )
        return _json(metadata)

    def _answer_statistics(self, call: Call) -> Response:
        models = [self._model(call)] if call.names else list(self._hosting.models.values())
        for model in models:
            model.statistics.version = model.bundle.version
        return _json({"model_stats": [model.statistics for model in models]})

    def _list_repository(self, call: Call) -> Response:
        rows = [
            {"name": name, "version": model.bundle.version, "state": "READY", "reason": ""}
            for name, model in self._hosting.models.items()
        ]
        rows += [
            {"name": name, "version": "", "state": "UNAVAILABLE", "reason": because}
            for name, because in self._hosting.pending.items()
        ]
        return _json(rows)

    def _model(self, call: Call) -> HostedModel:
        """Return the model that a path names, with its version if any.

        Raises:
            HttpError: The model, or the version, does not serve.
        """
        model = self._hosting.find(call.names[0])
        if len(call.names) > 1 and call.names[1] != model.bundle.version:
            raise HttpError(
                404,
                f"model '{model.name}' serves version {model.bundle.version}, not "
                f"{call.names[1][:100]!a}",
            )
        return model

    def _infer(self, call: Call) -> Response | None:
        watch = Stopwatch()
        model = self._model(call)
        try:
            decoded = decode_request(call.request, self._regions)
            message = decoded.message
            check_outputs(
                message, tuple(one.name for one in model.follower.serving.session.outputs)
            )
            settings = message.parameters
            session, sequence = None, str(settings.sequence_id or "")
            if sequence:
                if settings.sequence_start:
                    model.begin_sequence(sequence)
                session = model.find_sequence(sequence)
            watch.read()
            inference = Inference(decoded.feeds, session, watch)

            def answer(inference: Inference) -> None:
                try:
                    response = self._answer(model, decoded, inference)
                except HttpError as error:
                    response = error_response(error)
                except Exception:  # the outermost loop of what peers can cause
                    log.exception("model=%s an answer fails because of a fault", model.name)
                    response = error_response(HttpError(500, _FAULT))
                watch.add_to(model.statistics, is_good=response.status == 200)
                if sequence and settings.sequence_end:
                    model.end_sequence(sequence)
                call.exchange.respond(response)

            cancel = model.submit(inference, answer)
        except HttpError:
            watch.add_to(model.statistics, is_good=False)
            raise
        if cancel is not None:
            call.exchange.on_lost(cancel)
        return None

    def _answer(self, model: HostedModel, decoded: Decoded, inference: Inference) -> Response:
        """Return the answer to an inference that has run.

        Raises:
            HttpError: The inference failed.
        """
        error = inference.error
        if isinstance(error, ValueError):
            raise HttpError(400, str(error)) from error
        if isinstance(error, EdgepackError):
            raise HttpError(500, str(error)) from error
        if error is not None:
            log.error("model=%s an inference fails because of a fault", model.name, exc_info=error)
            raise HttpError(500, _FAULT) from error
        if inference.bundle is None:
            raise HttpError(503, "the server stops", retry_s=1)
        version = inference.bundle.version
        return encode_response(decoded, inference.outputs, model.name, version, self._regions)

    def _begin_sequence(self, call: Call) -> Response:
        model, asked = self._model(call), _decode(call.request, SequenceRequest)
        session = model.begin_sequence(asked.sequence_id, asked.hold_s)
        return _json(
            SequenceAnswer(
                sequence_id=asked.sequence_id, bundle=session.bundle, choice=session.choice
            )
        )

    def _end_sequence(self, call: Call) -> Response:
        self._hosting.find(call.names[0]).end_sequence(call.names[1])
        return Response(200, (_EMPTY,))

    def _register(self, call: Call) -> Response:
        asked = _decode(call.request, RegisterRequest)
        self._regions.register(call.names[0], asked, call.request.find_peer())
        return Response(200, (_EMPTY,))

    def _unregister(self, call: Call) -> Response:
        self._regions.unregister("".join(call.names), call.request.find_peer())
        return Response(200, (_EMPTY,))

    def _list_regions(self, call: Call) -> Response:
        return _json(self._regions.statuses("".join(call.names), call.request.find_peer()))


class _WithFields:
    """Exchange that adds header fields to its response."""

    def __init__(self, exchange: Exchange, fields: str) -> None:
        self._exchange, self._fields = exchange, fields

    def respond(self, response: Response) -> None:
        self._exchange.respond(response._replace(fields=response.fields + self._fields))

    def on_lost(self, act: Callable[[], object]) -> None:
        self._exchange.on_lost(act)


def _json(value: object, status: int = 200) -> Response:
    return Response(status, (msgspec.json.encode(value),))


def _tensors(tensors: tuple[SessionTensor, ...]) -> list[TensorMetadata]:
    return [
        TensorMetadata(
            name=tensor.name, datatype=datatype_of(tensor.dtype), shape=describe_shape(tensor)
        )
        for tensor in tensors
    ]


def _decode(request: Request, kind: type[Any]) -> Any:
    """Return the JSON of a small request.

    Raises:
        HttpError: The JSON is malformed.
    """
    try:
        return decode_json(bytes(request.body), kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the JSON of the request is malformed: {error}") from error


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
