"""Latency: spools of processes become telemetry once, despite restarts and deaths."""

from pathlib import Path

import msgspec
import pytest

from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.agent.telemetry.journal import JOURNAL_FILE
from edgepack.agent.telemetry.spool import DISK_FOLDER, Spooled, write_spooled
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.telemetry import Histogram, Telemetry
from tests.simulators.manifests import CPU

ALIVE, DEAD = 1, 2


def counted(*latencies_ms: float) -> Histogram:
    recorder = LatencyRecorder()
    for latency_ms in latencies_ms:
        recorder.record(latency_ms)
    return recorder.snapshot()


def spool(
    state_dir: Path,
    *latencies_ms: float,
    token: str = "a",
    pid: int = ALIVE,
    digest: str = "d" * 64,
    written_at: float = 10.0,
    failures: int = 0,
    troubles: tuple[str, ...] = (),
    is_final: bool = False,
    memory_bytes: int = 0,
) -> Path:
    spooled = Spooled(
        token=token,
        pid=pid,
        model="ocr",
        digest=digest,
        variant="cpu",
        provider=CPU,
        since=0.0,
        written_at=written_at,
        latency=counted(*latencies_ms),
        failures=failures,
        troubles=troubles,
        is_final=is_final,
        memory_bytes=memory_bytes,
    )
    return write_spooled(state_dir, spooled)


@pytest.fixture
def collector(tmp_path: Path) -> LatencyCollector:
    return make_collector(tmp_path)


def make_collector(state_dir: Path) -> LatencyCollector:
    return LatencyCollector(state_dir, is_running=lambda pid: pid == ALIVE)


def test_what_is_new_is_handed_out_once(tmp_path: Path, collector: LatencyCollector) -> None:
    spool(tmp_path, 1.0, 2.0)
    (first,) = collector.collect().telemetry
    assert (first.latency.count, first.window_start, first.window_s) == (2, 0.0, 10.0)
    assert collector.collect().telemetry == ()
    spool(tmp_path, 1.0, 2.0, 30.0, failures=1, written_at=15.0)
    (second,) = collector.collect().telemetry
    assert second.latency.counts == counted(30.0).counts
    assert (second.failures, second.window_start, second.window_s) == (1, 10.0, 5.0)


def test_memory_is_that_of_the_largest_process_and_an_older_one_tells_none(
    tmp_path: Path, collector: LatencyCollector
) -> None:
    spool(tmp_path, 1.0)
    (none,) = collector.collect().telemetry
    assert none.memory_bytes is None
    spool(tmp_path, 1.0, 2.0, written_at=20.0, memory_bytes=50)
    spool(tmp_path, 1.0, token="b", written_at=20.0, memory_bytes=70)
    (both,) = collector.collect().telemetry
    assert both.memory_bytes == 70


def test_processes_that_serve_the_same_model_are_one_message(
    tmp_path: Path, collector: LatencyCollector
) -> None:
    spool(tmp_path, 1.0, token="a")
    spool(tmp_path, 5.0, 6.0, token="b", written_at=30.0)
    spool(tmp_path, 7.0, token="c", digest="e" * 64)
    telemetry = {one.digest[0]: one for one in collector.collect().telemetry}
    assert telemetry["d"].latency.counts == counted(1.0, 5.0, 6.0).counts
    assert telemetry["d"].window_s == 30.0
    assert telemetry["e"].latency.count == 1


def test_files_of_the_dead_and_of_closed_models_go_after_they_were_collected(
    tmp_path: Path, collector: LatencyCollector
) -> None:
    alive = spool(tmp_path, 1.0, token="a")
    dead = spool(tmp_path, 1.0, token="b", pid=DEAD)
    closed = spool(tmp_path, 1.0, token="c", is_final=True)
    (telemetry,) = collector.collect().telemetry
    assert telemetry.latency.count == 3
    assert all(path.exists() for path in (alive, dead, closed)), "until the counts are stored"
    collector.clean()
    assert alive.exists()
    assert not dead.exists()
    assert not closed.exists()


def test_a_trouble_is_told_once(tmp_path: Path, collector: LatencyCollector) -> None:
    spool(tmp_path, troubles=("cannot open",))
    assert [one.because for one in collector.collect().troubles] == ["cannot open"]
    spool(tmp_path, 1.0, troubles=("cannot open", "nor this"))
    assert [one.because for one in collector.collect().troubles] == ["nor this"]
    spool(tmp_path, token="b", digest="e" * 64, troubles=("cannot open", "nor this"))
    assert collector.collect().troubles == (), "a later release does not answer for them"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "malformed spool file"),
        (b"[" * 100_000, "malformed spool file"),
        (b"x" * 300_000, "more than 262144 bytes"),
        (b'{"token": 1}', "malformed spool file"),
    ],
)
def test_a_file_that_is_no_spool_is_dropped_with_its_reason(
    tmp_path: Path, collector: LatencyCollector, content: bytes, reason: str
) -> None:
    good = spool(tmp_path, 1.0)
    bad = tmp_path / DISK_FOLDER / "bad.json"
    bad.write_bytes(content)
    collected = collector.collect()
    assert len(collected.telemetry) == 1
    (dropped,) = collected.dropped
    assert dropped.startswith("bad.json: ")
    assert reason in dropped
    assert good.exists()
    assert not bad.exists()


def test_counts_that_go_down_are_dropped(tmp_path: Path, collector: LatencyCollector) -> None:
    spool(tmp_path, 1.0, 2.0, 3.0)
    collector.collect()
    spool(tmp_path, 1.0)
    collected = collector.collect()
    assert collected.telemetry == ()
    assert "its counts went down" in collected.dropped[0]


def test_a_damaged_journal_counts_anew(tmp_path: Path) -> None:
    assert TelemetryBuffer(tmp_path).collect().telemetry == ()
    spool(tmp_path, 1.0)
    (tmp_path / JOURNAL_FILE).write_bytes(b"{")
    (telemetry,) = TelemetryBuffer(tmp_path).collect().telemetry
    assert telemetry.latency.count == 1


def test_telemetry_survives_the_wire(tmp_path: Path, collector: LatencyCollector) -> None:
    spool(tmp_path, 1.0, 2.0)
    (telemetry,) = collector.collect().telemetry
    assert msgspec.json.decode(msgspec.json.encode(telemetry), type=Telemetry) == telemetry
