"""Text of a request's sound, all of one release."""

from typing import Any

import msgspec

from edgepack.agent.inference_protocol.text_messages import (
    Transcription,
    TranscriptionForm,
    TranscriptionUsage,
)
from edgepack.agent.server.call import Call
from edgepack.agent.server.http_messages import TEXT, HttpError, Response
from edgepack.agent.server.long_inference import LongInference
from edgepack.agent.server.multipart import read_form
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.serving.following import Follower
from edgepack.decoding import convert_value
from edgepack.sound.waves import open_sound

_MAX_VALUE_BYTES = 4096
_FIELDS = frozenset(TranscriptionForm.__struct_fields__)


class TranscriptionInference(LongInference):
    """Text of a request's sound; a thread of the model makes it chunk by chunk.

    Args:
        form: The request.
        sound: The WAV file.
        watch: Times.
    """

    def __init__(self, form: TranscriptionForm, sound: memoryview, watch: Stopwatch) -> None:
        super().__init__(watch)
        self._form, self._sound = form, sound
        self._text, self._seconds = "", 0.0

    def run(self, follower: Follower) -> None:
        """Make the text in any thread.

        Raises:
            SoundError: The sound cannot be read.
            TextCancelledError: The request was cancelled.
            Exception: Whatever an inference raises.
        """
        serving, sound = follower.serving, open_sound(self._sound)
        transcriber, outputs = serving.open_transcriber(), []
        for feeds in transcriber.feeds_of(sound):
            self.note_next()
            outputs.append(serving.run(feeds))
        self._text, self._seconds = transcriber.text_of(outputs), sound.seconds
        self.bundle = serving.pointer.bundle

    def response(self, version: str) -> Response:
        """Return the text."""
        if self._form.response_format == "text":
            return Response(200, (self._text.encode(),), kind=f"{TEXT}; charset=utf-8")
        answer = Transcription(
            text=self._text,
            usage=TranscriptionUsage(seconds=self._seconds),
            system_fingerprint=version,
        )
        return Response(200, (msgspec.json.encode(answer),))


def read_transcription(call: Call) -> tuple[TranscriptionForm, memoryview]:
    """Return a request for the text of a sound, and the sound.

    Raises:
        HttpError: The form is malformed, or asks for what the server does not have.
    """
    request = call.request
    parts = read_form(request.head.fields.get(b"content-type", b""), request.body)
    values: dict[str, Any] = {}
    for name, content in parts.items():
        if name not in _FIELDS:
            raise HttpError(
                400, f"the server does not have the part {name[:60]!a} of a form: leave it out"
            )
        if name == "file":
            continue
        if len(content) > _MAX_VALUE_BYTES:
            raise HttpError(400, f"the part '{name}' has more than {_MAX_VALUE_BYTES} bytes")
        values[name] = bytes(content).decode("utf-8", "replace")
    if "file" not in parts:
        raise HttpError(400, "the form has no part 'file' with a WAV file")
    try:
        form = convert_value({**values, "file": b""}, TranscriptionForm)
    except msgspec.ValidationError as error:
        raise HttpError(400, f"the form is malformed: {error}") from error
    if form.prompt or form.language or not form.is_greedy:
        raise HttpError(
            400,
            "the server takes the likeliest text, in the language that the model finds or that the "
            "bundle states: leave prompt, language and temperature out",
        )
    return form, parts["file"]
