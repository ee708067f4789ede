"""Metrics as text and as OTLP, read by prometheus-client and by OpenTelemetry's own messages."""

import math
import random
import re
from bisect import bisect_left
from itertools import accumulate

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from edgepack.metrics.otlp import encode
from edgepack.metrics.sums import ReleaseSums, sum_families
from edgepack.metrics.table import (
    ATTRIBUTES,
    BOUNDS_S,
    TABLE,
    Distribution,
    Family,
    Point,
    bucket_counts,
    family,
)
from edgepack.metrics.text import OPEN_METRICS, PLAIN, content_type, render
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.telemetry import Telemetry
from tests.simulators.collector import parse, series_of

ODD = 'a"b\\c\nd{}é'
AT, DURATION = 1_700_000_000.25, "edgepack.inference.duration"


def window(*latencies_ms: float, **further: object) -> Telemetry:
    recorder = LatencyRecorder()
    for latency_ms in latencies_ms:
        recorder.record(latency_ms)
    known: dict[str, object] = {"digest": "d", "variant": "cpu", "provider": "p"}
    known |= {"window_start": 0.0, "window_s": 1.0, "latency": recorder.snapshot()}
    return Telemetry(**(known | further))  # type: ignore[arg-type]


def example() -> tuple[Family, ...]:
    sums = ReleaseSums(since=AT - 60).plus(window(0.01, 1.0, 1.5, 99_999.0, failures=2))
    sums = sums.plus(window(3.0, shadow_count=4, shadow_agreed=3, energy_j=1.5, throttled_s=2.5))
    return (
        *sum_families([({"edgepack.model": ODD}, sums)]),
        family("hw.temperature", [Point({"hw.id": "zone"}, 51.5), Point({"hw.id": "x"}, math.nan)]),
        family("system.memory.linux.available", 2**40),
    )


def test_every_latency_is_counted_below_the_bounds_that_it_does_not_exceed() -> None:
    rng = random.Random(3)
    latencies = [rng.lognormvariate(1.0, 4.0) for _ in range(500)] + [1.0, 1e-6, 1e9]
    expected = [0] * (len(BOUNDS_S) + 1)
    for latency_ms in latencies:
        expected[bisect_left(BOUNDS_S, latency_ms / 1000)] += 1
    assert bucket_counts(window(*latencies).latency) == expected
    assert 0.001 in BOUNDS_S


@pytest.mark.parametrize(
    ("form", "read"),
    [
        (OPEN_METRICS, openmetrics.text_string_to_metric_families),
        (PLAIN, parser.text_string_to_metric_families),
    ],
)
def test_parsers_of_prometheus_read_both_formats(form: str, read: object) -> None:
    text = render(example(), form, {"service.instance.id": ODD}).decode()
    families = {one.name: one for one in read(text)}  # type: ignore[operator]
    samples = {
        (one.name, one.labels.get("le", one.labels.get("error_type", ""))): one
        for each in families.values()
        for one in each.samples
    }
    name = "edgepack_inference_duration_seconds"
    counts = [one.value for (key, _), one in samples.items() if key == f"{name}_bucket"]
    assert counts == sorted(counts)
    assert counts[-1] == samples[f"{name}_count", ""].value == 5
    assert samples[f"{name}_bucket", "0.001"].value == 2
    assert samples[f"{name}_sum", ""].value == pytest.approx(0.00551 + 99.999)
    assert samples["edgepack_inference_errors_total", "failed"].value == 2
    assert samples["edgepack_inference_energy_joules_total", ""].value == 1.5
    assert samples["hw_temperature_celsius", ""].value == 51.5
    assert len(families["hw_temperature_celsius"].samples) == 1, "NaN is left out"
    assert samples["target_info", ""].labels == {"service_instance_id": ODD}
    (models,) = {one.labels["edgepack_model"] for one in families[name].samples}
    assert models == ODD


def test_a_scraper_gets_the_older_format_only_if_it_accepts_no_other() -> None:
    assert content_type("") == content_type("*/*") == OPEN_METRICS
    assert content_type("application/openmetrics-text;version=1.0.0,text/plain") == OPEN_METRICS
    assert content_type("text/plain;version=0.0.4") == PLAIN


def test_opentelemetry_reads_the_same_numbers() -> None:
    body = encode(example(), resource={"service.name": "s"}, version="1", started_at=AT - 9, now=AT)
    request = parse(body)
    series = series_of(request)
    metrics = {one.name: one for one in request.resource_metrics[0].scope_metrics[0].metrics}
    point = series[DURATION, (("edgepack.model", ODD),)]
    assert metrics[DURATION].histogram.aggregation_temporality == 2, "cumulative"
    assert (point.count, sum(point.bucket_counts)) == (5, 5)
    assert tuple(point.explicit_bounds) == BOUNDS_S
    assert len(point.bucket_counts) == len(BOUNDS_S) + 1
    assert list(accumulate(point.bucket_counts))[5] == 2
    assert (point.start_time_unix_nano, point.time_unix_nano) == (
        int(AT - 60) * 10**9 + 250_000_000,
        int(AT) * 10**9 + 250_000_000,
    )
    errors = metrics["edgepack.inference.errors"]
    assert (errors.sum.is_monotonic, errors.unit) == (True, "{inference}")
    assert metrics["hw.temperature"].gauge.data_points[0].as_double == 51.5
    available = metrics["system.memory.linux.available"].sum
    assert (available.is_monotonic, available.data_points[0].as_double) == (False, 2.0**40)
    assert available.data_points[0].start_time_unix_nano == int((AT - 9) * 1e6) * 1000


def test_the_table_has_each_name_once_and_describes_each_attribute() -> None:
    names = [row.name for row in TABLE]
    samples = [row.sample for row in TABLE]
    assert len(names) == len(set(names)) == len(set(samples))
    assert all(re.fullmatch(r"[a-z][a-z0-9_.]*", name) for name in names)
    assert all(row.device or row.fleet for row in TABLE)
    used = {one for row in TABLE for one in (*row.device_attributes, *row.fleet_attributes)}
    assert used == set(ATTRIBUTES) - {"otel.metric.overflow"}


def test_a_distribution_has_a_count_for_each_bound_and_one_beyond() -> None:
    assert len(ReleaseSums(since=0.0).buckets) == len(BOUNDS_S) + 1
    with pytest.raises(ValueError, match="zip"):
        render([family(DURATION, [Point({}, Distribution((1, 2), 0.5))])], PLAIN, {})
    with pytest.raises(KeyError, match=r"edgepack\.made\.up"):
        family("edgepack.made.up", 1.0)
