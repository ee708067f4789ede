"""Metrics as a request of OTLP, in JSON (protocol 1.x): integers of 64 bits are strings."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from edgepack.metrics.table import BOUNDS_S, Distribution, Family, Kind, Point

PATH = "/v1/metrics"
CONTENT_TYPE = "application/json"
_CUMULATIVE = 2
_SCOPE = "edgepack"


def encode(
    families: Iterable[Family],
    *,
    resource: Mapping[str, str],
    version: str,
    started_at: float,
    now: float,
) -> bytes:
    """Return the body of a request.

    Args:
        families: Metrics, each once.
        resource: Attributes of the sender.
        version: edgepack's version.
        started_at: Start of the process, seconds since the epoch.
        now: Time of the values, seconds since the epoch.
    """
    metrics = [
        {
            "name": row.name,
            "description": row.text,
            "unit": row.unit,
            **_data(row.kind, [_data_point(one, started_at, now) for one in points]),
        }
        for row, points in families
        if points
    ]
    scope = {"scope": {"name": _SCOPE, "version": version}, "metrics": metrics}
    about = {"attributes": _attributes(resource)}
    return msgspec.json.encode({"resourceMetrics": [{"resource": about, "scopeMetrics": [scope]}]})


def _data(kind: Kind, points: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "gauge":
        return {"gauge": {"dataPoints": points}}
    found: dict[str, Any] = {"dataPoints": points, "aggregationTemporality": _CUMULATIVE}
    if kind == "histogram":
        return {"histogram": found}
    return {"sum": found | {"isMonotonic": kind == "counter"}}


def _data_point(point: Point, started_at: float, now: float) -> dict[str, Any]:
    value = point.value
    found: dict[str, Any] = {
        "attributes": _attributes(point.attributes),
        "startTimeUnixNano": _nanoseconds(started_at if point.since is None else point.since),
        "timeUnixNano": _nanoseconds(now),
    }
    if isinstance(value, Distribution):
        return found | {
            "count": str(sum(value.counts)),
            "sum": value.sum_s,
            "bucketCounts": [str(count) for count in value.counts],
            "explicitBounds": BOUNDS_S,
        }
    return found | {"asDouble": float(value)}


def _attributes(attributes: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in attributes.items()]


def _nanoseconds(seconds: float) -> str:
    return str(int(seconds * 1e6) * 1000)
