"""Samples: source of calibration, evaluation and golden inputs.

A sample is the inputs of a single inference. Samples are read individually, so that memory does not
grow with their number.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.packager.tensors.decoders import Decoder
from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.description import IGNORED, NOTHING_KNOWN, UNKNOWN, ModelDescription

GOLDEN_ROWS = 8
"""Of a golden text, scores of the last places: a vocabulary may be large."""

Feeds = dict[str, Tensor]
"""Inputs of one inference by input name, in the model's dtypes and with the batch axis."""


def digest_of(feeds: Mapping[str, Tensor]) -> bytes:
    """Return SHA-256 of an inference's inputs, including names, dtypes and shapes."""
    digest = hashlib.sha256()
    for name in sorted(feeds):
        array = feeds[name]
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return digest.digest()


class State(msgspec.Struct, frozen=True, kw_only=True):
    """An input that receives an output of the previous inference."""

    input: str
    output: str


class Mask(msgspec.Struct, frozen=True, kw_only=True):
    """An input that tells which rows of a sample are padding.

    Attributes:
        input: Its name; [batch, rows], 0 where a row is padding.
        outputs: Outputs [batch, rows, …] with the same padding.
    """

    input: str
    outputs: tuple[str, ...]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """A fixed sequence of samples that can be read again and again, in the same order.

    Attributes:
        count: How many there are.
        read: Returns sample `i`, 0 <= i < count.
        source: Source of the samples, for messages and reports.
        states: Inputs that are fed from outputs; none where each sample stands for itself.
        mask: Mask of padding; None without padding.
        description: Meaning of the model's outputs.
        decoder: How tokens follow each other; None where the model is not a decoder.
        file_of: Returns the file of sample `i`; None without files.
        pictures_of: Returns the pictures that sample `i` was prepared from; None for arrays.
        answers: Of texts, returns how many tokens at the end of sample `i` are the answer; None
            for other samples.
        most_answer_tokens: Of an answer so many tokens at its end are evaluated, at most.
        steps: Samples of a series, which begins with a fresh state; the samples are whole series.
            0 where no one states that.
        doubt: Why a verdict on the samples is weak, with the remedy; "" without a reason.
    """

    count: int
    read: Callable[[int], Feeds]
    source: str
    states: tuple[State, ...] = ()
    mask: Mask | None = None
    description: ModelDescription = NOTHING_KNOWN
    decoder: Decoder | None = None
    file_of: Callable[[int], str] | None = None
    pictures_of: Callable[[int], tuple[Path, ...]] | None = None
    answers: Callable[[int], int] | None = None
    most_answer_tokens: int = sys.maxsize
    steps: int = 0
    doubt: str = ""

    def __iter__(self) -> Iterator[Feeds]:
        return (self.read(index) for index in range(self.count))

    def __len__(self) -> int:
        return self.count

    def pick(self, indices: Sequence[int]) -> "Samples":
        """Return the samples at the indices, in that order, as single samples."""
        chosen, pictures, answers = tuple(indices), self.pictures_of, self.answers
        return replace(
            self,
            count=len(chosen),
            steps=0,
            read=lambda index: self.read(chosen[index]),
            file_of=lambda index: self.title(chosen[index]),
            pictures_of=None if pictures is None else lambda index: pictures(chosen[index]),
            answers=None if answers is None else lambda index: answers(chosen[index]),
        )

    def extend(self, others: Sequence[tuple["Samples", int]]) -> "Samples":
        """Return these samples, and samples of other sequences after them; of series whole ones."""
        places = [*((self, index) for index in range(self.count)), *others]

        def pictures_of(index: int) -> tuple[Path, ...]:
            samples, number = places[index]
            return samples.pictures_of(number) if samples.pictures_of else ()

        def answers(index: int) -> int:
            samples, number = places[index]
            return samples.whole_answer_tokens(number)

        return replace(
            self,
            most_answer_tokens=min(one.most_answer_tokens for one, _ in places),
            count=len(places),
            read=lambda index: places[index][0].read(places[index][1]),
            file_of=lambda index: places[index][0].title(places[index][1]),
            pictures_of=pictures_of if self.pictures_of else None,
            answers=answers if self.answers else None,
        )

    @property
    def fed_only(self) -> tuple[str, ...]:
        """Outputs that feed the next inference and that nobody declares to read besides."""
        read = {
            name
            for part in self.description.parts
            if part.source == "declared" and part.task not in (IGNORED, UNKNOWN)
            for name in part.outputs
        }
        return tuple(state.output for state in self.states if state.output not in read)

    @property
    def are_texts(self) -> bool:
        """True if each sample is a text with an answer, for a model that scores tokens."""
        return self.answers is not None and self.decoder is not None

    def whole_answer_tokens(self, index: int) -> int:
        """Return how many tokens at the end of a text are its answer; 0 for other samples."""
        return 0 if self.answers is None else self.answers(index)

    def answer_tokens(self, index: int) -> int:
        """Return how many tokens at the end of a text are evaluated; 0 for other samples."""
        return min(self.whole_answer_tokens(index), self.most_answer_tokens)

    def evaluated(self, index: int, outputs: Outputs) -> Outputs:
        """Return the outputs of a sample that a verdict counts.

        Of a text these are the scores before each token of its answer and after the last one,
        [1, answer + 1, vocabulary]: nobody reads what a model would say inside the prompt.

        Args:
            index: The sample.
            outputs: The model's outputs on the sample.
        """
        return self._last_rows(outputs, self.answer_tokens(index) + 1)

    def golden(self, index: int, outputs: Outputs) -> Outputs:
        """Return the outputs of a sample that a device compares: of a text the last scores alone.

        Args:
            index, outputs: See `evaluated`.
        """
        return self._last_rows(outputs, min(self.answer_tokens(index) + 1, GOLDEN_ROWS))

    def _last_rows(self, outputs: Outputs, rows: int) -> Outputs:
        if self.answers is None or self.decoder is None:
            return outputs
        scores = outputs[self.decoder.scores]
        kept = scores[:, -rows:].copy() if scores.ndim > 2 else scores  # a view keeps all rows
        return {self.decoder.scores: kept}

    def title(self, index: int) -> str:
        """Return where a sample comes from, for messages."""
        return self.file_of(index) if self.file_of else f"{self.source}, sample {index}"

    def first(self, most: int) -> "Samples":
        """Return the first samples, at most `most`; of series whole ones, at least one."""
        few = max(most // self.steps, 1) * self.steps if self.steps else most
        return self.pick_series(range(min(self.count, few)))

    def pick_series(self, indices: Sequence[int]) -> "Samples":
        """Return the samples at the indices of whole series; see `pick`."""
        return replace(self.pick(indices), steps=self.steps)

    def spread(self, most: int) -> "Samples":
        """Return at most this number of samples, evenly spread."""
        few = min(self.count, most)
        return self.pick([number * self.count // few for number in range(few)])


class SampleSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Samples divided so that none is used for two purposes.

    Attributes:
        calibration: For ranges.
        search: For choosing between candidates (float islands, calibration method).
        held_out: For the accuracy gate and the golden inputs; seen by nothing else.
        golden: Places of the golden samples among the held-out samples, in a device's order.
        uncovered: Properties of the held-out samples that the samples for ranges do not cover, in
            sentences.
        extremes: Samples with likely extremes of an input, see `Coverage`; None without.
        sha256: Digest of the samples for ranges and for choosing, in order, hex; "" if unknown.
        held_out_sha256: Digest of the held-out samples, likewise.
    """

    calibration: Samples
    search: Samples
    held_out: Samples
    golden: tuple[int, ...] = ()
    uncovered: tuple[str, ...] = ()
    extremes: Samples | None = None
    sha256: str = ""
    held_out_sha256: str = ""

    def provider_samples(self, most: int) -> Samples:
        """Return the first samples for a provider: golden samples, in a device's order.

        Large samples make few golden samples: further held-out samples follow.

        Args:
            most: How many at the most.
        """
        others = (
            place for place in reversed(range(self.held_out.count)) if place not in self.golden
        )
        return self.held_out.pick((*self.golden, *others)[:most])
