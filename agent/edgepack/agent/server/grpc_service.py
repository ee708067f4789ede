"""The protocol's gRPC service, next to REST: the same answers, limits and error texts.

A method of the protocol has a single request and a single response. Here each is handled as a
stream, which is equal on the wire: the service decides when it reads a message and when it writes
one, so that clients that stall hold a bounded amount of memory.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
import msgspec
from google.protobuf import json_format
from grpc import aio

from edgepack.agent.inference_protocol.grpc_messages import CLASSES, SERVICE
from edgepack.agent.server.answers import Answers
from edgepack.agent.server.call import Call
from edgepack.agent.server.connection import (
    IDLE_S,
    REQUEST_S,
    Request,
    error_response,
)
from edgepack.agent.server.grpc_requests import encode_response, parse_message, read_request
from edgepack.agent.server.http_messages import FAULT, Head, HttpError, Response
from edgepack.agent.server.inferring import decode_inputs
from edgepack.agent.server.listening import Listeners
from edgepack.agent.server.peers import find_peer_uid
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError
from edgepack.metrics.settings import read_address

log = logging.getLogger(__name__)

PROMPT_S = 2.0
"""How long a client may take to send a message, if too many others have not sent theirs."""
WAIT_S = 5.0
"""How long a call waits for others to send their messages."""
_COPIES = 4
"""Memory of a response in gRPC: the message, gRPC's copy, and its frames."""
_SMALL_BYTES = 64 * 1024
"""Length of a request without tensors, at most."""
_HEAD = Head("POST", "/", {}, 0, True)
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class _Method(NamedTuple):
    """Method of the service.

    Attributes:
        act: Function of `Answers`.
        holds: Field of the response that gets a list of REST.
        is_state: Whether an error is an answer, too: false.
    """

    act: str
    holds: str = ""
    is_state: bool = False


_METHODS = {
    "ServerLive": _Method("answer_live", is_state=True),
    "ServerReady": _Method("answer_ready", is_state=True),
    "ModelReady": _Method("answer_model", is_state=True),
    "ServerMetadata": _Method("describe_server"),
    "ModelMetadata": _Method("describe_model"),
    "ModelStatistics": _Method("answer_statistics"),
    "RepositoryIndex": _Method("list_repository", holds="models"),
    "SystemSharedMemoryStatus": _Method("list_regions", holds="regions"),
    "SystemSharedMemoryRegister": _Method("register"),
    "SystemSharedMemoryUnregister": _Method("unregister"),
}
_Act = Callable[[str, bytes, Any], Awaitable[bytes]]


