"""Texts of sounds: features go into a model of speech, and its tokens become a text.

A sound that is longer than a chunk is cut into chunks that overlap by a third. The texts of two
neighbours are joined where their tokens are alike, as transformers' pipeline does without times.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgepack.agent.generation.tokenizing import TextTokenizer
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.bundle.generation import TOKENIZER
from edgepack.errors import BundleError
from edgepack.sound.features import cut_sound, prepare_sound
from edgepack.sound.waves import Sound
from edgepack.tasks.inputs import SoundInput

Run = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]

_TIDY = {f" {sign}": sign for sign in (".", "?", "!", ",")} | {
    " ' ": "'",
    **{f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")},
}
"""Replacements of transformers' `clean_up_tokenization`, in their order."""
_LONGER = 1e-4
"""Advantage of a match for each token that it is longer: transformers'."""


class Transcript(NamedTuple):
    """Text of a sound.

    Attributes:
        text: The text.
        seconds: Duration of the sound.
    """

    text: str
    seconds: float


class Transcriber:
    """Preparation of sounds and tokenizer of a model of speech; for any number of threads.

    Args:
        described: The input of sounds.
        inputs: Inputs of the model.
        tokenizer: A `tokenizer.json`.

    Raises:
        BundleError: The files do not fit the model.
        DeviceError: The package of tokenizers is not installed.
    """

    def __init__(
        self, described: SoundInput, inputs: Sequence[SessionTensor], tokenizer: bytes
    ) -> None:
        self.described = described
        self._tokenizer = TextTokenizer(tokenizer, described.vocabulary)
        self._special = self._tokenizer.special_tokens()
        own = {one.name: one for one in inputs}.get(described.name)
        fits = own is not None and len(inputs) == 1 and own.dtype in ("float32", "float16")
        if own is None or not fits or not _fits(own.shape, (1, described.mels, described.frames)):
            raise BundleError(
                f"the model takes {', '.join(f'{one.name} {list(one.shape)}' for one in inputs)}, "
                f"and a sound fills {described.name} [1, {described.mels}, {described.frames}]",
                found_in=TOKENIZER,
                remedy="build the bundle with the preprocessor_config.json of its model",
            )
        self._dtype = own.dtype

    def feeds_of(self, sound: Sound) -> Iterator[dict[str, Tensor]]:
        """Yield the inputs of each chunk of a sound.

        Raises:
            SoundError: A sample is not finite.
        """
        for samples in cut_sound(sound, self.described):
            features = prepare_sound(samples, self.described)
            yield {self.described.name: features.astype(self._dtype, copy=False)}

    def text_of(self, outputs: Sequence[Mapping[str, Tensor]]) -> str:
        """Return the text of the outputs for all chunks of a sound, in their order."""
        end = self.described.timestamps or self.described.vocabulary
        texts = [
            np.array([one for one in tokens if one < end and one not in self._special], np.int64)
            for tokens in (made[self.described.output].ravel().tolist() for made in outputs)
        ]
        text = self._tokenizer.decode(join_tokens([one for one in texts if one.size]))
        for old, new in _TIDY.items() if self.described.tidy else ():
            text = text.replace(old, new)
        return text

    def transcribe(self, sound: Sound, run: Run) -> Transcript:
        """Return the text of a sound.

        Args:
            sound: The sound.
            run: Runs an inference on a chunk.

        Raises:
            SoundError: A sample is not finite.
            Exception: Whatever `run` raises.
        """
        outputs = [run(feeds) for feeds in self.feeds_of(sound)]
        return Transcript(self.text_of(outputs), sound.seconds)


def join_tokens(texts: Sequence[npt.NDArray[np.int64]]) -> list[int]:
    """Join the tokens of chunks that overlap.

    Of all ways to lay the end of a text over the beginning of the next, the one with the most equal
    tokens counts, if at least two are equal. The left text holds up to the middle of the overlap.
    """
    joined: list[int] = []
    if not texts:
        return joined
    left = texts[0]
    for right in texts[1:]:
        best, place = 0.0, (len(left), len(left), 0, 0)
        for shift in range(1, len(left) + len(right)):
            start, stop = max(0, len(left) - shift), min(len(left), len(left) + len(right) - shift)
            first, last = max(0, shift - len(left)), min(len(right), shift)
            matches = int((left[start:stop] == right[first:last]).sum())
            score = matches / shift + shift * _LONGER
            if matches > 1 and score > best:
                best, place = score, (start, stop, first, last)
        start, stop, first, last = place
        joined += left[: (start + stop) // 2].tolist()
        left = right[(first + last) // 2 :]
    joined += left.tolist()
    return joined


def _fits(shape: Sequence[int | str], sizes: Sequence[int]) -> bool:
    return len(shape) == len(sizes) and all(
        isinstance(have, str) or have == want for have, want in zip(shape, sizes, strict=True)
    )
