"""Replies of OpenAI's protocol: a text as a whole, or as a stream of events."""

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from edgepack.agent.generation.grammar import ANY_OBJECT, Schema
from edgepack.agent.generation.texts import Prompt, TextPiece, TextRequest
from edgepack.agent.inference_protocol.messages import MAX_JSON_BYTES
from edgepack.agent.inference_protocol.text_messages import (
    ChatAnswer,
    ChatChoice,
    ChatDelta,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    CompletionAnswer,
    CompletionRequest,
    PromptUsage,
    ResponseFormat,
    TextChoice,
    TextError,
    TextErrorAnswer,
    TextModelFacts,
    TextSettings,
    Usage,
)
from edgepack.agent.server.hosted_model import HostedModel
from edgepack.agent.server.http_messages import EVENTS, HttpError, Response
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.server.text_inference import TextInference
from edgepack.decoding import decode_json

_UNUSED: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "tools": (None, []),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
}
"""Settings that the server accepts with these values only."""

_TYPES = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_CODES = {404: "model_not_found", 429: "rate_limit_exceeded"}


Tokens = list[int] | msgspec.UnsetType


class TextForm(NamedTuple):
    """Form of the answers to a kind of requests.

    Attributes:
        prefix: Beginning of ids.
        answer, event: Kinds of the whole answer, and of an event.
        whole: Returns the whole answer.
        part: Returns an event with a part of the text.
    """

    prefix: str
    answer: str
    event: str
    whole: Callable[..., ChatAnswer | CompletionAnswer]
    part: Callable[..., ChatEvent | CompletionAnswer]


def _whole_chat(text: str, reason: str, **common: Any) -> ChatAnswer:
    message = ChatMessage(role="assistant", content=text)
    return ChatAnswer(choices=[ChatChoice(message=message, finish_reason=reason)], **common)


def _part_of_chat(
    text: str, reason: str | None, role: str, tokens: Tokens, **common: Any
) -> ChatEvent:
    delta = ChatMessage(role=role, content=text if text or role else None)
    choice = ChatDelta(delta=delta, finish_reason=reason, token_ids=tokens)
    return ChatEvent(choices=[choice], **common)


def _whole_completion(text: str, reason: str, **common: Any) -> CompletionAnswer:
    return CompletionAnswer(choices=[TextChoice(text=text, finish_reason=reason)], **common)


def _part_of_completion(
    text: str, reason: str | None, role: str, tokens: Tokens, **common: Any
) -> CompletionAnswer:
    choice = TextChoice(text=text, finish_reason=reason, token_ids=tokens)
    return CompletionAnswer(choices=[choice], **common)


CHAT = TextForm("chatcmpl-", "chat.completion", "chat.completion.chunk", _whole_chat, _part_of_chat)
COMPLETION = TextForm(
    "cmpl-", "text_completion", "text_completion", _whole_completion, _part_of_completion
)


class TextReply:
    """Answer to a request for a text, whole or as a stream; for the event loop's thread.

    Args:
        form: Form of the answer.
        settings, request: The request.
        model: Name of the model.
        watch: Times.
        in_loop: Calls a function in the event loop's thread.

    Attributes:
        inference: The text.
    """

    def __init__(
        self,
        form: TextForm,
        settings: TextSettings,
        request: TextRequest,
        model: str,
        watch: Stopwatch,
        in_loop: Callable[[Callable[[], object]], object],
    ) -> None:
        self._form, self._settings = form, settings
        self._common: dict[str, Any] = {
            "id": form.prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": model,
        }
        self._pieces: list[TextPiece] = []
        self._send: Callable[[bytes], None] | None = None
        self._begin: Callable[[Response], None] = lambda response: None
        self._in_loop = in_loop
        show = self._show_later if settings.stream else self._pieces.append
        self.inference = TextInference(request, watch, show)

    def stream_to(self, respond: Callable[[Response], None]) -> None:
        """Begin the stream by a response once the first piece is here."""
        self._begin = respond

    @property
    def has_begun(self) -> bool:
        """True if the head of a stream was sent."""
        return self._send is not None

    def response(self, version: str) -> Response:
        """Return the whole text."""
        text = "".join(piece.text for piece in self._pieces)
        answer = self._form.whole(
            text,
            self._pieces[-1].finish_reason,
            **self._common,
            object=self._form.answer,
            system_fingerprint=version,
            usage=self._usage(),
        )
        return Response(200, (msgspec.json.encode(answer),))

    def end(self, error: HttpError | None) -> None:
        """End the stream, with an error if there is one."""
        if self._send is None:
            return
        if error is not None:
            self._send(b"data: " + encode_error(error) + b"\n\n")
        else:
            options = self._settings.stream_options
            if options is not None and options.include_usage:
                event = self._event("", None, "", usage=self._usage())
                self._send(encode_event(msgspec.structs.replace(event, choices=[])))
            self._send(b"data: [DONE]\n\n")
        self._send(b"")

    def _show_later(self, piece: TextPiece) -> None:
        self._in_loop(lambda: self._show(piece))

    def _show(self, piece: TextPiece) -> None:
        """Send a piece."""
        if self._send is None:
            self._begin(Response(200, kind=EVENTS, stream=self._keep_sender))
            self._write("", None, "assistant")
        if self._settings.return_token_ids:
            self._write(piece.text, piece.finish_reason or None, "", [piece.token])
            return
        if piece.text:
            self._write(piece.text, None, "")
        if piece.finish_reason:
            self._write("", piece.finish_reason, "")

    def _keep_sender(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def _write(
        self, text: str, reason: str | None, role: str, tokens: Tokens = msgspec.UNSET
    ) -> None:
        is_needed = text or reason or tokens or self._form is CHAT
        if self._send is not None and is_needed:
            usage = self._usage() if tokens else None
            self._send(encode_event(self._event(text, reason, role, tokens, usage)))

    def _event(
        self,
        text: str,
        reason: str | None,
        role: str,
        tokens: Tokens = msgspec.UNSET,
        usage: Usage | None = None,
    ) -> ChatEvent | CompletionAnswer:
        bundle = self.inference.bundle
        return self._form.part(
            text,
            reason,
            role,
            tokens,
            **self._common,
            bundle=bundle if bundle and tokens else msgspec.UNSET,
            object=self._form.event,
            system_fingerprint=bundle.version if bundle else "",
            usage=usage,
        )

    def _usage(self) -> Usage:
        prompt, completion = self.inference.prompt_tokens, self.inference.completion_tokens
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptUsage(cached_tokens=self.inference.cached_tokens),
        )


