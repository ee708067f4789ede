"""Answers of the model server's operations; see `operations`."""

import importlib.metadata
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from edgepack.agent.inference_protocol.messages import (
    EXTENSIONS,
    PLATFORM,
    SERVER_NAME,
    ImageAnswer,
    InferRequest,
    InferResponse,
    Live,
    ModelFacts,
    ModelIndex,
    ModelMetadata,
    ModelNames,
    ModelReady,
    Ready,
    RegisterRequest,
    SequenceAnswer,
    SequenceRequest,
    ServerMetadata,
    TensorMetadata,
)
from edgepack.agent.inference_protocol.tensors import datatype_of, describe_shape
from edgepack.agent.runtime.sessions import SessionTensor
from edgepack.agent.server.blocks import Blocks
from edgepack.agent.server.call import Call
from edgepack.agent.server.connection import Request, error_response
from edgepack.agent.server.hosted_model import (
    HostedModel,
    Inference,
    check_version,
    find_version,
)
from edgepack.agent.server.hosting import Hosting
from edgepack.agent.server.http_messages import FAULT, HttpError, Response
from edgepack.agent.server.inferring import (
    LARGE_JSON_BYTES,
    LARGE_VALUES,
    Decoded,
    check_outputs,
    count_json_values,
    decode_request,
    describe_outputs,
    encode_response,
    read_large,
    split_body,
)
from edgepack.agent.server.openapi import describe_operations
from edgepack.agent.server.regions import Regions
from edgepack.agent.server.statistics import Statistics, Stopwatch
from edgepack.agent.server.text_answers import TextAnswers
from edgepack.decoding import decode_json

log = logging.getLogger(__name__)

_EMPTY = b"{}"


