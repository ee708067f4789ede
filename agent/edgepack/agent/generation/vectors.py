"""Vectors of texts: tokens go into an encoder, and its output is pooled as the bundle states."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.agent.generation.tokenizing import LETTERS_PER_TOKEN, TextTokenizer
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.bundle.generation import TOKENIZER, GoldenText
from edgepack.errors import BundleError, DeviceError
from edgepack.extras import install_command
from edgepack.tasks.inputs import TextInput

Rows = npt.NDArray[np.float32]
Text = str | Sequence[int]
"""A text, or its tokens with special tokens."""

_TOKENIZERS = "tokenizers"


def _mean(rows: Rows) -> Rows:
    return np.asarray(rows.mean(axis=0))


def _mean_sqrt(rows: Rows) -> Rows:
    return np.asarray(rows.sum(axis=0) / np.sqrt(np.float32(len(rows))))


def _weighted_mean(rows: Rows) -> Rows:
    weights = np.arange(1, len(rows) + 1, dtype=np.float32)
    return np.asarray((rows * weights[:, None]).sum(axis=0) / weights.sum())


POOLINGS: Mapping[str, Callable[[Rows], Rows]] = {
    "none": lambda rows: rows[0],
    "cls": lambda rows: rows[0],
    "mean": _mean,
    "max": lambda rows: np.asarray(rows.max(axis=0)),
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda rows: rows[-1],
}
"""Vector of a text by its tokens' vectors, float32 (tokens, dimensions)."""


def has_tokenizers() -> bool:
    """Check whether the package of tokenizers is installed."""
    return find_spec(_TOKENIZERS) is not None


def texts_need_package(what: str) -> DeviceError:
    """Return the error of a device without the package.

    Args:
        what: What needs the package, a plural.
    """
    return DeviceError(
        f"{what} need the package {_TOKENIZERS}, which is not installed",
        remedy=f"{install_command('generative')}, and open the model again",
    )


class TextVectors:
    """Tokenizer and pooling of an encoder; for any number of threads.

    Args:
        described: The input of texts.
        inputs: Inputs of the model.
        tokenizer: A `tokenizer.json`.

    Attributes:
        described: The input of texts.
        max_tokens: Tokens of a text, at most.

    Raises:
        BundleError: The files do not fit the model.
        DeviceError: The package is not installed.
    """

    def __init__(
        self, described: TextInput, inputs: Sequence[SessionTensor], tokenizer: bytes
    ) -> None:
        self.described = described
        self._tokenizer = TextTokenizer(tokenizer, described.vocabulary)
        self._inputs = tuple(inputs)
        named = {described.name, described.mask, described.types}
        unknown = sorted({one.name for one in inputs} - named)
        tokens = next((one for one in inputs if one.name == described.name), None)
        if unknown or tokens is None or len(tokens.shape) != 2:
            raise BundleError(
                f"the model has the inputs {', '.join(one.name for one in inputs)}, and texts fill "
                f"{', '.join(sorted(named - {''}))}",
                found_in=TOKENIZER,
            )
        length = tokens.shape[1]
        self._length = length if isinstance(length, int) else 0
        self.max_tokens = min(described.max_tokens, self._length or described.max_tokens)

    def tokens_of(self, text: Text) -> list[int]:
        """Return the tokens of a text.

        Raises:
            ValueError: The text is empty, too long, or has tokens that the model does not have.
        """
        described, most = self.described, self.max_tokens
        if not len(text):
            raise ValueError("it is empty")
        if not isinstance(text, str):
            tokens = list(text)
            highest = max(tokens)
            if min(tokens) < 0 or highest >= described.vocabulary:
                raise ValueError(f"its tokens are not all in 0 to {described.vocabulary - 1}")
        elif len(text) > LETTERS_PER_TOKEN * most:
            raise ValueError(f"it has {len(text)} characters, the model reads {most} tokens")
        else:
            tokens = self._tokenizer.tokens_of(described.prefix + text, has_special=False)
        if len(tokens) > most:
            raise ValueError(f"it has {len(tokens)} tokens, the model reads {most}")
        return tokens

    def feeds_of(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        """Return the inputs of a text."""
        length, described = self._length or len(tokens), self.described
        ids = np.full((1, length), described.pad)
        ids[0, : len(tokens)] = tokens
        mask = np.zeros_like(ids)
        mask[0, : len(tokens)] = 1
        values = {described.types: np.zeros_like(ids), described.mask: mask, described.name: ids}
        return {one.name: values[one.name].astype(one.dtype) for one in self._inputs}

    def vector_of(self, outputs: Mapping[str, Tensor], count: int) -> Rows:
        """Return the vector of a text, float32 (dimensions,).

        Args:
            outputs: Of the model.
            count: Tokens of the text.

        Raises:
            DeviceError: The output has another shape.
        """
        described = self.described
        output: npt.NDArray[Any] = outputs[described.output]
        value = output.astype(np.float32)
        rows = value if described.pooling == "none" else value.reshape(value.shape[-2:])[:count]
        vector = POOLINGS[described.pooling](rows)
        if vector.shape != (described.dimensions,):
            raise DeviceError(
                f"output '{described.output}' gives a vector of the shape {list(vector.shape)}, "
                f"and the bundle states {described.dimensions} values"
            )
        if described.normalize:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return vector.astype(np.float32)


Run = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


def compare_texts(
    vectors: TextVectors, golden: Sequence[GoldenText], run: Run, *, least: float | None
) -> tuple[bool, str]:
    """Compare tokens and vectors of this device with golden texts.

    1. The tokens must be equal.
    2. The cosine of all vectors together with the float model's must be high enough.

    Args:
        vectors: Tokenizer and pooling.
        golden: The golden texts; a text that is too long for the variant is passed over.
        run: Runs an inference.
        least: Least cosine; None if vectors are not compared.

    Returns:
        Whether both hold, and why.
    """
    expected, got = [], []
    for one in golden:
        if len(one.tokens) > vectors.max_tokens:
            continue
        try:
            tokens = vectors.tokens_of(one.text)
        except ValueError as error:
            return False, f"golden text {one.text!a:.60} has no tokens here: {error}"
        if tokens != one.tokens:  # 1
            return False, f"golden text {one.text!a:.60} has other tokens here than at the build"
        got.append(vectors.vector_of(run(vectors.feeds_of(tokens)), len(tokens)))
        expected.append(np.frombuffer(one.vector, "<f4"))
    sizes = {one.size for one in (*expected, *got)}
    if len(sizes) != 1:
        return False, f"golden texts have vectors of {sorted(sizes)} values here and at the build"
    first, second = (np.concatenate(them).astype(np.float64) for them in (expected, got))
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    cosine = float(first @ second) / lengths if lengths else 0.0
    words = f"{len(got)} golden texts have the build's tokens"
    if least is None:
        return True, f"{words}; their vectors are not evaluated"
    return cosine >= least, (  # 2
        f"{words}, and vectors with a cosine of {cosine:.4g}; {least:.4g} is right"
    )