def read_chat(content: memoryview) -> tuple[TextSettings, TextRequest]:
    """Return a request for an answer to messages.

    Raises:
        HttpError: The request is malformed, or asks for more than the server has.
    """
    found = read_body(content, ChatRequest)
    most = found.max_completion_tokens
    return found, _request(found, found.messages, found.max_tokens if most is None else most)


def read_completion(content: memoryview) -> tuple[TextSettings, TextRequest]:
    """Return a request for the continuation of a text.

    Raises:
        HttpError: The request is malformed, or asks for more than the server has.
    """
    found = read_body(content, CompletionRequest)
    prompt = found.prompt
    if not isinstance(prompt, str):
        if len(prompt) != 1:
            raise HttpError(400, f"a request has one prompt, not {len(prompt)}")
        prompt = prompt[0]
    return found, _request(found, prompt, found.max_tokens)


def read_body(content: memoryview, kind: type[Any]) -> Any:
    """Return a request of a kind.

    Raises:
        HttpError: The JSON is malformed or too long.
    """
    if len(content) > MAX_JSON_BYTES:
        raise HttpError(413, f"the JSON has more than {MAX_JSON_BYTES} bytes")
    try:
        return decode_json(bytes(content), kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the JSON of the request is malformed: {error}") from error


def _request(settings: TextSettings, prompt: Prompt, most: int | None) -> TextRequest:
    for name, accepted in _UNUSED.items():
        if getattr(settings, name) not in accepted:
            raise HttpError(400, f"the server does not have {name}: leave it out")
    stop = settings.stop
    return TextRequest(
        prompt=prompt,
        max_tokens=most,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
        schema=_schema_of(settings.response_format),
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
    )


def _schema_of(form: ResponseFormat | None) -> Schema | None:
    """Return the schema that a text follows; None for a free text.

    Raises:
        HttpError: There is no schema.
    """
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return ANY_OBJECT
    if form.json_schema is None or form.json_schema.schema is None:
        raise HttpError(400, "response_format has the type json_schema, and no json_schema.schema")
    return form.json_schema.schema


def describe_text_models(models: Iterable[HostedModel]) -> list[TextModelFacts]:
    """Return the facts of models of texts, each with its adapters."""
    found = []
    for model in models:
        serving = model.follower.serving
        found.append(TextModelFacts(id=model.name, created=int(serving.pointer.since)))
        pointers = serving.adapters.list() if serving.adapters is not None else ()
        found += [
            TextModelFacts(id=one.bundle.name, created=int(one.since), parent=model.name)
            for one in pointers
        ]
    return found


def encode_error(error: HttpError) -> bytes:
    """Return an error in OpenAI's form."""
    kind = _TYPES.get(error.status, "server_error")
    code = _CODES.get(error.status)
    return msgspec.json.encode(
        TextErrorAnswer(error=TextError(message=error.problem, type=kind, code=code))
    )


def text_error_response(error: HttpError) -> Response:
    """Return a response with an error in OpenAI's form."""
    fields = f"Retry-After: {error.retry_s}\r\n" if error.retry_s else ""
    return Response(error.status, (encode_error(error),), fields=fields)


def encode_event(event: ChatEvent | CompletionAnswer) -> bytes:
    """Return an event of a stream."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
