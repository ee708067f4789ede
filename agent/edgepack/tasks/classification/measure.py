"""Measure of decisions: the winning class, in each sample or in each row of a sample.

Whole numbers are decisions of the model itself: these must be equal.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Bools, Floats, Tensor, are_whole
from edgepack.tasks.classification.decisions import costs_of_changes, expected_cost
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.intervals import kept_low, share_low
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import sketch_decisions
from edgepack.tasks.values.measure import measure_explained

ONE_MISS_FROM = 10
"""From this many samples on, one may differ whatever the budget: below 1/budget samples a single
coin flip would refuse a build."""

TOP1 = Scale(metric="top1_agreement", least=0.98)
ROWS = Scale(metric="sequence_agreement", least=0.985)
"""Of many decisions in a sample. In trials a text recognizer lost 1.3 % of its lines for each 1 %
of its characters."""


def one_miss(count: int) -> float:
    """Return the share of samples that may always differ: 1 of `count`; 0 if `count` is small."""
    return 0.0 if count < ONE_MISS_FROM else 1.0 / count


def is_one_decision(value: Tensor) -> bool:
    """Return True if an output of a sample holds a single decision, not several rows of classes."""
    if value.dtype.kind != "f" or not value.ndim:
        return value.size <= 1
    return bool(value.size <= value.shape[-1])


def compare_decisions(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the decisions of an output; see `Compare`.

    Floats without a row of classes that are whole numbers are decisions. Other such floats decide
    nothing: their values are compared.
    """
    first = next((value for value in expected if value.size), expected[0])
    if first.dtype.kind == "f" and (not first.ndim or first.shape[-1] < 2):
        if first.size and are_whole(expected):
            whole = [_as_whole(value) for value in expected]
            same = [
                same_decisions(want, _as_whole(have)) for want, have in zip(whole, got, strict=True)
            ]
            if first.size == 1:
                return _compare_samples(output, expected, got, same)
            return compare_rows(output, same)
        measure, losses = measure_explained(output, expected, got)
        return Compared(measures=(measure,), losses=losses)
    pairs = zip(expected, got, strict=True)
    same = [same_decisions(want, have) for want, have in pairs]
    if is_one_decision(first):
        return _compare_samples(output, expected, got, same)
    return compare_rows(output, same)


def _as_whole(value: Tensor) -> Tensor:
    """Return the nearest whole numbers; -1 for what is none."""
    return np.nan_to_num(np.rint(value.astype(np.float64)), nan=-1.0).astype(np.int64)


def _compare_samples(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor], same: Sequence[Bools]
) -> Compared:
    is_same = np.array([row.all() for row in same])
    share, count = float(is_same.mean()), len(same)
    are_scores = expected[0].dtype.kind == "f" and expected[0].size > 1
    costs = costs_of_changes(expected, got) if are_scores else None
    loss, loss_low = (are_scores and expected_cost(expected, got)) or (None, None)
    measure = Measure(
        scale=TOP1,
        value=share,
        low=share_low(share, count),
        output=output,
        may_differ=one_miss(count),
        cost=None if costs is None else float(costs.mean()),
        expected_loss=loss,
        expected_loss_low=loss_low,
    )
    losses = 1.0 - is_same.astype(np.float64) if costs is None else costs
    return Compared(measures=(measure,), losses=losses)


def compare_rows(output: str, same: Sequence[Bools]) -> Compared:
    """Compare many decisions in each sample.

    Args:
        output: Its name.
        same: Equality of each sample's decisions.
    """
    differ = [float(row.size - row.sum()) for row in same]
    count = [float(row.size) for row in same]
    share = 1.0 - sum(differ) / max(sum(count), 1.0)
    low = kept_low(differ, count) if sum(differ) else share_low(1.0, max(int(sum(count)), 1))
    measure = Measure(scale=ROWS, value=share, low=low, output=output)
    losses: Floats = np.array(differ) / np.maximum(np.array(count), 1.0)
    return Compared(measures=(measure,), losses=losses)


def same_decisions(want: Tensor, have: Tensor) -> Bools:
    """Return the equality of each decision in a sample.

    Args:
        want: The float model's scores, or decisions that are taken; rows with NaN are padding.
        have: The candidate's; incomparable values (shape, NaN) count as different.
    """
    if want.dtype.kind != "f" or not want.ndim:
        same = want == have if want.shape == have.shape else np.zeros(max(want.size, 1))
        return np.atleast_1d(same).ravel().astype(np.bool_)
    in_use = ~np.isnan(want).any(axis=-1).ravel()
    none_of_them = np.zeros(max(int(in_use.sum()), 1), dtype=np.bool_)
    if want.shape != have.shape or not want.size:
        return none_of_them if want.size else np.ones(1, dtype=np.bool_)
    if not np.isfinite(have).all(axis=-1).ravel()[in_use].all():
        return none_of_them
    same = np.atleast_1d(want.argmax(axis=-1) == have.argmax(axis=-1)).ravel()
    return np.asarray(same[in_use], dtype=np.bool_)


TASK = ValueTask(
    "classification",
    "the float model's decisions",
    "classes",
    compare_decisions,
    sketch_decisions,
    is_decision=True,
)
