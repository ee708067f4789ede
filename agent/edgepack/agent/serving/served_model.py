"""A model of the model server, with the interface of a model in the process.

    with open_model("line-orientation", via="server") as model:
        outputs = model.run({"x": pixels})

The server holds the only copy of the model, for all processes of the device. A crash of a driver
ends the server alone: calls wait until the agent has started the server again.
"""

import asyncio
import base64
import os
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.agent.generation.completions import Completion
from edgepack.agent.generation.texts import TextRequest
from edgepack.agent.generation.transcripts import Transcript
from edgepack.agent.inference_protocol.messages import (
    InferRequest,
    InferResponse,
    InputTensor,
    ModelFacts,
    ModelMetadata,
    RequestParameters,
    SequenceAnswer,
    SequenceRequest,
    TensorParameters,
)
from edgepack.agent.inference_protocol.tensors import datatype_of_array, dtype_of
from edgepack.agent.inference_protocol.text_messages import (
    CompletionAnswer,
    EmbeddingAnswer,
    EmbeddingRequest,
    Transcription,
)
from edgepack.agent.runtime.sessions import SessionTensor, Tensor, name_single
from edgepack.agent.serving.answers import Answering, Release
from edgepack.agent.serving.closing import Closing
from edgepack.agent.serving.model_session import HOLD_S, MAX_HOLD_S
from edgepack.agent.serving.served_bound import ServedBound
from edgepack.agent.serving.served_texts import ServedGeneration
from edgepack.agent.serving.server_client import Reply, ServerClient
from edgepack.agent.serving.text_pieces import Generation
from edgepack.agent.serving.writing import Writing
from edgepack.agent.state.models import MODEL_NAME
from edgepack.decoding import decode_json, json_decoder
from edgepack.errors import DeviceError
from edgepack.sound.waves import Sound, encode_wave
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice

T = TypeVar("T")

_HEADS = 32
"""Requests whose JSON is kept: an application sends the same shapes again and again."""
_ALIGNMENT = 64
_RESPONSE = json_decoder(InferResponse)


MOST_RELEASES = 5
"""Releases that may be replaced while a question is asked."""


class ReleaseReplacedError(Exception):
    """Another release than expected ran an inference."""


class ServedRelease:
    """A release of a model in the server, as long as no other release runs an inference.

    Attributes:
        description: Meaning of inputs and outputs.
        inputs: Inputs of the model, in its own order.
    """

    def __init__(self, model: "ServedModel", facts: ModelFacts) -> None:
        self.description, self.inputs = facts.description, facts.inputs
        self._model, self._version = model, facts.bundle.version

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run an inference.

        Raises:
            ReleaseReplacedError: Another release ran.
        """
        return self._model.infer(feeds, "", self._version)

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the vectors of texts.

        Raises:
            ReleaseReplacedError: Another release ran.
        """
        return self._model.embed_texts(texts, self._version)

    def complete(self, text: str, most: int | None) -> Completion:
        """Return the text of a text; the server makes the whole text on one release."""
        return self._model.complete_text(text, most)

    def transcribe(self, sound: Sound) -> Transcript:
        """Return the text of a sound; the server makes the whole text on one release."""
        return self._model.transcribe_sound(sound)


