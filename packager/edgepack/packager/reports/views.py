"""What the page shows of a report's facts: which of them, in which order."""

from collections.abc import Sequence
from itertools import takewhile

from edgepack.packager.judging.inspection import Inspection
from edgepack.packager.judging.layers import LayerError
from edgepack.packager.judging.ranges import TensorRange
from edgepack.packager.reports.plot import Point
from edgepack.packager.reports.report import RefusedCandidate, TriedAttempt, VariantReport

MOST_LAYERS = 12
MOST_RANGES = 10
_MOST_MORE = 60
_LONG_PREFIX = 8


def worst_layers(inspection: Inspection) -> tuple[LayerError, ...]:
    """The layers with the greatest error, worst first."""
    ranked = sorted(inspection.layers, key=lambda layer: (-layer.nrmse, layer.tensor))
    return tuple(ranked[:MOST_LAYERS])


def notable_ranges(inspection: Inspection) -> tuple[TensorRange, ...]:
    """Ranges with outliers, then those that clip, then the widest; a few."""
    return _ranked_ranges(inspection)[:MOST_RANGES]


def more_ranges(inspection: Inspection) -> tuple[TensorRange, ...]:
    """Those that come next."""
    return _ranked_ranges(inspection)[MOST_RANGES : MOST_RANGES + _MOST_MORE]


def outlier_count(inspection: Inspection) -> int:
    """How many ranges have outliers."""
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


def size_points(result: VariantReport | RefusedCandidate, float_bytes: int) -> tuple[Point, ...]:
    """Every attempt by its size, and the float model."""
    return (
        Point(
            label="",
            words="the float model",
            x=float_bytes,
            accuracy=result.accuracy.float_value,
            kind="float",
        ),
        *(
            _point(number, attempt, float(attempt.size_bytes), result)
            for number, attempt in enumerate(result.attempts, start=1)
        ),
    )


def latency_points(result: VariantReport | RefusedCandidate) -> tuple[Point, ...]:
    """The attempts that were timed, and the float model; none where none was."""
    timing = result.timing if isinstance(result, VariantReport) else None
    points = []
    for number, attempt in enumerate(result.attempts, start=1):
        latency_ms = attempt.latency_ms
        is_published = attempt.is_best and timing and timing.latency_ms != timing.float_latency_ms
        if latency_ms is None and is_published and timing:
            latency_ms = timing.latency_ms
        if latency_ms is not None:
            points.append(_point(number, attempt, latency_ms, result))
    if not points:
        return ()
    if timing and timing.float_latency_ms:
        points.append(
            Point(
                label="",
                words="the float model",
                x=timing.float_latency_ms,
                accuracy=result.accuracy.float_value,
                kind="float",
            )
        )
    return tuple(points)


def _point(
    number: int, attempt: TriedAttempt, x: float, result: VariantReport | RefusedCandidate
) -> Point:
    is_kept = attempt.accuracy >= result.accuracy.budget
    kind = "kept" if is_kept else "missed"
    if attempt.is_best and isinstance(result, VariantReport):
        kind = "chosen"
    return Point(label=str(number), words=attempt.what, x=x, accuracy=attempt.accuracy, kind=kind)


def shared_prefix(names: Sequence[str]) -> str:
    """What all names begin with, up to a `/`: exporters repeat the path of a whole model.

    Returns:
        The prefix without its last `/`; "" where it is short, or there is one name only.
    """
    if len(names) < 2:
        return ""
    parts = [name.split("/")[:-1] for name in names]
    shared = takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))
    prefix = "/".join(part[0] for part in shared)
    return prefix if len(prefix) >= _LONG_PREFIX else ""


def noisiest(values: Sequence[float]) -> float:
    """The greatest value, for bars; never 0."""
    return max((*values, 1e-9))
