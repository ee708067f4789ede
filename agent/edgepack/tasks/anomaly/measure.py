"""Measure anomaly scores by their order and by the alarms that they raise.

A sample's score is the highest value of its output: a map raises an alarm by its worst place. The
worst of two measures decides: the share of pairs of samples in the float model's order, each
weighted by the distance between both scores, and F1 of the samples above the threshold. A crossing
costs less near the threshold, and counts in full from half of the mean distance on.

Without a declaration, the threshold is the score that the float model exceeds in 5 % of the
samples.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Tensor
from edgepack.tasks.classification.measure import one_miss
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.intervals import kept_low
from edgepack.tasks.level import LevelTask, percentile_of
from edgepack.tasks.one_output import Compared
from edgepack.tasks.order import keep_order
from edgepack.tasks.values.measure import measure_explained

ORDER = Scale(metric="order", least=0.99)
ALARMS = Scale(metric="alarm_f1", least=0.99)

_ALARMS = 95.0
"""Percentile of the float model's scores that is the threshold unless one is declared."""


def compare_scores(
    level: float, output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> Compared:
    """Compare the scores of one output; see `Compare`."""
    want = np.array([_score(value) for value in expected])
    have = np.array([_score(value) for value in got])
    unit = 0.5 * float(np.abs(want - level).mean()) or 1.0
    crossed = (want >= level) != (have >= level)
    losses = np.where(crossed, np.minimum(np.abs(want - level) / unit, 1.0), 0.0)
    alarms = (want >= level).sum() + (have >= level).sum()
    measures = []
    if alarms:
        whole = (want >= level).astype(np.float64) + (have >= level)
        value = 1.0 - float(losses.sum()) / float(alarms)
        measures.append(
            Measure(
                scale=ALARMS,
                value=value,
                low=kept_low(losses.tolist(), np.maximum(whole, 1e-9).tolist()),
                output=output,
                words=f"F1 {value:.4f} of the samples above the threshold {level:.4g}",
                may_differ=one_miss(len(want)),
            )
        )
    is_known = np.isfinite(want)
    order = keep_order(want[is_known, None], have[is_known, None]) if is_known.any() else None
    if order is not None:
        measures.append(
            Measure(
                scale=ORDER,
                value=order[0],
                low=order[1],
                output=output,
                words=f"{order[0]:.4f} of the pairs of samples in the float model's order",
            )
        )
    if not measures:
        explained, _ = measure_explained(output, expected, got)
        measures.append(explained)
    return Compared(measures=tuple(measures), losses=losses)


def _score(value: Tensor) -> float:
    """Return a sample's score: the highest finite value; -infinity without one."""
    flat = value.astype(np.float64).ravel()
    flat = flat[np.isfinite(flat)]
    return float(flat.max()) if flat.size else -np.inf


def usual_alarms(values: Sequence[Tensor]) -> float:
    """Return the score that the float model exceeds in 5 % of the samples."""
    return percentile_of([np.array([_score(value)]) for value in values], _ALARMS)


TASK = LevelTask(
    "anomaly", "the order of its scores and its alarms", "alarms", compare_scores, usual_alarms
)