class ServedModel(Answering, Writing, Closing):
    """The active model of a device in the model server; safe to use from several threads.

    Made by `open_model(name, via="server")`. A forked child uses connections of its own.
    """

    def __init__(self, name: str, state_dir: Path) -> None:
        if not MODEL_NAME.fullmatch(name):
            raise DeviceError(
                f"{name!a:.120} is not a name of a model",
                remedy="edgepack-agent status lists the models",
            )
        self._name, self._client = name, ServerClient(state_dir)
        self._is_closed = False
        self._bounds: weakref.WeakSet[ServedBound] = weakref.WeakSet()
        self._heads: dict[tuple[object, ...], bytes] = {}
        self._input_names: tuple[str, ...] = ()
        try:
            self._facts()
        except BaseException:
            self._client.close()
            raise

    def run(self, feeds: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
        """Run an inference on the active model; see `Model.run`.

        Raises:
            ValueError: The feeds do not fit the inputs, or the model is closed.
            DeviceError: The provider failed, or the server does not answer.
        """
        return self.infer(feeds, "")

    def bind(self, feeds: Mapping[str, Tensor] | Tensor | None = None) -> ServedBound:
        """Fix the arrays of inferences, in memory that the server reads without a copy.

        Args:
            feeds: A contiguous array for every input, copied to that memory at each call; None
                makes arrays of zeros in the memory, for a model without free dimensions.

        Raises:
            ValueError: The arrays do not fit the inputs or cannot be bound, or the model is closed.
            DeviceError: The server does not answer or has no room, or the system no such memory.
        """
        try:
            bound = ServedBound(self._client, self._infer_json, self._facts().inputs, feeds)
        except OSError as error:
            raise DeviceError(f"there is no shared memory for the inputs: {error}") from error
        self._bounds.add(bound)
        return bound

    def _infer_json(self, message: bytes) -> dict[str, Tensor]:
        line = f"POST /v2/models/{self._name}/infer HTTP/1.1\r\nHost: localhost\r\n"
        head = f"{line}Content-Length: {len(message)}\r\n\r\n".encode()
        return _outputs_of(self._ask([head + message]), "")

    def run_batch(self, samples: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Run several inferences one after the other; see `Model.run_batch`."""
        return [self.run(feeds) for feeds in samples]

    async def run_async(self, feeds: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
        """Run an inference in a thread, so that the event loop goes on; see `Model.run_async`."""
        return await asyncio.to_thread(self.run, feeds)

    def session(self, *, hold_s: float = HOLD_S) -> "ServedSession":
        """Begin inferences that belong together: all run on the same release; see `Model.session`.

        Raises:
            ValueError: `hold_s` is out of range, or the model is closed.
            DeviceError: The server does not answer.
        """
        return ServedSession(self, hold_s=hold_s)

    @property
    def bundle(self) -> BundleRef:
        """The bundle that serves now."""
        return self._facts().bundle

    @property
    def choice(self) -> Choice:
        """Choice of the serving variant, with the reason."""
        return self._facts().choice

    @property
    def inputs(self) -> tuple[SessionTensor, ...]:
        """Inputs of the model that serves now, in its own order."""
        return self._facts().inputs

    @property
    def outputs(self) -> tuple[SessionTensor, ...]:
        """Outputs of the model that serves now, in its own order."""
        return self._facts().outputs

    @property
    def troubles(self) -> tuple[str, ...]:
        """Reasons why newer models could not be opened in the server, the last few."""
        return self._facts().troubles

    def close(self) -> None:
        """Close the connections; running inferences end undisturbed."""
        self._is_closed = True
        for bound in tuple(self._bounds):
            bound.close()
        self._client.close()

    def _release(self) -> ServedRelease:
        return ServedRelease(self, self._facts())

    def _begin_text(self, request: TextRequest) -> Generation:
        if self._is_closed:
            raise ValueError("the model is closed")
        return ServedGeneration(self._client, self._name, request)

    def _ask_release(self, act: Callable[[Release], T]) -> T:
        """Return the answer of a release; ask again if an update comes between.

        Raises:
            DeviceError: The release changes again and again.
        """
        for _ in range(MOST_RELEASES):
            try:
                return act(self._release())
            except ReleaseReplacedError:
                continue
        raise DeviceError(
            f"the release of model '{self._name}' changed {MOST_RELEASES} times during a question"
        )

    def infer(
        self, feeds: Mapping[str, Tensor] | Tensor, sequence: str, version: str = ""
    ) -> dict[str, Tensor]:
        """Run an inference of a sequence; "" runs on the serving release.

        Args:
            feeds: The inputs.
            sequence: Id of a sequence, or "".
            version: Version of the release that must run; "" for any release.

        Raises:
            ReleaseReplacedError: Another release ran.
            ValueError: The feeds do not fit the inputs, or the model is closed.
            DeviceError: The provider failed, or the server does not answer.
        """
        if not isinstance(feeds, Mapping):
            feeds = name_single(self._input_names, feeds)
        arrays = {name: _contiguous(name, value) for name, value in feeds.items()}
        shapes = ((name, array.dtype, feeds[name].shape) for name, array in arrays.items())
        key = (sequence, version, *shapes)
        head = self._heads.get(key)
        if head is None:
            head = self._head_of(feeds, arrays, sequence, version)
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[key] = head
        content = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
        try:
            return _outputs_of(self._ask([head, *content]), version)
        except DeviceError as error:
            if version and "serves version" in error.problem:
                raise ReleaseReplacedError from error
            raise

    def embed_texts(self, texts: Sequence[str], version: str) -> npt.NDArray[np.float32]:
        """Return the vectors of texts, (texts, dimensions).

        Args:
            texts: The texts.
            version: Version of the release that must run.

        Raises:
            ReleaseReplacedError: Another release ran.
            ValueError: A text does not fit, or the model is closed.
            DeviceError: The provider failed, or the server does not answer.
        """
        request = EmbeddingRequest(model=self._name, input=list(texts), encoding_format="base64")
        content = msgspec.json.encode(request)
        line = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
        head = f"{line}Content-Length: {len(content)}\r\n\r\n".encode()
        answer = _decode(self._ask([head, content]), EmbeddingAnswer)
        if answer.system_fingerprint != version:
            raise ReleaseReplacedError
        try:
            rows = [
                np.frombuffer(base64.b64decode(str(one.embedding), validate=True), "<f4")
                for one in answer.data
            ]
            return np.stack(rows).astype(np.float32)
        except ValueError as error:
            raise DeviceError(f"the answer of the model server is malformed: {error}") from error

    def complete_text(self, text: str, most: int | None) -> Completion:
        """Return the text of a text.

        Raises:
            ValueError: The text does not fit, the model makes no texts of texts, or the model is
                closed.
            DeviceError: The provider failed, or the server does not answer.
        """
        content = msgspec.json.encode({"model": self._name, "prompt": text, "max_tokens": most})
        line = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        head = f"{line}Content-Length: {len(content)}\r\n\r\n".encode()
        answer = _decode(self._ask([head, content]), CompletionAnswer)
        if not answer.choices or answer.usage is None:
            raise DeviceError("the answer of the model server is malformed: it has no text")
        (made,), used = answer.choices[:1], answer.usage
        return Completion(
            text=made.text,
            prompt_tokens=used.prompt_tokens,
            completion_tokens=used.completion_tokens,
            finish_reason=made.finish_reason or "",
        )

    def transcribe_sound(self, sound: Sound) -> Transcript:
        """Return the text of a sound.

        Raises:
            SoundError: A sample of an array is not finite.
            ValueError: The sound is malformed, the model makes no texts of sounds, or the model is
                closed.
            DeviceError: The provider failed, or the server does not answer.
        """
        boundary = secrets.token_hex(16)
        part = f'--{boundary}\r\nContent-Disposition: form-data; name="'
        before = f'{part}model"\r\n\r\n{self._name}\r\n{part}file"; filename="sound.wav"\r\n\r\n'
        content = [before.encode(), encode_wave(sound), f"\r\n--{boundary}--\r\n".encode()]
        head = (
            "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: multipart/form-data; boundary={boundary}\r\n"
            f"Content-Length: {sum(map(len, content))}\r\n\r\n"
        )
        answer = _decode(self._ask([head.encode(), *content]), Transcription)
        return Transcript(answer.text, answer.usage.seconds)

    def begin(self, sequence: SequenceRequest) -> SequenceAnswer:
        """Begin a sequence.

        Raises:
            ValueError: The model is closed.
            DeviceError: The server does not answer.
        """
        return self._post("sequences", msgspec.json.encode(sequence), SequenceAnswer)

    def end(self, sequence: str) -> None:
        """End a sequence.

        Raises:
            DeviceError: The server does not answer.
        """
        self._post(f"sequences/{sequence}/end", b"", dict)

    def _facts(self) -> ModelFacts:
        request = f"GET /v2/models/{self._name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        facts = _decode(self._ask([request]), ModelMetadata).parameters
        self._input_names = tuple(tensor.name for tensor in facts.inputs)
        return facts

    def _post(self, path: str, body: bytes, kind: type[T]) -> T:
        line = f"POST /v2/models/{self._name}/{path} HTTP/1.1\r\nHost: localhost\r\n"
        head = f"{line}Content-Length: {len(body)}\r\n\r\n".encode()
        return _decode(self._ask([head, body]), kind)

    def _ask(self, parts: list[bytes | memoryview]) -> Reply:
        if self._is_closed:
            raise ValueError("the model is closed")
        return self._client.ask(parts)

    def _head_of(
        self,
        feeds: Mapping[str, Tensor],
        arrays: Mapping[str, Tensor],
        sequence: str,
        version: str,
    ) -> bytes:
        """Return a request up to its binary tensors, which begin aligned."""
        inputs = [
            InputTensor(
                name=name,
                datatype=datatype_of_array(array),
                shape=list(feeds[name].shape),
                parameters=TensorParameters(binary_data_size=array.nbytes),
            )
            for name, array in arrays.items()
        ]
        parameters = RequestParameters(binary_data_output=True, sequence_id=sequence or 0)
        text = msgspec.json.encode(InferRequest(inputs=inputs, parameters=parameters))
        text += b" " * (-len(text) % _ALIGNMENT)
        length = len(text) + sum(array.nbytes for array in arrays.values())
        place = f"{self._name}/versions/{quote(version, safe='')}" if version else self._name
        head = (
            f"POST /v2/models/{place}/infer HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {length}\r\nInference-Header-Content-Length: {len(text)}\r\n\r\n"
        )
        return head.encode() + text


class ServedSession(Closing):
    """Inferences on a single release of a model in the model server; see `ModelSession`.

    A server that was started again continues the session, if the session's release still serves.
    """

    def __init__(self, model: ServedModel, *, hold_s: float) -> None:
        if not 0.0 <= hold_s <= MAX_HOLD_S:
            raise ValueError(f"hold_s is 0 to {MAX_HOLD_S:g} seconds, not {hold_s}")
        self._model, self._pid, self._is_closed = model, os.getpid(), False
        self._request = SequenceRequest(sequence_id=secrets.token_hex(16), hold_s=hold_s)
        self._begun = model.begin(self._request)

    def run(self, feeds: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
        """Run an inference on the session's release.

        Raises:
            ValueError: The feeds do not fit the inputs, or the session or the model is closed.
            DeviceError: The provider failed; or the session's release is no longer held.
        """
        if self._is_closed:
            raise ValueError("the session is closed")
        sequence = self._request.sequence_id
        try:
            return self._model.infer(feeds, sequence)
        except DeviceError as error:
            if f"has no sequence '{sequence}'" not in error.problem:
                raise
        begun = self._model.begin(self._request)
        if begun.bundle.digest != self._begun.bundle.digest:
            self._model.end(sequence)
            raise DeviceError(
                f"the session's release {self._begun.bundle.version} is no longer held: the model "
                f"server was started again, and version {begun.bundle.version} serves",
                remedy="begin a new session, with a new state",
            )
        return self._model.infer(feeds, sequence)

    @property
    def bundle(self) -> BundleRef:
        """The bundle that runs the session's inferences."""
        return self._begun.bundle

    @property
    def choice(self) -> Choice:
        """Choice of the variant of this session, with the reason."""
        return self._begun.choice

    def close(self) -> None:
        """End the session: its release may be freed. A forked child ends no session."""
        if not self._is_closed and self._pid == os.getpid():
            self._is_closed = True
            self._model.end(self._request.sequence_id)


def _contiguous(name: str, value: Any) -> Tensor:
    """Return a feed with its values one after the other.

    Raises:
        ValueError: The feed is not an array.
    """
    if not isinstance(value, np.ndarray):
        raise ValueError(  # noqa: TRY004 - one kind of error for what does not fit
            f"input '{name}' is a {type(value).__name__}, not a numpy array"
        )
    return value if value.flags.c_contiguous else np.ascontiguousarray(value)


def _decode(reply: Reply, kind: type[T]) -> T:
    try:
        return decode_json(bytes(reply.json), kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeviceError(f"the answer of the model server is malformed: {error}") from error


def _outputs_of(reply: Reply, version: str) -> dict[str, Tensor]:
    """Return the outputs of an answer, without a copy.

    Raises:
        ReleaseReplacedError: Another version answers.
        DeviceError: The answer is malformed.
    """
    outputs: dict[str, Tensor] = {}
    at = reply.json_length
    try:
        answer = _RESPONSE.decode(reply.json)
        if version and answer.model_version != version:
            raise ReleaseReplacedError
        for output in answer.outputs:
            parameters = output.parameters
            size = parameters.binary_data_size if parameters else None
            if size is None or size < 0:
                raise ValueError(f"output '{output.name}' is not binary")  # noqa: TRY301
            content = reply.body[at : at + size].view(dtype_of(output.name, output.datatype))
            outputs[output.name] = content.reshape(output.shape)
            at += size
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise DeviceError(f"the answer of the model server is malformed: {error}") from error
    return outputs
