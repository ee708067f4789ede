"""Sums of a fleet's inferences: exact, and bounded whatever devices claim."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from edgepack.errors import TransferError
from edgepack.fleet.controller.totals import MAX_BEGUN, MAX_SERIES, PERIOD_S, FleetTotals
from edgepack.fleet.database.latency import Added, Kind, check_window
from edgepack.metrics.table import Distribution
from edgepack.metrics.text import OPEN_METRICS, render
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import decode, encode
from edgepack.wire.telemetry import Telemetry

COUNT = "edgepack_inference_duration_seconds_count"
Labels = dict[str, str]


def added(device: str, *, provider: str = "CPU", of_class: str = "x86", **told: object) -> Added:
    recorder = LatencyRecorder()
    recorder.record(2.0)
    known: dict[str, object] = {"digest": "d" * 64, "variant": "cpu", "provider": provider}
    known |= {"window_start": 0.0, "window_s": 1.0, "latency": recorder.snapshot()}
    window = Telemetry(**(known | told))  # type: ignore[arg-type]
    kind = Kind(1, window.digest, "g", of_class, provider, "cpu", False)
    return Added(device, window, kind, "digits", "1.0.0")


def read(totals: FleetTotals) -> list[tuple[str, Labels, float]]:
    text = render(totals.families(), OPEN_METRICS, {}).decode()
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


def test_like_devices_share_a_series_and_gauges_have_mean_and_maximum() -> None:
    totals = FleetTotals(1.0)
    for n in range(40):
        one = added(f"d{n}", of_class="arm" if n % 4 else "x86", temperature_c=40.0 + n % 2)
        totals.add([one], 0, 5000.0)
    found = read(totals)
    counts = {labels["edgepack_hardware_class"]: n for name, labels, n in found if name == COUNT}
    assert counts == {"arm": 30, "x86": 10}
    heat = {
        (labels["edgepack_hardware_class"], labels["edgepack_statistic"]): value
        for name, labels, value in found
        if name == "hw_temperature_celsius"
    }
    assert heat == {("arm", "mean"): pytest.approx(40 + 2 / 3), ("arm", "max"): 41.0,
                    ("x86", "mean"): 40.0, ("x86", "max"): 40.0}  # fmt: skip
    (release,) = {tuple(sorted(labels.items()))[:3] for name, labels, _ in found if name == COUNT
                  and labels["edgepack_hardware_class"] == "arm"}  # fmt: skip
    assert ("edgepack_digest", "d" * 12) in release
    assert totals.inferences == {"finished": 40, "failed": 0, "not_finite": 0, "bad_inputs": 0}


def test_a_gauge_forgets_what_is_older_than_two_periods_and_a_count_does_not() -> None:
    totals = FleetTotals(1.0)
    totals.add([added("d", temperature_c=90.0)], 0, PERIOD_S)
    for now, maximum in ((2 * PERIOD_S, 90.0), (3 * PERIOD_S, 50.0), (9 * PERIOD_S, 50.0)):
        totals.add([added("d", temperature_c=50.0)], 0, now)
        found = read(totals)
        assert maximum == next(
            value
            for name, labels, value in found
            if name == "hw_temperature_celsius" and labels["edgepack_statistic"] == "max"
        )
    assert totals.inferences["finished"] == 4


def test_a_million_labels_are_bounded_by_device_and_in_all_and_no_inference_is_lost() -> None:
    totals = FleetTotals(1.0)
    for n in range(300):
        totals.add([added("liar", provider=f"Made up {n}\n\x1b[2J{'x' * 300}")], 0, 1.0)
    for n in range(1200):
        totals.add([added(f"device-{n}", of_class=f"class {n}")], 0, 1.0)
    totals.add([added("honest")], 7, 1.0)
    families = {one.row.name: one.points for one in totals.families()}
    counts = [
        (point.attributes, sum(point.value.counts))
        for point in families["edgepack.inference.duration"]
        if isinstance(point.value, Distribution)
    ]
    assert len(counts) == MAX_SERIES
    overflow = [value for labels, value in counts if labels == {"otel.metric.overflow": "true"}]
    assert sum(value for _, value in counts) == 1501
    assert overflow == [1501 - (MAX_SERIES - 1)]
    of_liar = [labels for labels, _ in counts if "Made up" in labels.get("edgepack.provider", "")]
    assert len(of_liar) == MAX_BEGUN
    assert max(len(text) for labels, _ in counts for text in labels.values()) <= 120
    assert "\x1b" not in str(counts)
    assert [point.value for point in families["edgepack.telemetry.dropped"]] == [7]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ('"count":1', '"count":1000000000000000'),
        ('{"15":1}', '{"15":1000000000000000}'),
        ('{"15":1}', '{"15":-1}'),
        ('{"15":1}', '{"15":1,"16":0}'),
        ('{"15":1}', '{"99999":1}'),
        ('"sum_ms":2.0', '"sum_ms":NaN'),
        ('"sum_ms":2.0', '"sum_ms":1e999'),
        ('"sum_ms":2.0', '"sum_ms":-2.0'),
        ('"failures":0', '"failures":1000000000000000'),
        ('"failures":0', '"failures":-1'),
        ('"throttled_s":0.0', '"throttled_s":-1.0'),
        ('"throttled_s":0.0', '"throttled_s":1e300'),
        ('"energy_j":null', '"energy_j":1e300'),
        ('"drift":null', '"drift":NaN'),
    ],
)
def test_an_impossible_window_is_refused(field: str, value: str) -> None:
    text = encode(added("liar").window).decode()
    check_window(decode(text.encode(), Telemetry))
    assert field in text
    with pytest.raises(TransferError):
        check_window(decode(text.replace(field, value).encode(), Telemetry))
