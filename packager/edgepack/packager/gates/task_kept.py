"""What a number of a metric stands for: how much is kept of what the float model is used for."""

import math

from edgepack.packager.metrics.kinds import METRICS, MOST_DECIBELS, MetricName
from edgepack.packager.profiles.schema import AccuracyGate

TASK_LOSS = 0.01
"""Share of its task that a model may lose: each default budget was chosen to stand for it."""

_DEFAULTS = AccuracyGate()


def task_kept(name: MetricName, value: float) -> float:
    """Expected share of the task, 0…1, by how much of the metric's default budget is used up.

    Args:
        name: The metric.
        value: Its value; decibels count as the power of an error.
    """
    metric = METRICS[name]
    least: float = getattr(_DEFAULTS, metric.budget)
    if metric.best == MOST_DECIBELS:
        used = math.pow(10.0, (least - max(value, -MOST_DECIBELS)) / 10.0)
    else:
        used = (metric.best - min(value, metric.best)) / (metric.best - least)
    return max(0.0, 1.0 - TASK_LOSS * used)
