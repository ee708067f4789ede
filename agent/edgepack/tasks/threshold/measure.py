"""Measure of thresholded scores by the F1 of scores above the threshold.

The threshold is declared, else .5 of probabilities and 0 of logits. A score on the other side
costs the less the nearer the float model itself was to the threshold: by its probability p,
|2 p - 1| of a right answer.

Columns that are ordered in every sample are the steps of a grade: most scores are certain, so F1
hardly changes while the count of scores above the threshold moves.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Floats, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.intervals import kept_low
from edgepack.tasks.level import LevelTask
from edgepack.tasks.likelihood import are_probabilities, logits
from edgepack.tasks.one_output import Compared
from edgepack.tasks.values.measure import measure_strictly
from edgepack.tasks.values.strict import has_ordered_columns

CROSSINGS = Scale(metric="threshold_f1", least=0.99)
GRADES = Scale(metric="grade_kept", least=0.99)
"""Of grades of an ordinal model with .976 of it, .980 of the skill (mean square) was left."""

FEWEST_FOUND = 29
"""Scores above the threshold: if a tenth of them crossed, one of 29 would (95 %)."""


def compare_crossings(
    level: float, output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> Compared:
    """Compare the scores of an output with their threshold; see `Compare`."""
    found = measure_crossings(output, expected, got, level)
    if found is None:
        measures, losses = measure_strictly(output, expected, got)
        doubt = (
            f"fewer than {FEWEST_FOUND} scores of output '{output}' are above the threshold "
            f"{level:g}, so its values are measured"
        )
        return Compared(measures=tuple(measures), losses=losses, doubt=doubt)
    grades = measure_grades(output, expected, got, level)
    if grades is None:
        return Compared(measures=(found[0],), losses=found[1])
    return Compared(measures=(found[0], grades[0]), losses=np.maximum(found[1], grades[1]))


def measure_grades(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor], level: float
) -> tuple[Measure, Floats] | None:
    """Measure the count of scores above the threshold, where columns are ordered as grades are.

    The sum of the scores' probabilities is the expected grade. Where grades are as likely near a
    step as between steps, an error of the expected grade costs its mean square: few samples show
    this error, and seldom a changed count.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.
        level: The threshold.

    Returns:
        The measure and the loss of each sample; None where columns are not ordered in all samples,
        or the count is the same.
    """
    if len(expected) < FEWEST_FOR_SPREAD or not has_ordered_columns(expected):
        return None
    pairs = [flat_pair(*pair) for pair in zip(expected, got, strict=True)]
    whole = np.array([(want >= level).sum() for want, _ in pairs], np.float64)
    whole = (whole - whole.mean()) ** 2
    if not whole.any():
        return None
    are_shares = are_probabilities(expected)
    grades = [[_likely(values, level, are_shares).sum() for values in pair] for pair in pairs]
    costs = np.diff(np.array(grades), axis=1)[:, 0] ** 2
    value = 1.0 - float(costs.sum() / whole.sum())
    measure = Measure(
        scale=GRADES,
        value=value,
        low=kept_low(costs.tolist(), whole.tolist()),
        output=output,
        words=f"{value:.4f} of the variance of the number of ordered scores above the threshold "
        f"{level:g} in output '{output}'",
    )
    return measure, np.minimum(costs * len(costs) / whole.sum(), 1.0)


def measure_crossings(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor], level: float | None = None
) -> tuple[Measure, Floats] | None:
    """Measure which scores are above the threshold.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.
        level: The threshold; by default .5 of probabilities and 0 of logits.

    Returns:
        The measure and the loss of each sample; None if too few scores are above the threshold.
    """
    is_probability = are_probabilities(expected)
    level = usual_threshold(expected) if level is None else level
    reach = max(level, 1.0 - level)
    lost, whole, above = [], [], 0
    for want, have in (flat_pair(*pair) for pair in zip(expected, got, strict=True)):
        costs = np.abs(want - level) / reach if is_probability else _cost_of_logits(want - level)
        crossed = (want >= level) != (have >= level)
        lost.append(float(costs[crossed].sum()))
        whole.append(float((want >= level).sum() + (have >= level).sum()))
        above += int((want >= level).sum())
    if above < FEWEST_FOUND:
        return None
    value = 1.0 - sum(lost) / max(sum(whole), 1.0)
    measure = Measure(
        scale=CROSSINGS,
        value=value,
        low=kept_low(lost, [max(count, 1e-9) for count in whole]),
        output=output,
        words=f"F1 {value:.4f} of what is above the threshold {level:g} in output '{output}'",
    )
    return measure, np.array(lost) / np.maximum(np.array(whole), 1.0)


def _likely(scores: Floats, level: float, are_shares: bool) -> Floats:
    """Return the probabilities of scores above the threshold, .5 at the threshold itself."""
    distances = logits(scores) - logits(np.asarray(level)) if are_shares else scores - level
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(distances, -60.0, 60.0))))


def usual_threshold(values: Sequence[Tensor]) -> float:
    """Return .5 of probabilities and 0 of logits."""
    return 0.5 if are_probabilities(values) else 0.0


def _cost_of_logits(distances: Floats) -> Floats:
    """Return |2 p - 1| of the probabilities of logits."""
    shares = 1.0 / (1.0 + np.exp(-np.clip(distances, -60.0, 60.0)))
    return np.asarray(np.abs(2.0 * shares - 1.0))


TASK = LevelTask(
    "threshold",
    "which of its scores are above the threshold",
    "crossings of the threshold",
    compare_crossings,
    usual_threshold,
)
