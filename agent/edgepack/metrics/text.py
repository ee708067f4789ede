"""Text of metrics for Prometheus: OpenMetrics 1.0, or the older format 0.0.4."""

from collections.abc import Iterable, Iterator, Mapping

from edgepack.metrics.table import BOUNDS_S, UNITS, Distribution, Family, Point, label

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_TYPES = {"counter": "counter", "gauge": "gauge", "updown": "gauge", "histogram": "histogram"}
_BOUNDS = (*(f"{bound:.6g}" for bound in BOUNDS_S), "+Inf")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def content_type(accept: str) -> str:
    """Return the format to answer with: the older one only if no other is accepted.

    Args:
        accept: Header `Accept` of the request.
    """
    is_old = "text/plain" in accept and "application/openmetrics-text" not in accept
    return PLAIN if is_old else OPEN_METRICS


def render(families: Iterable[Family], form: str, resource: Mapping[str, str]) -> bytes:
    """Return metrics as text.

    Args:
        families: Metrics, each once.
        form: `OPEN_METRICS` or `PLAIN`.
        resource: Attributes of the process that answers, for `target_info`.
    """
    is_open = form == OPEN_METRICS
    target, kind = ("target", "info") if is_open else ("target_info", "gauge")
    lines = [
        f"# TYPE {target} {kind}",
        f"# HELP {target} The process that answers.",
        f"target_info{_labels(resource)} 1",
    ]
    for row, points in families:
        name = row.family if is_open else row.sample
        lines.append(f"# TYPE {name} {_TYPES[row.kind]}")
        if is_open and row.unit in UNITS:
            lines.append(f"# UNIT {name} {UNITS[row.unit]}")
        lines.append(f"# HELP {name} {row.text}")
        for point in points:
            lines += _samples(row.sample, point)
    if is_open:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines).encode()


def _samples(name: str, point: Point) -> Iterator[str]:
    value = point.value
    if not isinstance(value, Distribution):
        yield f"{name}{_labels(point.attributes)} {float(value)!r}"
        return
    total = 0
    for bound, count in zip(_BOUNDS, value.counts, strict=True):
        total += count
        yield f"{name}_bucket{_labels(point.attributes, le=bound)} {total}"
    yield f"{name}_sum{_labels(point.attributes)} {value.sum_s!r}"
    yield f"{name}_count{_labels(point.attributes)} {total}"


def _labels(attributes: Mapping[str, str], **further: str) -> str:
    both = {**attributes, **further}
    parts = (f'{label(key)}="{value.translate(_ESCAPES)}"' for key, value in both.items())
    return f"{{{','.join(parts)}}}" if both else ""
