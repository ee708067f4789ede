"""Export by OTLP: a collector that is away, busy, or refuses costs nothing but counted points."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.metrics.exporter import Exporter
from edgepack.metrics.settings import OtlpConfig
from edgepack.metrics.table import family
from tests.simulators.collector import Collector, collecting
from tests.simulators.ports import free_port
from tests.simulators.waiting import wait_until

Make = Callable[..., Exporter]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine answers late."""
    monkeypatch.setattr("edgepack.metrics.exporter.REQUEST_S", 400.0)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def make(endpoint: str, **settings: object) -> Exporter:
    config = OtlpConfig(endpoint=endpoint, proxy="direct", **settings)  # type: ignore[arg-type]
    return Exporter(config, lambda: (family("process.cpu.time", 1.5),), {"service.name": "s"})


def counts(exporter: Exporter) -> dict[str, float | object]:
    return {one.attributes.get("error.type", ""): one.value for one in exporter.family().points}


def test_exports_reach_the_collector_with_the_headers_of_the_file(
    collector: Collector, tmp_path: Path
) -> None:
    (tmp_path / "headers").write_text("Authorization: Bearer secret\n\nX-Tenant: a\n")
    exporter = make(collector.url, headers_file=str(tmp_path / "headers"), interval_s=0.1)
    exporter.start()
    wait_until(lambda: len(collector.requests) >= 2, "two exports")
    exporter.stop()
    assert collector.newest("s")[0]["process.cpu.time", ()].as_double == 1.5
    assert collector.headers["Authorization"] == "Bearer secret"
    assert collector.headers["X-Tenant"] == "a"
    assert collector.headers["Content-Type"] == "application/json"


def test_what_a_busy_collector_did_not_take_is_sent_later(collector: Collector) -> None:
    exporter = make(collector.url)
    for collector.status in (503, 429, 502):
        exporter.turn()
    assert (counts(exporter), collector.requests) == ({}, [])
    collector.status = 200
    exporter.turn()
    assert (counts(exporter), len(collector.requests)) == ({"": 4}, 4)


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (200, b'{"partialSuccess":{"rejectedDataPoints":"1"}}', {"rejected": 1, "": 0}),
        (200, b'{"partialSuccess":{"rejectedDataPoints":"999"}}', {"rejected": 1, "": 0}),
        (200, b'{"partialSuccess":{"rejectedDataPoints":-5}}', {"": 1}),
        (200, b"\xff not JSON", {"": 1}),
        (400, b"", {"400": 1}),
        (302, b"", {"302": 1}),
        (200, b"x" * 100_000, {}),
    ],
)
def test_refused_data_points_are_counted_and_not_sent_again(
    collector: Collector, status: int, answer: bytes, expected: dict[str, int]
) -> None:
    exporter = make(collector.url)
    collector.status, collector.answer = status, answer
    exporter.turn()
    assert counts(exporter) == expected


def test_an_unreachable_collector_costs_bounded_memory_and_counted_points(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = make(f"http://127.0.0.1:{free_port()}", queue_bytes=4096)
    for _ in range(30):
        exporter.turn()
    waiting = len(exporter._queue)
    assert 1 <= waiting < 30
    assert sum(len(one.body) for one in exporter._queue) <= 4096
    assert counts(exporter) == {"queue_full": 30 - waiting}
    assert len([one for one in caplog.records if "not exported" in one.message]) == 1


def test_a_collector_that_never_answers_does_not_hold_the_end_of_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporter = make(f"http://127.0.0.1:{silent.getsockname()[1]}", interval_s=0.1)
        exporter.start()
        peer, _ = silent.accept()
        exporter.stop()
        peer.close()


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    assert OtlpConfig(endpoint="https://c:4318").url == "https://c:4318/v1/metrics"
    assert OtlpConfig(endpoint="https://c/otlp/x").url == "https://c/otlp/x"
    for endpoint in ("c:4318", "ftp://c", "http://"):
        with pytest.raises(ValueError, match="URL of http or https"):
            make(endpoint)
    with pytest.raises(OSError, match="No such file"):
        make("https://c", ca_file=str(tmp_path / "none.pem"))
    for text in ("no colon", "Bad Name: x", "X: a\x01b", ": x"):
        (tmp_path / "headers").write_text(f"A: b\n{text}\n")
        with pytest.raises(ValueError, match=r"line 2 of .* is no header"):
            make("https://c", headers_file=str(tmp_path / "headers"))
