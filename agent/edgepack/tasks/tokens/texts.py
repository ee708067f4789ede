"""Agreement of a decoder with the float model on texts whose answers are known.

Both models read the same text at once, with an empty cache: each token of the answer is forced.
Two numbers decide. The perplexity of the answers, as a multiple of the float model's, is the
candidate's own quality; the mean Kullback-Leibler divergence is its distance from the float model
over all tokens, not only over the answer's. Choices that differ are reported: most of them are
places where the float model itself hesitates. A text is the unit of every interval, since the
tokens of a text resemble each other.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.number_format import format_metric
from edgepack.tasks.arrays import Bools, Floats, Integers, Tensor
from edgepack.tasks.contract import Agreement, Measure, Scale, agree
from edgepack.tasks.details import (
    DIVERGENCE,
    FLIP_MARGIN,
    FLIPPED_TOKENS,
    FLOAT_PERPLEXITY,
    FORCED_TOKENS,
    PERPLEXITY_RATIO,
    bounded,
)
from edgepack.tasks.intervals import independent, kept_low, ratio_bounds, share_bounds
from edgepack.tasks.tokens.measure import LIKELIHOOD, TASK, log_shares
from edgepack.text import counted

MOST_PERPLEXITY = 1.01
"""Perplexity of the answers, as a multiple of the float model's, at which 1 % of the task is
lost."""

ANSWERS = Scale(metric="answer_likelihood", least=1.0 / MOST_PERPLEXITY)

_PIECE_VALUES = 2**18
"""Scores that are compared at once, if a row has fewer: 2 MB of 64-bit floats."""

_MOST_NATS = 20.0
"""Of a token: what a model holds for impossible would count without end."""


class TextCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a candidate with the float model on a text.

    Rows are the places whose next token is compared: each token of the answer, and its end.

    Attributes:
        expected, got: Logarithms of the probability that the float model and the candidate give to
            each token of the answer, nats, (answer,).
        divergence: Kullback-Leibler divergence, nats, (rows,).
        same: Whether both models prefer the same token, (rows,).
        margin: By how much the float model finds its own token more probable than the candidate's,
            (rows,).
        was_right, is_right: Whether the float model and the candidate prefer the answer's token,
            (answer,).
    """

    expected: Floats
    got: Floats
    divergence: Floats
    same: Bools
    margin: Floats
    was_right: Bools
    is_right: Bools


def compare_text(expected: Tensor, got: Tensor, answer: Integers) -> TextCounts:
    """Compare a candidate's scores with the float model's.

    Args:
        expected: The float model's scores, (…, answer + 1, vocabulary): the rows before each token
            of the answer, and the row after its last token.
        got: The candidate's scores, alike; what is not a finite number counts as the worst score.
        answer: Tokens of the answer, integers (answer,).
    """
    pieces = [
        _compare_rows(expected[..., first:end, :], got[..., first:end, :], answer[first:end])
        for first, end in _pieces(expected.shape)
    ]
    fields = TextCounts.__struct_fields__
    return TextCounts(
        **{name: np.concatenate([getattr(one, name) for one in pieces]) for name in fields}
    )


