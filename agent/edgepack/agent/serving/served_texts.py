"""A text that the model server writes, with the interface of a text of the process."""

from time import monotonic
from typing import Any

import msgspec

from edgepack.agent.generation.texts import TextPiece, TextRequest
from edgepack.agent.inference_protocol.text_messages import TextError, Usage
from edgepack.agent.serving.event_stream import EventStream
from edgepack.agent.serving.server_client import ServerClient
from edgepack.agent.serving.text_pieces import Generation
from edgepack.decoding import json_decoder
from edgepack.errors import DeviceError
from edgepack.wire.orders import BundleRef


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    delta: _Delta = _Delta()
    finish_reason: str | None = None
    token_ids: list[int] = []


class _Event(msgspec.Struct, frozen=True):
    """Event of a stream; an error ends the stream."""

    choices: list[_Choice] = []
    bundle: BundleRef | None = None
    usage: Usage | None = None
    error: TextError | None = None


_DECODER = json_decoder(_Event)


class ServedGeneration(Generation):
    """Text that the model server writes.

    Args:
        client: The server's client.
        name: The model.
        request: The request.

    Raises:
        ValueError: The request does not fit the model.
        DeviceError: The server does not answer, or cannot write the text.
    """

    def __init__(self, client: ServerClient, name: str, request: TextRequest) -> None:
        began = monotonic()
        self._stream: EventStream | None = client.stream(_message(name, request))
        self._tokens = 0
        first = self._read()
        if first.bundle is None or first.usage is None:
            self.close()
            raise DeviceError("the answer of the model server is malformed: it names no bundle")
        self._bundle, self._prompt_tokens = first.bundle, first.usage.prompt_tokens
        self._first: _Event | None = first
        self._first_at = self._last_at = monotonic()
        self._first_token_ms = (self._first_at - began) * 1000

    @property
    def bundle(self) -> BundleRef:
        """The bundle that writes the text."""
        return self._bundle

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens received so far."""
        return self._tokens

    @property
    def first_token_ms(self) -> float:
        """Milliseconds from the request to the first token."""
        return self._first_token_ms

    @property
    def token_ms(self) -> float:
        """Mean milliseconds between two tokens; 0 before the second."""
        return (self._last_at - self._first_at) * 1000 / max(1, self._tokens - 1)

    def __next__(self) -> TextPiece:
        """Return the next piece; see `Generation`."""
        if self._stream is None:
            raise StopIteration
        event, self._first = self._first or self._read(), None
        choice = event.choices[0]
        if self._tokens:
            self._last_at = monotonic()
        self._tokens += 1
        if choice.finish_reason:
            self.close()
        return TextPiece(
            text=choice.text or choice.delta.content or "",
            token=choice.token_ids[0],
            finish_reason=choice.finish_reason or "",
        )

    def close(self) -> None:
        """End the connection: the server ends the text."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self.close()

    def _read(self) -> _Event:
        """Return the next event with a token.

        Raises:
            DeviceError: The server ended the text, or an event is malformed.
        """
        try:
            while self._stream is not None:
                event = _DECODER.decode(self._stream.read())
                if event.error is not None:
                    raise DeviceError(event.error.message)  # noqa: TRY301
                if event.choices and event.choices[0].token_ids:
                    return event
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.close()
            raise DeviceError(f"the answer of the model server is malformed: {error}") from error
        except BaseException:
            self.close()
            raise
        raise DeviceError("the text is closed")


def _message(name: str, request: TextRequest) -> list[bytes]:
    """Return a request for a stream of pieces with their tokens."""
    prompt, stop = request.prompt, request.stop
    body: dict[str, Any] = {
        "model": name,
        "adapter": request.adapter,
        "stream": True,
        "return_token_ids": True,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "seed": request.seed,
        "response_format": (
            None
            if request.schema is None
            else {"type": "json_schema", "json_schema": {"schema": request.schema}}
        ),
        "stop": stop if isinstance(stop, str) else list(stop),
        "prompt" if isinstance(prompt, str) else "messages": prompt,
    }
    path = "completions" if isinstance(prompt, str) else "chat/completions"
    content = msgspec.json.encode(body)
    # HTTP/1.0: events without chunks, whose last one tells the end.
    head = f"POST /v1/{path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return [head.encode(), content]
