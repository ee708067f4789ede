"""Texts with answers: a decoder is evaluated with each token of an answer forced."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tensors.decoders import Decoder
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Integers, Outputs
from edgepack.tasks.contract import Agreement
from edgepack.tasks.details import FLOAT_PERPLEXITY
from edgepack.tasks.tokens.texts import TextCounts, compare_text, measure_texts


class DecoderReference(Protocol):
    """The float model's tokens: on texts with answers, or in chains of steps.

    Counts are what a comparison with one sample gives, a class for each kind of reference.
    """

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that the reference evaluates."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the samples."""
        ...

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why verdicts are weak, a sentence each, with what would settle the doubt."""
        ...

    @property
    def first(self) -> list[Outputs]:
        """The float model's outputs on the samples themselves."""
        ...

    @property
    def count(self) -> int:
        """Tokens of all samples."""
        ...

    def follow(self, run: Run, index: int) -> tuple[Outputs, Any]:
        """Return a candidate's outputs on a sample, and its counts."""
        ...

    def unchanged(self, index: int) -> Any:
        """Return the counts of the float model itself."""
        ...

    def measure(self, got: Sequence[Any]) -> Agreement:
        """Measure how well a candidate agrees, by its counts."""
        ...


class TextReference:
    """The float model's scores of some texts.

    Args:
        decoder: Names tokens and scores.
        samples: The texts.
        expected: The scores that count, a dict per text; see `Samples.evaluated`.
    """

    def __init__(self, decoder: Decoder, samples: Samples, expected: Sequence[Outputs]) -> None:
        self._decoder = decoder
        self._samples = samples
        self._expected = expected

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that texts evaluate: a cache's errors show in the scores."""
        return self._decoder.outputs

    @property
    def remarks(self) -> tuple[str, ...]:
        """None: every answer tells something."""
        return ()

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """A doubt if the float model knows the answers no better than a guess among all tokens."""
        own = self.measure([self.unchanged(index) for index in range(self._samples.count)])
        perplexity = own.details[FLOAT_PERPLEXITY]
        vocabulary = self._expected[0][self._decoder.scores].shape[-1]
        if perplexity < vocabulary:
            return ()
        return (
            f"the float model's perplexity of the answers is {perplexity:.4g}, and that of a guess "
            f"among its {vocabulary} tokens is {vocabulary}: the answers say little of the model. "
            "To settle it: give answers like those that the model was trained to write, and check "
            "its tokenizer and chat template",
        )

    @property
    def first(self) -> list[Outputs]:
        """The float model's last scores, a dict per text: the others are compared at once."""
        return [self._samples.golden(index, one) for index, one in enumerate(self._expected)]

    @property
    def count(self) -> int:
        """Tokens of all answers."""
        return sum(len(self._answer(index)) for index in range(self._samples.count))

    def follow(self, run: Run, index: int) -> tuple[Outputs, TextCounts]:
        """Compare a candidate on a text.

        Returns:
            Its last scores, and the comparison.
        """
        got = self._samples.evaluated(index, run(self._samples.read(index)))
        return self._samples.golden(index, got), self._compare(got, index)

    def unchanged(self, index: int) -> TextCounts:
        """Return the counts of the float model itself for a text."""
        return self._compare(self._expected[index], index)

    def measure(self, got: Sequence[TextCounts]) -> Agreement:
        """Measure how well a candidate agrees."""
        return measure_texts(got, self._decoder.scores)

    def _compare(self, got: Outputs, index: int) -> TextCounts:
        name = self._decoder.scores
        return compare_text(self._expected[index][name], got[name], self._answer(index))

    def _answer(self, index: int) -> Integers:
        tokens = self._samples.read(index)[self._decoder.tokens].reshape(-1)
        return tokens[-self._samples.answer_tokens(index) :].astype("int64")
