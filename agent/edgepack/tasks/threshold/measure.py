"""Measure of thresholded scores by the F1 of scores above the threshold.

The threshold is declared, else .5 of probabilities and 0 of logits. A score on the other side
costs the less the nearer the float model itself was to the threshold: by its probability p,
|2 p - 1| of a right answer.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.intervals import kept_low
from edgepack.tasks.level import LevelTask
from edgepack.tasks.likelihood import are_probabilities
from edgepack.tasks.one_output import Compared
from edgepack.tasks.values.measure import measure_strictly

CROSSINGS = Scale(metric="threshold_f1", least=0.99)

FEWEST_FOUND = 20
"""Scores above the threshold, all samples together, that tell something."""


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
    return Compared(measures=(found[0],), losses=found[1])


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
