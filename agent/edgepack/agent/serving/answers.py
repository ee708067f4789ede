"""Questions that a person asks a model: pictures or sounds in, classes, boxes, text, areas or
vectors out.

The bundle states how a picture is prepared and what outputs mean. A question runs on one release
from the preparation to the answer: an update may bring another size, mean or order of classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edgepack.agent.generation.completions import Completion
from edgepack.agent.generation.transcripts import Transcript
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.pictures import answers
from edgepack.pictures.answers import MOST_LABELS
from edgepack.pictures.decode import PictureSource
from edgepack.pictures.frame import Frame
from edgepack.pictures.prepare import feed_picture
from edgepack.pictures.results import Answer, Box, Label
from edgepack.sound.waves import Sound, SoundSource, open_sound
from edgepack.tasks.description import ModelDescription

T = TypeVar("T")

Question = PictureSource | Mapping[str, Tensor]
"""A picture, or the arrays of `run`, for a model of other inputs."""


class Release(Protocol):
    """Release of a model that answers."""

    @property
    def description(self) -> ModelDescription:
        """Meaning of inputs and outputs, from the bundle."""

    @property
    def inputs(self) -> tuple[SessionTensor, ...]:
        """Inputs of the model, in its own order."""

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run an inference; see `Model.run`."""

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the vectors of texts, (texts, dimensions)."""

    def transcribe(self, sound: Sound) -> Transcript:
        """Return the text of a sound."""

    def complete(self, text: str, most: int | None) -> Completion:
        """Return the text of a text."""


class Answering(ABC):
    """Methods that answer questions; a subclass says which release answers.

    All raise `PictureError` for a picture that cannot be read, `ValueError` where the model does
    something else, takes no picture or several at once, and whatever `run` raises.
    """

    @abstractmethod
    def _release(self) -> Release:
        """Return the release that answers the next question."""

    def _ask_release(self, act: Callable[[Release], T]) -> T:
        """Return the answer of a release."""
        return act(self._release())

    @property
    def description(self) -> ModelDescription:
        """Meaning of inputs and outputs of the release that serves now, from its bundle."""
        return self._release().description

    def run_image(self, picture: Question) -> Answer:
        """Prepare a picture as in calibration, run an inference and return all answers.

        Args:
            picture: A path, the bytes of a file (PNG, JPEG, WebP, BMP, GIF, PPM or TIFF), or uint8
                pixels (height, width, 3), red first. A mapping of arrays is fed unchanged.

        Returns:
            The answers by the tasks of the model, and the outputs.

        Example:
            ```python
            from edgepack.agent import open_model

            with open_model("defects") as model:
                answer = model.run_image("part.png")
                print(answer.labels, answer.boxes, answer.text)
            ```
        """
        return self._ask_release(lambda release: answer_picture(release, picture))

    def classify(
        self, picture: Question, *, top: int = MOST_LABELS, output: str = ""
    ) -> tuple[Label, ...]:
        """Return the likeliest classes of a picture, the likeliest first.

        Args:
            picture: See `run_image`.
            top: Number of classes at most.
            output: The output that gives the classes, where several do.

        Example:
            ```python
            from edgepack.agent import open_model

            with open_model("defects") as model:
                for label in model.classify("part.png"):
                    print(label.name, round(label.score, 3))
            ```
        """

        def answer(release: Release) -> tuple[Label, ...]:
            outputs, _ = _ask(release, picture, "classify")
            return answers.classify(release.description, outputs, top=top, output=output)

        return self._ask_release(answer)

    def detect(self, picture: Question, *, least: float | None = None) -> tuple[Box, ...]:
        """Return the objects of a picture, with boxes in pixels of the picture.

        Args:
            picture: See `run_image`. A picture that EXIF turns is measured upright.
            least: Least score, 0 … 1; by default the usual threshold of the model's layout.
        """

        def answer(release: Release) -> tuple[Box, ...]:
            outputs, frame = _ask(release, picture, "detect")
            return answers.detect(release.description, outputs, frame, least=least)

        return self._ask_release(answer)

    def read(self, picture: Question) -> str:
        """Return the text of a picture.

        Args:
            picture: See `run_image`.
        """

        def answer(release: Release) -> str:
            return answers.read(release.description, _ask(release, picture, "read")[0])

        return self._ask_release(answer)

    def segment(self, picture: Question) -> npt.NDArray[np.int32]:
        """Return the class of each pixel of a picture.

        Args:
            picture: See `run_image`.

        Returns:
            int32 (height, width) of the picture; -1 where the model does not see the picture.
        """

        def answer(release: Release) -> npt.NDArray[np.int32]:
            outputs, frame = _ask(release, picture, "segment")
            return answers.segment(release.description, outputs, frame)

        return self._ask_release(answer)

    def embed(self, question: Question | Sequence[str]) -> npt.NDArray[Any]:
        """Return the embedding of a picture or of texts.

        Args:
            question: For a model of pictures see `run_image`. For an encoder of texts a text, or a
                list of texts.

        Returns:
            Of a picture, of the model's own dtype and length. Of a text float32 (dimensions,), of a
            list float32 (texts, dimensions): pooled and normalized as the bundle states. All texts
            of a list run on the same release.

        Example:
            ```python
            from edgepack.agent import open_model

            with open_model("sentences") as model:
                first, second = model.embed(["a river", "a stream"])
                print(float(first @ second))
            ```
        """

        def answer(release: Release) -> npt.NDArray[Any]:
            if isinstance(question, list | tuple):
                if not question:
                    raise ValueError("there are no texts")
                if not all(isinstance(text, str) for text in question):
                    raise ValueError("a list of texts has strings only")
                return release.embed_texts(question)
            if release.description.text is not None and not isinstance(question, Mapping):
                if not isinstance(question, str):
                    raise ValueError(
                        "the model embeds texts: give a text, a list of texts, or arrays"
                    )
                vector: npt.NDArray[Any] = release.embed_texts([question])[0]
                return vector
            picture: Any = question
            return answers.embed(release.description, _ask(release, picture, "embed")[0])

        return self._ask_release(answer)

    def transcribe(self, sound: SoundSource, *, rate: int | None = None) -> str:
        """Return the text of a sound: what is said there.

        A sound that is longer than a chunk of the model (30 s of Whisper) is cut into chunks that
        overlap, all on the same release, and their texts are joined.

        Args:
            sound: A path or the bytes of a WAV file (PCM of 8 to 32 bits, or floats), or an array
                (samples,) or (samples, channels): floats from -1 to 1, int16, int32 or uint8.
                Channels are mixed, and the rate becomes that of the model. At most an hour.
            rate: Samples per second of an array; None for a file.

        Raises:
            SoundError: The sound cannot be read.
            ValueError: The model makes no texts of sounds, or an array has no rate.
            DeviceError: The provider failed, or the package `tokenizers` is missing.

        Example:
            ```python
            from edgepack.agent import open_model

            with open_model("speech") as model:
                print(model.transcribe("words.wav"))
            ```
        """
        opened = open_sound(sound, rate)
        return self._ask_release(lambda release: release.transcribe(opened)).text

    def complete(self, text: str, *, max_tokens: int | None = None) -> str:
        """Return the text that an encoder-decoder makes of a text: a translation, a summary.

        The bundle states the rules of the text, such as beam search; see `generate` for decoders.

        Args:
            text: The text, with the prefix that the model was trained with, if any.
            max_tokens: Tokens of the result, at most; None for all that the model writes.

        Raises:
            ValueError: The text is empty or too long, or the model makes no texts of texts.
            DeviceError: The provider failed, or the package `tokenizers` is missing.

        Example:
            ```python
            from edgepack.agent import open_model

            with open_model("translator") as model:
                print(model.complete("The house is small."))
            ```
        """
        return self._ask_release(lambda release: release.complete(text, max_tokens)).text


def answer_picture(release: Release, picture: Question) -> Answer:
    """Return all answers of a release; see `Answering.run_image`."""
    outputs, frame = _ask(release, picture)
    return answers.answer_to(release.description, outputs, frame)


def _ask(
    release: Release, question: Question, ability: str = ""
) -> tuple[dict[str, Tensor], Frame | None]:
    """Run an inference on a prepared picture.

    Args:
        release: Answers.
        question: The picture.
        ability: Method of `ABILITIES` that the model must have; "" for none.

    Raises:
        ValueError: The model does something else, or takes no picture, or several at once.
        PictureError: The picture cannot be read.
    """
    if ability:
        answers.check_ability(release.description, ability)
    if isinstance(question, Mapping):
        return release.run(question), None
    names = [tensor.name for tensor in release.inputs]
    feeds, frame = feed_picture(question, release.description, names)
    return release.run(feeds), frame
