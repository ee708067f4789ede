"""Measure of a decoder by its next token, step by step.

A token that differs costs as much as the float model finds the other token less likely: a float
model that hesitates between two tokens is no truth. The likelihood of all tokens counts too.

The build measures more: texts with answers (`texts`), or chains of steps, in which errors grow
through the cache (`agreement`).
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.classification.measure import compare_rows, one_miss, same_decisions
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.intervals import kept_low
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch, sketch_decisions

TOKENS_KEPT = Scale(metric="token_agreement", least=0.99)

MOST_DIVERGENCE = 0.005
"""Nats: mean Kullback-Leibler divergence of all tokens at which 1 % of the task is lost."""

LIKELIHOOD = Scale(metric="token_likelihood", least=math.exp(-MOST_DIVERGENCE))


def compare_tokens(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the tokens that the scores of an output choose; see `Compare`."""
    same = [same_decisions(want, have) for want, have in zip(expected, got, strict=True)]
    found = compare_rows(output, same)
    rows = found.measures[0]
    measure = Measure(
        scale=TOKENS_KEPT,
        value=rows.value,
        low=rows.low,
        output=output,
        may_differ=one_miss(int(np.sum([row.size for row in same]))),
    )
    pairs = list(zip(expected, got, strict=True))
    if not all(_are_scores(*pair) for pair in pairs):
        return Compared(measures=(measure,), losses=found.losses)
    costs, told, count = [], [], []
    for want, have in pairs:
        first, second = log_shares(want), log_shares(have)
        in_use = np.isfinite(first).all(axis=-1)
        first, second = first[in_use], second[in_use]
        shares = np.exp(first)
        chosen = np.take_along_axis(shares, second.argmax(axis=-1)[:, None], axis=-1)[:, 0]
        costs.append(float((shares.max(axis=-1) - chosen).sum()))
        told.append(float((shares * (first - second)).sum()))
        count.append(float(max(len(first), 1)))
    cost = sum(costs) / sum(count)
    added = sum(told) / sum(count)
    likelihood = Measure(
        scale=LIKELIHOOD,
        value=float(np.exp(-added)),
        low=float(np.exp(kept_low(told, count) - 1.0)),
        output=output,
    )
    weighted = replace(measure, value=1.0 - cost, low=kept_low(costs, count))
    losses = np.maximum(np.array(costs), 1.0 - np.exp(-np.array(told))) / np.array(count)
    return Compared(measures=(weighted, likelihood), losses=losses)


def _are_scores(want: Tensor, have: Tensor) -> bool:
    """Return whether rows are scores of tokens that can be compared."""
    is_row = want.dtype.kind == "f" and bool(want.ndim) and want.shape[-1] > 1
    return is_row and want.shape == have.shape and bool(np.isfinite(have[np.isfinite(want)]).all())


def log_shares(value: Tensor) -> Floats:
    """Return scores as logarithms of the tokens' probabilities, float64 (rows, tokens)."""
    rows = value.astype(np.float64).reshape(-1, value.shape[-1])
    rows = rows - rows.max(axis=-1, keepdims=True)
    return np.asarray(rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True)))


def sketch_tokens(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return the share of each chosen token, and the confidence."""
    return replace(sketch_decisions(part, outputs), share_words="share of {} among tokens")


TASK = ValueTask(
    "tokens", "the float model's tokens", "tokens", compare_tokens, sketch_tokens, is_decision=True
)
