"""Text of a request's text by an encoder-decoder, all of one release."""

import secrets
import time
from typing import Any

import msgspec

from edgepack.agent.generation.completions import Completion
from edgepack.agent.generation.texts import TextRequest
from edgepack.agent.inference_protocol.text_messages import TextSettings, Usage
from edgepack.agent.server.http_messages import EVENTS, HttpError, Response
from edgepack.agent.server.long_inference import LongInference
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.server.text_replies import COMPLETION, encode_event
from edgepack.agent.serving.following import Follower

_FIXED = {key: key for key in ("temperature", "top_k", "top_p", "stop")} | {
    "schema": "response_format"
}
"""Rules that the bundle states, with their keys: a request leaves these out, or gives 0, 1 or
nothing."""


class CompletionInference(LongInference):
    """Text of a request's text; a thread of the model makes it.

    Args:
        settings, request: The request, for the form `COMPLETION`.
        most_prompt_tokens: Tokens of the request's text, at most; 0 for the model's limit.
        watch: Times.

    Raises:
        HttpError: The request asks for rules of its own.
    """

    def __init__(
        self,
        settings: TextSettings,
        request: TextRequest,
        most_prompt_tokens: int,
        watch: Stopwatch,
    ) -> None:
        super().__init__(watch)
        self._settings, self._most = settings, request.max_tokens
        self._most_prompt_tokens = most_prompt_tokens
        self._completion: Completion | None = None
        self._prompt = str(request.prompt)
        for name, key in _FIXED.items():
            if getattr(request, name) not in (None, (), 0, 1):
                raise HttpError(400, f"the bundle states how a text is made: leave {key} out")
        if settings.return_token_ids:
            raise HttpError(
                400,
                "the text is made as a whole: leave return_token_ids out; in Python, call complete",
            )
        if self._most is not None and self._most < 1:
            raise HttpError(400, f"max_tokens is {self._most}, a text has 1 token at least")

    def run(self, follower: Follower) -> None:
        """Make the text in any thread.

        Raises:
            ValueError: The text does not fit.
            TextCancelledError: The request was cancelled.
            Exception: Whatever the inference raises.
        """
        serving, most = follower.serving, self._most_prompt_tokens
        completer = serving.open_completer()
        feeds = completer.feeds_of(self._prompt)
        tokens = feeds[completer.described.name].shape[1]
        if most and tokens > most:
            raise ValueError(f"the text has {tokens} tokens, and the server allows {most}")
        self.note_next()
        self._completion = completer.text_of(feeds, serving.run(feeds), self._most)
        self.bundle = serving.pointer.bundle

    def response(self, version: str) -> Response:
        """Return the text, whole or as the events of a stream."""
        made = self._completion
        if made is None:
            raise HttpError(500, "the text is missing")
        usage = Usage(
            prompt_tokens=made.prompt_tokens,
            completion_tokens=made.completion_tokens,
            total_tokens=made.prompt_tokens + made.completion_tokens,
        )
        common: dict[str, Any] = {
            "id": COMPLETION.prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": self._settings.model,
            "system_fingerprint": version,
        }
        if not self._settings.stream:
            answer = COMPLETION.whole(
                made.text, made.finish_reason, object=COMPLETION.answer, usage=usage, **common
            )
            return Response(200, (msgspec.json.encode(answer),))
        common["object"] = COMPLETION.event
        events = [
            COMPLETION.part(made.text, None, "assistant", msgspec.UNSET, usage=None, **common),
            COMPLETION.part("", made.finish_reason, "", msgspec.UNSET, usage=None, **common),
        ]
        options = self._settings.stream_options
        if options is not None and options.include_usage:
            last = COMPLETION.part("", None, "", msgspec.UNSET, usage=usage, **common)
            events.append(msgspec.structs.replace(last, choices=[]))
        return Response(200, (*map(encode_event, events), b"data: [DONE]\n\n"), kind=EVENTS)