class GrpcService:
    """The service; used by the event loop's thread alone.

    Args:
        answers: Answers of all operations.
        listeners: Limits, and the memory of all requests.
    """

    def __init__(self, answers: Answers, listeners: Listeners) -> None:
        self._answers, self._listeners = answers, listeners
        limits = listeners.limits
        self._reads = asyncio.Semaphore(max(1, limits.memory_bytes // (2 * limits.body_bytes)))
        self._port = 0
        self._server = aio.server(
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
            ),
            maximum_concurrent_rpcs=limits.connections,
        )
        acts: dict[str, _Act] = {**dict.fromkeys(_METHODS, self._answer), "ModelInfer": self._infer}
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(self._handler(name, act))
            for name, act in acts.items()
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((handler,))

    async def start(self, address: str) -> None:
        """Listen from now on.

        Raises:
            DeviceError: The address cannot be used.
        """
        place = read_address(address)
        host = f"[{place.host}]" if ":" in place.host else place.host
        try:
            self._port = self._server.add_insecure_port(f"{host}:{place.port}")
        except RuntimeError as error:
            raise DeviceError(
                "the model server cannot listen for gRPC",
                found_in=f"server.grpc, {address}",
                remedy="name a free port",
            ) from error
        await self._server.start()

    async def stop(self, patience_s: float) -> None:
        """Accept nothing more, wait until running calls are answered, and end all connections."""
        await self._server.stop(patience_s)

    def _handler(self, name: str, act: _Act) -> Callable[[Any, Any], Awaitable[None]]:
        """Return the handler of a method."""
        budget = self._listeners.budget

        async def handle(_: object, context: Any) -> None:
            held, content, answer = 0, b"", b""
            try:
                content = await self._read(context)
                self._take(len(content))
                held = len(content)
                answer = await act(name, content, context)
                self._listeners.admit_response(_COPIES * len(answer), None)
                held += _COPIES * len(answer)
                async with asyncio.timeout(REQUEST_S):
                    await context.write(answer)
            except HttpError as error:
                code = _CODES.get(error.status, grpc.StatusCode.INTERNAL)
                await context.abort(code, error.problem)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the answer was not read")
            except aio.BaseError:
                raise
            except Exception:  # the outermost loop of what peers can cause
                log.exception("a call of %s fails because of a fault", name)
                await context.abort(grpc.StatusCode.INTERNAL, FAULT)
            finally:
                content = answer = b""  # An error's traceback may keep this frame.
                budget.give(held)

        return handle

    def _take(self, number: int) -> None:
        """Reserve the memory of a request.

        Raises:
            HttpError: Other requests hold the budget.
        """
        while not self._listeners.budget.take(number):
            if not self._listeners.end_stalled(None):
                raise HttpError(429, "requests hold all memory of the server", retry_s=1)

    async def _read(self, context: Any) -> bytes:
        """Return the message of a call.

        Raises:
            HttpError: The message does not arrive.
        """
        with _timed(429, "calls whose messages do not arrive hold all memory of the server"):
            async with asyncio.timeout(WAIT_S if self._reads.locked() else None):
                await self._reads.acquire()
        try:
            limit_s = PROMPT_S if self._reads.locked() else REQUEST_S
            with _timed(408, f"the request did not arrive within {limit_s:g} s"):
                async with asyncio.timeout(limit_s):
                    content = await context.read()
        finally:
            self._reads.release()
        if content is aio.EOF:
            raise HttpError(400, "the call has no message")
        return bytes(content)

    async def _answer(self, name: str, content: bytes, context: Any) -> bytes:
        """Answer a call without tensors.

        Raises:
            HttpError: The request is wrong.
        """
        method = _METHODS[name]
        if len(content) > _SMALL_BYTES:
            raise HttpError(413, f"the request has more than {_SMALL_BYTES} bytes")
        message = parse_message(f"{name}Request", content)
        fields = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
        names, act = _names_of(fields), method.act
        if act == "register" and not names[0]:
            raise HttpError(400, "a region of shared memory needs a name")
        if act == "answer_statistics" and not names[0]:
            act = "answer_all"
        place = {key: fields[key] for key in ("key", "offset", "byte_size") if key in fields}
        request = Request(
            _HEAD, memoryview(msgspec.json.encode(place)), self._find_peer(context), False
        )
        try:
            response = getattr(self._answers, act)(Call(request, _Exchange(), names))
        except HttpError as error:
            if not method.is_state:
                raise
            response = error_response(error)
        value = decode_json(b"".join(response.parts))
        if method.holds == "regions":
            value = {one["name"]: one for one in value}
        if method.holds:
            value = {method.holds: value}
        found = CLASSES[f"{name}Response"]()
        return bytes(
            json_format.ParseDict(value, found, ignore_unknown_fields=True).SerializeToString()
        )

    async def _infer(self, name: str, content: bytes, context: Any) -> bytes:
        """Run an inference.

        Raises:
            HttpError: The request is wrong, or cannot be carried out now.
        """
        message, asked, raw = read_request(content)
        left, find_peer = iter(raw), self._find_peer(context)
        exchange = _Exchange()
        names = _names_of({"name": message.model_name, "version": message.model_version})
        call = Call(Request(_HEAD, memoryview(b""), find_peer, False), exchange, names)
        self._answers.run(
            call,
            lambda regions: decode_inputs(asked, lambda _, size: next(left), find_peer, regions),
            encode_response,
        )
        response = await exchange.wait()
        if response.status != 200:
            text = decode_json(b"".join(response.parts))["error"]
            raise HttpError(response.status, text)
        return bytes(response.parts[0])

    def _find_peer(self, context: Any) -> Callable[[], int | None]:
        """Return a function that returns the user of a client; None if not known."""

        def find() -> int | None:
            _, _, port = context.peer().rpartition(":")
            return find_peer_uid(("", int(port)), ("", self._port)) if port.isdecimal() else None

        return find


class _Exchange:
    """Response to a call."""

    def __init__(self) -> None:
        self._response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._act_on_loss: Callable[[], object] = lambda: None

    def respond(self, response: Response) -> None:
        """Take the response."""
        self._act_on_loss = lambda: None  # It refers to the call: a cycle would keep all tensors.
        if not self._response.done():
            self._response.set_result(response)

    def on_lost(self, act: Callable[[], object], *, is_long: bool = False) -> None:
        """Call a function if the client goes before the response is here."""
        self._act_on_loss = act

    async def wait(self) -> Response:
        """Return the response."""
        try:
            return await self._response
        except asyncio.CancelledError:
            self._act_on_loss()
            raise


def _names_of(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return the name that a request has, and the version if the request has one."""
    version = fields.get("version")
    return (fields.get("name", ""), version) if version else (fields.get("name", ""),)


@contextlib.contextmanager
def _timed(status: int, problem: str) -> Any:
    """Turn the end of a time limit into an error.

    Raises:
        HttpError: The time is over.
    """
    try:
        yield
    except TimeoutError as error:
        raise HttpError(status, problem, retry_s=1) from error