def _pieces(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return where pieces of rows begin and end: 64-bit floats of all rows may fill the memory."""
    step = max(1, _PIECE_VALUES // shape[-1])
    return [(first, first + step) for first in range(0, shape[-2], step)]


def _compare_rows(expected: Tensor, got: Tensor, answer: Integers) -> TextCounts:
    """Compare some rows, with the tokens of the answer that follow these."""
    wanted, found = log_shares(expected), _finite_shares(got)
    shares = np.exp(wanted)
    best, chosen = wanted.argmax(axis=-1), found.argmax(axis=-1)
    rows, places = np.arange(len(wanted)), np.arange(len(answer))
    return TextCounts(
        expected=np.maximum(wanted[places, answer], -_MOST_NATS),
        got=np.maximum(found[places, answer], -_MOST_NATS),
        divergence=_divergence(wanted, found),
        same=best == chosen,
        margin=shares[rows, best] - shares[rows, chosen],
        was_right=best[places] == answer,
        is_right=chosen[places] == answer,
    )


def mean_divergence(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Return the mean Kullback-Leibler divergence of all rows of scores, nats.

    Args:
        expected, got: The float model's scores and others, (…, vocabulary) for each text.
    """
    pairs = zip(expected, got, strict=True)
    rows = [_divergence(log_shares(want), _finite_shares(have)) for want, have in pairs]
    return float(np.concatenate(rows).mean())


def _finite_shares(value: Tensor) -> Floats:
    return log_shares(np.nan_to_num(value.astype(np.float64), nan=-1e9, posinf=1e9, neginf=-1e9))


def _divergence(wanted: Floats, found: Floats) -> Floats:
    """Return the divergence of each row, from logarithms of probabilities (rows, tokens)."""
    shares = np.exp(wanted)
    terms = np.where(shares > 0.0, shares * (wanted - found), 0.0)
    return np.asarray(np.clip(terms.sum(axis=-1), 0.0, _MOST_NATS))


def measure_texts(texts: Sequence[TextCounts], output: str = "") -> Agreement:
    """Return the agreement over all texts, at least 1.

    Args:
        texts: The comparisons.
        output: Name of the scores.
    """
    answers = [float(len(text.got)) for text in texts]
    rows = [float(len(text.divergence)) for text in texts]
    added = [float((text.expected - text.got).sum()) for text in texts]
    diverging = [float(text.divergence.sum()) for text in texts]
    differing = [float((~text.same).sum()) for text in texts]
    flipped = [float((text.was_right != text.is_right).sum()) for text in texts]
    nats, divergence = sum(added) / sum(answers), sum(diverging) / sum(rows)
    ratio = math.exp(nats)
    divergence_low, divergence_high = ratio_bounds(diverging, rows)
    ratio_low, ratio_high = (math.exp(bound) for bound in ratio_bounds(added, answers))
    unflipped, unflipped_low, unflipped_high = _kept(flipped, answers)
    margins = np.concatenate([text.margin[~text.same] for text in texts])
    perplexity = Measure(
        scale=ANSWERS,
        value=math.exp(-nats),
        low=math.exp(kept_low(added, answers) - 1.0),
        output=output,
        words=f"perplexity of the answers {ratio:.4f} times the float model's",
    )
    likelihood = Measure(
        scale=LIKELIHOOD,
        value=math.exp(-divergence),
        low=math.exp(kept_low(diverging, rows) - 1.0),
        output=output,
        words=f"divergence of {divergence:.2g} nats a token from the float model",
    )
    details = {
        FLOAT_PERPLEXITY: math.exp(-np.concatenate([text.expected for text in texts]).mean()),
        **bounded(PERPLEXITY_RATIO, ratio, ratio_low, ratio_high),
        **bounded(DIVERGENCE, divergence, max(divergence_low, 0.0), divergence_high),
        **bounded(FORCED_TOKENS, *_kept(differing, rows)),
        **bounded(FLIPPED_TOKENS, 1.0 - unflipped, 1.0 - unflipped_high, 1.0 - unflipped_low),
        FLIP_MARGIN: float(margins.mean()) if margins.size else 0.0,
    }
    lost = np.array([text.divergence.mean() for text in texts])
    return agree(
        TASK.name,
        [perplexity, likelihood],
        np.asarray(1.0 - np.exp(-lost)),
        words=f"{perplexity.words}, {likelihood.words}",
        notes=_describe(texts, details),
        details=details,
    )


def _kept(lost: Sequence[float], whole: Sequence[float]) -> tuple[float, float, float]:
    """Return the share of tokens that are not lost, and its bounds, two-sided, 95 %."""
    share = 1.0 - sum(lost) / sum(whole)
    return (share, *share_bounds(share, independent(lost, whole)))


def _describe(texts: Sequence[TextCounts], details: dict[str, float]) -> tuple[str, ...]:
    """Return the results on texts, a sentence each."""
    tokens = sum(len(text.got) for text in texts)

    def with_bounds(name: str, form: str = "") -> str:
        value, low, high = (
            format(details[key], form) if form else format_metric(details[key])
            for key in (name, f"{name}_low", f"{name}_high")
        )
        return f"{value} (95 %: {low} to {high})"

    changed = 1.0 - details[FORCED_TOKENS]
    hesitates = (
        f", where the float model prefers its own token by {details[FLIP_MARGIN]:.2f} of the "
        "probability on average"
        if changed
        else ""
    )
    return (
        f"In {counted(len(texts), 'text')} with {counted(tokens, 'answer token')} the perplexity "
        f"of the answers is {with_bounds(PERPLEXITY_RATIO, '.4f')} times the float model's "
        f"({details[FLOAT_PERPLEXITY]:.4g}), and the divergence from the float model is "
        f"{with_bounds(DIVERGENCE, '.2g')} nats a token.",
        f"It prefers the float model's token in {with_bounds(FORCED_TOKENS)} of the places"
        f"{hesitates}. Of the answer tokens {with_bounds(FLIPPED_TOKENS)} are right in only one of "
        "both models.",
    )
