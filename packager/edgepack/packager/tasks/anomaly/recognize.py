"""Recognize anomaly scores by the names that Anomalib's exporter gives to outputs."""

from collections.abc import Sequence

from edgepack.tasks.arrays import Tensor
from edgepack.tasks.description import TaskOutputs

_NAMES = ("pred_score", "anomaly_score", "anomaly_map")


def recognize(name: str, values: Sequence[Tensor]) -> TaskOutputs | None:
    """Return the output as one of anomaly scores; None if its name or type is another.

    Args:
        name: Of the output.
        values: The float model's, one array a sample.
    """
    if name not in _NAMES or any(value.dtype.kind != "f" or not value.size for value in values):
        return None
    return TaskOutputs(task="anomaly", outputs=(name,), source="graph")
