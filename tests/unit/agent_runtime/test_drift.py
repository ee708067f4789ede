"""Drift: what a served model sees is counted, and told once enough came."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.serving.model import open_model
from edgepack.agent.telemetry import values
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.agent.telemetry.drift import FEWEST_INFERENCES, DriftWatch
from edgepack.agent.telemetry.spool import Spooled, write_spooled
from edgepack.agent.telemetry.values import Seen, ValueRecorder
from edgepack.bundle.distributions import describe_values
from edgepack.bundle.manifest import Distribution
from edgepack.wire.histogram import LatencyRecorder
from tests.simulators.manifests import CPU
from tests.simulators.pointers import write_pointer
from tests.unit.agent_runtime.examples import install_model

RELEASE = ("d" * 64, "cpu", CPU)
SHARES = (0.5, 0.5, 0.0)


def seen(*counts: int, inferences: int = FEWEST_INFERENCES, tensor: str = "x") -> Seen:
    return Seen(tensor=tensor, shares=SHARES, counts=counts, inferences=inferences)


def reference() -> Distribution:
    told = describe_values("x", np.random.default_rng(0).standard_normal(10_000))
    assert told is not None
    return told


@pytest.fixture
def every_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    """All inferences are looked at, not one a second."""
    monkeypatch.setattr(values, "SAMPLE_S", 0.0)


def spool(state_dir: Path, *counted: Seen, token: str = "a", inferences: int = 1) -> None:
    latency = LatencyRecorder()
    for _ in range(inferences):
        latency.record(1.0)
    digest, variant, provider = RELEASE
    write_spooled(
        state_dir,
        Spooled(
            token=token,
            pid=1,
            model="ocr",
            digest=digest,
            variant=variant,
            provider=provider,
            since=0.0,
            written_at=10.0 + inferences,
            latency=latency.snapshot(),
            seen=counted,
        ),
    )


def told(state_dir: Path, collector: LatencyCollector) -> float | None:
    (telemetry,) = collector.collect().telemetry
    return telemetry.drift


def run(state_dir: Path, *, shift: float, count: int) -> None:
    rng = np.random.default_rng(7)
    with open_model("tiny", state_dir, threads=1) as model:
        for _ in range(count):
            inputs = rng.standard_normal((1, 3, 8, 8)) + shift
            model.run({"x": inputs.astype(np.float32)})
            if model._serving.record.values._waiting:
                model._serving.record.values.snapshot()


@pytest.mark.usefixtures("every_inference")
def test_a_served_model_tells_how_far_its_inputs_are_from_the_builds(tmp_path: Path) -> None:
    for name, shift in (("near", 0.0), ("far", 1.5)):
        state_dir = tmp_path / name
        pointer = install_model(state_dir, 1, scale=1.0, reference=(reference(),))
        write_pointer(state_dir, pointer)
        run(state_dir, shift=shift, count=FEWEST_INFERENCES)
        drift = told(state_dir, LatencyCollector(state_dir))
        assert drift is not None
        assert drift < 0.05 if name == "near" else drift > 0.5


@pytest.mark.usefixtures("every_inference")
def test_a_bundle_without_a_reference_tells_no_drift(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    run(tmp_path, shift=5.0, count=FEWEST_INFERENCES)
    assert told(tmp_path, LatencyCollector(tmp_path)) is None


def test_one_inference_a_second_is_looked_at_however_many_there_are() -> None:
    recorder = ValueRecorder()
    recorder.expect((reference(),))
    for _ in range(200):
        recorder.offer({"x": np.zeros((1, 8))}, {})
    (counted,) = recorder.snapshot()
    assert counted.inferences == 1


@pytest.mark.usefixtures("every_inference")
def test_what_nobody_counts_in_time_is_left_out_and_takes_no_memory() -> None:
    recorder = ValueRecorder()
    recorder.expect((reference(),))
    for _ in range(1000):
        recorder.offer({"x": np.zeros((1, 8)), "other": np.zeros(3)}, {"y": np.array(["text"])})
    (counted,) = recorder.snapshot()
    assert counted.inferences < 100
    assert sum(counted.counts) == 8 * counted.inferences


def test_little_is_no_evidence_and_adds_up_over_windows_and_processes(tmp_path: Path) -> None:
    collector = LatencyCollector(tmp_path, is_running=lambda _pid: True)
    spool(tmp_path, seen(500, 0, 0, inferences=FEWEST_INFERENCES - 2))
    assert told(tmp_path, collector) is None
    spool(tmp_path, seen(10, 0, 0, inferences=1), token="b")
    assert told(tmp_path, collector) is None
    spool(tmp_path, seen(510, 0, 0, inferences=FEWEST_INFERENCES - 1), inferences=2)
    assert told(tmp_path, collector) == pytest.approx(4.6, abs=0.5)
    spool(tmp_path, seen(510, 10, 0, inferences=FEWEST_INFERENCES), inferences=3)
    assert told(tmp_path, collector) is None, "it is counted anew"


def test_of_several_tensors_the_worst_is_told_and_few_values_do_not_count() -> None:
    watch = DriftWatch()
    assert watch.judge(RELEASE, [seen(50, 50, 0)]) is None
    near, far = seen(500, 500, 0, tensor="a"), seen(900, 100, 0, tensor="b")
    both = watch.judge(RELEASE, [near, far])
    assert both == watch.judge(("e" * 64, "cpu", CPU), [far])
    assert watch.judge(RELEASE, [near]) == both, "each as it was judged last"


def test_counts_that_fall_or_contradict_themselves_are_dropped(tmp_path: Path) -> None:
    collector = LatencyCollector(tmp_path, is_running=lambda _pid: True)
    spool(tmp_path, seen(10, 10, 0))
    collector.collect()
    spool(tmp_path, seen(5, 10, 0), inferences=2)
    (dropped,) = collector.collect().dropped
    assert "its counts of values went down" in dropped
    for hostile in ((seen(1, 2),), (seen(-1, 2, 0),), (seen(1, 1, 0),) * 17):
        spool(tmp_path, *hostile, token="h")
        (dropped,) = collector.collect().dropped
        assert "counts of values are off" in dropped


def test_drift_waits_in_the_box_until_it_is_sent(tmp_path: Path) -> None:
    buffer = TelemetryBuffer(tmp_path)
    spool(tmp_path, seen(500, 0, 0))
    buffer.collect()
    spool(tmp_path, seen(501, 0, 0), inferences=2)
    (window,) = buffer.take()
    assert window.drift is not None
    assert window.latency.count == 2
