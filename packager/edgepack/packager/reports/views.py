"""Views of a report's facts for the page: selection and order."""

import math
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from edgepack.bundle.manifest import Accuracy
from edgepack.packager.reports.plot import Point
from edgepack.packager.reports.reasons import best_attempt, is_float_instead
from edgepack.packager.reports.report import MeasuredVariant, VariantReport
from edgepack.packager.runtime.inspection import Inspection, LayerError, TensorRange
from edgepack.packager.runtime.unassigned_nodes import UnassignedNode
from edgepack.packager.search.attempts import Attempt

MOST_LAYERS = 12
MOST_RANGES = 10
_MOST_MORE = 60
_LONG_PREFIX = 8


def worst_layers(inspection: Inspection) -> tuple[LayerError, ...]:
    """Return the layers with the greatest error, worst first."""
    ranked = sorted(inspection.layers, key=lambda layer: (-layer.nrmse, layer.tensor))
    return tuple(ranked[:MOST_LAYERS])


def notable_ranges(inspection: Inspection) -> tuple[TensorRange, ...]:
    """Return a few ranges: first with outliers, then with clipping, then the widest."""
    return _ranked_ranges(inspection)[:MOST_RANGES]


def more_ranges(inspection: Inspection) -> tuple[TensorRange, ...]:
    """Return the next ranges."""
    return _ranked_ranges(inspection)[MOST_RANGES : MOST_RANGES + _MOST_MORE]


def outlier_count(inspection: Inspection) -> int:
    """Return the number of ranges with outliers."""
    return sum(entry.has_outliers for entry in inspection.ranges)


def _ranked_ranges(inspection: Inspection) -> tuple[TensorRange, ...]:
    return tuple(
        sorted(
            inspection.ranges,
            key=lambda entry: (
                not entry.has_outliers,
                -entry.clipped_share,
                -entry.outlier_factor,
                entry.tensor,
            ),
        )
    )


def size_points(result: MeasuredVariant, float_bytes: int) -> tuple[Point, ...]:
    """Return every attempt by its size, and the float model."""
    return (
        _float_point(result, float(float_bytes)),
        *(
            _point(number, attempt, float(attempt.size_bytes), result)
            for number, attempt in enumerate(result.attempts, start=1)
        ),
    )


def latency_points(result: MeasuredVariant) -> tuple[Point, ...]:
    """Return the attempts that were timed, and the float model; none where none was."""
    timing = result.timing if isinstance(result, VariantReport) else None
    points = []
    for number, attempt in enumerate(result.attempts, start=1):
        if attempt.latency_ms is not None:
            points.append(_point(number, attempt, attempt.latency_ms, result))
    if not points:
        return ()
    if timing and timing.float_latency_ms:
        points.append(_float_point(result, timing.float_latency_ms))
    return tuple(points)


def _point(number: int, attempt: Attempt, x: float, result: MeasuredVariant) -> Point:
    return Point(
        label=str(number),
        words=attempt.what,
        x=x,
        accuracy=attempt.accuracy,
        kind="kept" if holds(attempt, result.accuracy) else "missed",
        is_winner=attempt == winner(result),
    )


def judged_by(result: MeasuredVariant) -> tuple[str, ...]:
    """Return the metrics of the attempts, each once: the deciding metric of each attempt."""
    return tuple(dict.fromkeys(each.metric or result.accuracy.metric for each in result.attempts))


def holds(attempt: Attempt, accuracy: Accuracy) -> bool:
    """Return True if an attempt was within the budget; in older reports by that of the verdict."""
    return attempt.accuracy >= (accuracy.budget if attempt.budget is None else attempt.budget)


def winner(result: MeasuredVariant) -> Attempt | None:
    """Return the attempt that is published; None where the float model is, or nothing."""
    is_published = isinstance(result, VariantReport) and not is_float_instead(result)
    return best_attempt(result.attempts) if is_published else None


def _float_point(result: MeasuredVariant, x: float) -> Point:
    return Point(
        label="",
        words="the float model",
        x=x,
        accuracy=result.accuracy.float_value,
        kind="float",
        is_winner=isinstance(result, VariantReport) and is_float_instead(result),
    )


class LeftGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of an operator that a provider left for the same reason."""

    op: str
    reason: str
    names: tuple[str, ...]


def group_left(nodes: Sequence[UnassignedNode]) -> tuple[LeftGroup, ...]:
    """Return nodes that were left, by operator and reason; the largest group first."""
    names: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        names.setdefault((node.op, node.reason), []).append(node.name)
    groups = (
        LeftGroup(op=op, reason=reason, names=tuple(found)) for (op, reason), found in names.items()
    )
    return tuple(sorted(groups, key=lambda group: (-len(group.names), group.op, group.reason)))


def shared_prefix(names: Sequence[str]) -> str:
    """Return the common prefix of all names, up to a `/`: exporters repeat a model's path.

    Returns:
        The prefix without its last `/`; "" for a short prefix, or a single name.
    """
    if len(names) < 2:
        return ""
    parts = [name.split("/")[:-1] for name in names]
    shared = takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))
    prefix = "/".join(part[0] for part in shared)
    return prefix if len(prefix) >= _LONG_PREFIX else ""


def noisiest(values: Sequence[float]) -> float:
    """Return the greatest value, for bars; never 0."""
    return max((*values, 1e-9))


def depth_floor(layers: Sequence[LayerError]) -> float:
    """Return the power of ten at or below the least error, between 1e-5 and 1e-2."""
    least = min((layer.nrmse for layer in layers), default=1e-2)
    return float(min(max(10.0 ** math.floor(math.log10(max(least, 1e-5))), 1e-5), 1e-2))


def depth_grid(floor: float) -> tuple[tuple[float, str], ...]:
    """Return the grid lines of `depth`: share of the height from the top, and label."""
    steps = round(-math.log10(floor))
    return tuple(
        (step / steps, f"{100 * 10.0**-step:.10f}".rstrip("0").rstrip(".") + " %")
        for step in range(steps + 1)
    )


def log_share(value: float, floor: float) -> float:
    """Return share of the height that a value has on the logarithmic scale of `depth`, 0…1."""
    return within(1 - math.log10(max(value, floor)) / math.log10(floor))


def within(share: float) -> float:
    """Return a share for drawing, clipped to 0…1."""
    return min(max(share, 0.0), 1.0)