class Answers(TextAnswers):
    """Answers of all operations; used by the event loop's thread alone.

    Args:
        hosting: The models.
        render_metrics: Returns the response for `/metrics`.
        blocks: Memory of large inputs.
    """

    def __init__(
        self, hosting: Hosting, render_metrics: Callable[[Request], Response], blocks: Blocks
    ) -> None:
        super().__init__(hosting)
        self._render_metrics = render_metrics
        self.regions = Regions(blocks)
        self._threads = ThreadPoolExecutor(1, "edgepack-json")
        self._version = importlib.metadata.version("edgepack")

    def describe_server(self, call: Call) -> Response:
        """Describe the server."""
        return _json(ServerMetadata(name=SERVER_NAME, version=self._version, extensions=EXTENSIONS))

    def describe_api(self, call: Call) -> Response:
        """Describe all operations."""
        return Response(200, (describe_operations(),))

    def render_metrics(self, call: Call) -> Response:
        """Return metrics for Prometheus."""
        return self._render_metrics(call.request)

    def list_models(self, call: Call) -> Response:
        """List the models that serve."""
        return _json(ModelNames(models=sorted(self._hosting.models)))

    def answer_live(self, call: Call) -> Response:
        """Return status 503 if an inference hangs."""
        is_live = self._hosting.is_live
        return _json(Live(live=is_live), 200 if is_live else 503)

    def answer_ready(self, call: Call) -> Response:
        """Return status 503 if a model does not serve."""
        is_ready = self._hosting.is_ready
        return _json(Ready(ready=is_ready), 200 if is_ready else 503)

    def answer_model(self, call: Call) -> Response:
        """Return that a model serves."""
        return _json(ModelReady(name=self._model(call).name, ready=True))

    def describe_model(self, call: Call) -> Response:
        """Describe a model and its release."""
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
                description=serving.description,
            ),
        )
        return _json(metadata)

    def answer_statistics(self, call: Call) -> Response:
        """Return the statistics of a model."""
        return _statistics([self._model(call)])

    def answer_all(self, call: Call) -> Response:
        """Return the statistics of all models."""
        return _statistics(list(self._hosting.models.values()))

    def list_repository(self, call: Call) -> Response:
        """List all models with their states."""
        rows = [
            ModelIndex(name=name, version=model.bundle.version, state="READY")
            for name, model in self._hosting.models.items()
        ]
        rows += [
            ModelIndex(name=name, state="UNAVAILABLE", reason=because)
            for name, because in self._hosting.pending.items()
        ]
        return _json(rows)

    def _model(self, call: Call) -> HostedModel:
        """Return the model that a path names, with its version if any.

        Raises:
            HttpError: The model, or the version, does not serve.
        """
        model = self._hosting.find(call.names[0])
        check_version(model.bundle, _version(call))
        return model

    def infer(self, call: Call) -> None:
        """Run an inference; the answer may come later."""
        text, _ = split_body(call.request)
        model = self._model(call)
        if len(text) < LARGE_JSON_BYTES or model.is_full:
            self.run(call, lambda regions: decode_request(call.request, regions), encode_response)
            return
        model.busy += 1
        future = self._threads.submit(read_large, text)
        future.add_done_callback(
            lambda future: self._loop.call_soon_threadsafe(self._infer_large, call, model, future)
        )

    def _infer_large(self, call: Call, model: HostedModel, read: Future[InferRequest]) -> None:
        """Run an inference whose JSON a thread has read."""
        model.busy -= 1
        try:
            self.run(
                call,
                lambda regions: decode_request(call.request, regions, read.result()),
                encode_response,
            )
        except HttpError as error:
            call.exchange.respond(error_response(error))
        except Exception:  # the outermost loop of what peers can cause
            log.exception("a large request fails because of a fault")
            call.exchange.respond(error_response(HttpError(500, FAULT)))

    def run(
        self,
        call: Call,
        decode: Callable[[Regions], Decoded],
        encode_answer: Callable[[InferResponse, list[memoryview]], Response],
    ) -> None:
        """Run an inference of a request in any form; the answer may come later.

        Args:
            call: The request.
            decode: Returns the request with its inputs.
            encode_answer: Returns the response of a message and binary outputs.

        Raises:
            HttpError: The request is wrong, or cannot be carried out now.
        """
        watch = Stopwatch()
        model = self._model(call)
        try:
            model.check_room()  # Before the work of decoding.
            decoded = decode(self.regions)
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
        except HttpError:
            watch.add_to(model.statistics, is_good=False)
            raise

        def encode(inference: Inference, version: str) -> Response:
            outputs = inference.outputs
            return encode_answer(
                *describe_outputs(decoded, outputs, model.name, version, self.regions)
            )

        def end() -> None:
            if sequence and settings.sequence_end:
                model.end_sequence(sequence)

        def is_large(inference: Inference) -> bool:
            return count_json_values(message, inference.outputs) > LARGE_VALUES

        watch.read()
        inference = Inference(decoded.feeds, session, watch, version=_version(call))
        self._submit(call, model, inference, encode, end, is_large)

    def answer_image(self, call: Call) -> None:
        """Answer a picture; the answer comes later."""
        watch = Stopwatch()
        model = self._model(call)

        def encode(inference: Inference, version: str) -> Response:
            answer = inference.answer
            if answer is None or answer.frame is None:
                raise HttpError(500, FAULT)
            return _json(
                ImageAnswer(
                    model_name=model.name,
                    model_version=version,
                    width=answer.frame.width,
                    height=answer.frame.height,
                    labels=answer.labels,
                    boxes=answer.boxes,
                    text=answer.text,
                    lines=answer.lines if inference.reads_pages else None,
                )
            )

        watch.read()
        inference = Inference({}, None, watch, call.request.body, _version(call))
        self._submit(call, model, inference, encode)

    def _submit(
        self,
        call: Call,
        model: HostedModel,
        inference: Inference,
        encode: Callable[[Inference, str], Response],
        end: Callable[[], object] = lambda: None,
        is_large: Callable[[Inference], bool] = lambda _: False,
    ) -> None:
        """Run an inference now or later, and respond.

        Args:
            call: The request.
            model: The model.
            inference: The inference.
            encode: Returns the response of a release, by its version.
            end: Called after the inference.
            is_large: Returns whether a thread encodes the response.

        Raises:
            HttpError: Too many requests wait.
        """
        watch = inference.watch

        def respond() -> Response:
            try:
                return encode(inference, find_version(model.name, inference))
            except HttpError as error:
                return error_response(error)
            except Exception:  # the outermost loop of what peers can cause
                log.exception("model=%s an answer fails because of a fault", model.name)
                return error_response(HttpError(500, FAULT))

        def answer(inference: Inference) -> None:
            if not is_large(inference):
                finish(respond())
                return
            self._threads.submit(respond).add_done_callback(
                lambda future: self._loop.call_soon_threadsafe(finish, future.result())
            )

        def finish(response: Response) -> None:
            watch.add_to(model.statistics, is_good=response.status == 200)
            end()
            call.exchange.respond(response)

        try:
            cancel = model.submit(inference, answer)
        except HttpError:
            watch.add_to(model.statistics, is_good=False)
            raise
        if cancel is not None:
            call.exchange.on_lost(cancel)

    def begin_sequence(self, call: Call) -> Response:
        """Begin a sequence."""
        model, asked = self._model(call), _decode(call.request, SequenceRequest)
        session = model.begin_sequence(asked.sequence_id, asked.hold_s)
        return _json(
            SequenceAnswer(
                sequence_id=asked.sequence_id, bundle=session.bundle, choice=session.choice
            )
        )

    def end_sequence(self, call: Call) -> Response:
        """End a sequence; ignore an unknown one."""
        self._hosting.find(call.names[0]).end_sequence(call.names[1])
        return Response(200, (_EMPTY,))

    def register(self, call: Call) -> Response:
        """Register a region of shared memory."""
        asked = _decode(call.request, RegisterRequest)
        self.regions.register(call.names[0], asked, call.request.find_peer())
        return Response(200, (_EMPTY,))

    def unregister(self, call: Call) -> Response:
        """Forget a region, or all regions of the user."""
        self.regions.unregister("".join(call.names), call.request.find_peer())
        return Response(200, (_EMPTY,))

    def list_regions(self, call: Call) -> Response:
        """List a region, or all regions of the user."""
        return _json(self.regions.statuses("".join(call.names), call.request.find_peer()))


def _version(call: Call) -> str:
    """Return the version that the path of a model names; "" without one."""
    return call.names[1] if len(call.names) > 1 else ""


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


def _statistics(models: list[HostedModel]) -> Response:
    for model in models:
        model.statistics.version = model.bundle.version
    return _json(Statistics(model_stats=[model.statistics for model in models]))
