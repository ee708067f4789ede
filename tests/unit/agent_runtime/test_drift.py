"""Drift: features of a served model add up, and are compared with the build once enough ran."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.agent.serving.model import open_model
from edgepack.agent.telemetry import sketches
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.agent.telemetry.drift import FULL_INFERENCES, DriftWatch
from edgepack.agent.telemetry.journal import Stored, read_drift
from edgepack.agent.telemetry.sketches import SketchRecorder
from edgepack.agent.telemetry.spool import Spooled, write_spooled
from edgepack.bundle.drift import draw_features, sketch_outputs
from edgepack.bundle.features import FEWEST_INFERENCES, FeatureSum
from edgepack.bundle.manifest import Feature
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.description import ModelDescription, TaskOutputs
from edgepack.tasks.sketch import Sketch, sketch_input, thin_input
from edgepack.wire.drift_words import drift_lines
from edgepack.wire.histogram import LatencyRecorder
from tests.simulators.manifests import CPU
from tests.simulators.pointers import write_pointer
from tests.unit.agent_runtime.examples import install_model

RELEASE = ("d" * 64, "cpu", CPU)
LEVEL = Feature(tensor="x", name="level", words="level of 'x'", mean=1.0, spread=0.5, samples=400)
DOG = Feature(
    tensor="y",
    name="'dog'",
    kind="class",
    words="share of 'dog'",
    mean=0.1,
    spread=0.3,
    samples=400,
)


def summed(feature: Feature, mean: float, count: int = FEWEST_INFERENCES) -> FeatureSum:
    return FeatureSum(feature=feature, count=count, total=mean * count)


def reference() -> tuple[Feature, ...]:
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(100)]
    return draw_features("x", [sketch_input(thin_input(one)) for one in drawn], " of 'x'")


@pytest.fixture
def every_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketch all inferences, instead of an inference per second."""
    monkeypatch.setattr(sketches, "SAMPLE_S", 0.0)


def spool(state_dir: Path, *sums: FeatureSum, token: str = "a", inferences: int = 1) -> None:
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
            features=sums,
        ),
    )


def reported(state_dir: Path, collector: LatencyCollector) -> float | None:
    (telemetry,) = collector.collect().telemetry
    return telemetry.drift


def run(state_dir: Path, *, shift: float, count: int) -> None:
    rng = np.random.default_rng(7)
    with open_model("tiny", state_dir, threads=1) as model:
        for _ in range(count):
            inputs = rng.standard_normal((1, 3, 8, 8)) + shift
            model.run({"x": inputs.astype(np.float32)})
            model._serving.record.sketches.snapshot()


@pytest.mark.usefixtures("every_inference")
def test_a_served_model_reports_the_difference_of_its_inputs_from_the_build(
    tmp_path: Path,
) -> None:
    for name, shift in (("near", 0.0), ("far", 1.5)):
        state_dir = tmp_path / name
        pointer = install_model(state_dir, 1, scale=1.0, reference=reference())
        write_pointer(state_dir, pointer)
        run(state_dir, shift=shift, count=FEWEST_INFERENCES)
        buffer = TelemetryBuffer(state_dir)
        buffer.commit(seals=False)
        (window,) = buffer.journal.stored.windows
        drift = window.drift
        assert drift is not None
        assert drift < 0.3 if name == "near" else drift > 3
        known = read_drift(state_dir, pointer.digest)
        assert known is not None
        assert known.difference == drift
        assert name == "near" or drift_lines(known)[0].startswith("level")


@pytest.mark.usefixtures("every_inference")
def test_a_bundle_without_features_reports_no_drift(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    run(tmp_path, shift=5.0, count=FEWEST_INFERENCES)
    assert reported(tmp_path, LatencyCollector(tmp_path)) is None


@pytest.mark.usefixtures("every_inference")
def test_shares_of_classes_are_compared_class_by_class() -> None:
    part = TaskOutputs(task="classification", outputs=("y",), class_names=("cat", "dog", "owl"))
    rng = np.random.default_rng(1)

    def scores(dogs: float) -> Mapping[str, Tensor]:
        one = np.full((1, 3), -5.0, np.float32)
        one[0, 1 if rng.random() < dogs else 0] = 5.0
        return {"y": one}

    def watched(dogs: float) -> tuple[str, ...]:
        recorder = SketchRecorder()
        recorder.expect(features, ModelDescription(parts=(part,)))
        for _ in range(200):
            recorder.offer({}, scores(dogs))
            recorder.snapshot()
        drift = DriftWatch().add(RELEASE, recorder.snapshot())
        assert drift is not None
        return tuple(one.words for one in drift.features if one.difference > 0.5)

    built = [_sketched(part, scores(0.1)) for _ in range(128)]
    features = draw_features("y", built)
    assert [one.words for one in features[:2]] == ["share of 'cat'", "share of 'dog'"]
    assert watched(0.1) == ()
    assert set(watched(0.7)) == {"share of 'cat'", "share of 'dog'"}


def _sketched(part: TaskOutputs, outputs: Mapping[str, Tensor]) -> Sketch:
    found = sketch_outputs(part, outputs)
    assert found is not None
    return found


def test_one_inference_a_second_is_sketched_however_many_there_are() -> None:
    recorder = SketchRecorder()
    recorder.expect(reference(), ModelDescription())
    for _ in range(200):
        recorder.offer({"x": np.zeros((1, 3, 8, 8))}, {})
    assert {one.count for one in recorder.snapshot()} == {1}


@pytest.mark.usefixtures("every_inference")
def test_inferences_that_wait_too_long_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = SketchRecorder()
    recorder.expect(reference(), ModelDescription())
    for _ in range(1000):
        recorder.offer({"x": np.zeros((1, 3, 8, 8)), "z": np.zeros(3)}, {"y": np.array(["a"])})
    assert max(one.count for one in recorder.snapshot()) < 100
    monkeypatch.setattr(sketches, "BYTES_PER_S", 1e12)
    part = TaskOutputs(task="values", outputs=("y",))
    large = SketchRecorder()
    large.expect((LEVEL, *draw_features("y", _levels())), ModelDescription(parts=(part,)))
    for _ in range(5):
        large.offer({}, {"y": np.ones(5_000_000, np.float32)})
    assert max(one.count for one in large.snapshot()) == 3


def _levels() -> list[Sketch]:
    return [Sketch(numbers={"level": float(number)}) for number in range(9)]


@pytest.mark.usefixtures("every_inference")
def test_outputs_of_an_unexpected_shape_are_not_sketched() -> None:
    part = TaskOutputs(task="detections", outputs=("y",), settings={"layout": "suppressed"})
    recorder = SketchRecorder()
    recorder.expect(draw_features("y", _levels()), ModelDescription(parts=(part,)))
    recorder.offer({}, {"y": np.zeros((1, 4), np.float32)})
    assert recorder.snapshot() == ()


def test_sums_add_up_over_windows_and_processes(tmp_path: Path) -> None:
    collector = LatencyCollector(tmp_path, is_running=lambda _pid: True)
    spool(tmp_path, summed(LEVEL, 3.0, FEWEST_INFERENCES - 2))
    assert reported(tmp_path, collector) is None
    spool(tmp_path, summed(LEVEL, 3.0, 1), token="b")
    assert reported(tmp_path, collector) is None
    spool(tmp_path, summed(LEVEL, 3.0, FEWEST_INFERENCES - 1), inferences=2)
    assert reported(tmp_path, collector) == pytest.approx(4.0 - 2 * (1 / 30 + 1 / 400) ** 0.5)
    stored = Stored(journal="j", files=collector.files, features=collector.drift.states)
    restarted = LatencyCollector(tmp_path, stored)
    spool(tmp_path, summed(LEVEL, 3.0, FEWEST_INFERENCES), inferences=3)
    assert reported(tmp_path, restarted) == pytest.approx(4.0 - 2 * (1 / 31 + 1 / 400) ** 0.5)


def test_older_inferences_count_less_once_enough_ran() -> None:
    watch = DriftWatch()
    watch.add(RELEASE, [summed(LEVEL, 1.0, 50 * FULL_INFERENCES)])
    before = watch.add(RELEASE, [summed(LEVEL, 1.0, 1)])
    for _ in range(8):
        after = watch.add(RELEASE, [summed(LEVEL, 2.0, FULL_INFERENCES)])
    assert before is not None
    assert after is not None
    assert before.difference == 0
    assert after.difference > 1
    assert after.inferences <= 2 * FULL_INFERENCES


def test_the_feature_with_the_greatest_difference_comes_first() -> None:
    drift = DriftWatch().add(RELEASE, [summed(LEVEL, 1.2), summed(DOG, 0.9)])
    assert drift is not None
    assert [one.words for one in drift.features] == ["share of 'dog'", "level of 'x'"]
    assert drift.difference == drift.features[0].difference
    line = drift_lines(drift)[0]
    assert "share of 'dog' is 0.9, at the build 0.1" in line


def test_sums_that_fall_or_contradict_themselves_are_dropped(tmp_path: Path) -> None:
    collector = LatencyCollector(tmp_path, is_running=lambda _pid: True)
    spool(tmp_path, summed(LEVEL, 1.0, 10))
    collector.collect()
    spool(tmp_path, summed(LEVEL, 1.0, 5), inferences=2)
    (dropped,) = collector.collect().dropped
    assert "counts of features went down" in dropped
    flat = FeatureSum(feature=replace(LEVEL, spread=0.0), count=1)
    for hostile in ((summed(LEVEL, 1.0, -1),), (flat,), (summed(LEVEL, 1.0),) * 257):
        spool(tmp_path, *hostile, token="h")
        (dropped,) = collector.collect().dropped
        assert "sums of features are off" in dropped


def test_drift_waits_in_the_buffer_until_it_is_sent(tmp_path: Path) -> None:
    buffer = TelemetryBuffer(tmp_path)
    spool(tmp_path, summed(LEVEL, 3.0))
    buffer.collect()
    spool(tmp_path, summed(LEVEL, 3.0), inferences=2)
    buffer.commit(seals=False)
    (window,) = buffer.journal.stored.windows
    assert window.drift is not None
    assert window.latency.count == 2
    assert buffer.drift.recent(RELEASE[0]) is not None


def test_a_release_that_is_opened_again_counts_each_feature_once() -> None:
    recorder = SketchRecorder()
    for _ in range(2):
        recorder.expect(reference(), ModelDescription())
    recorder.offer({"x": np.zeros((1, 3, 8, 8), np.float32)}, {})
    assert {one.count for one in recorder.snapshot()} == {1}
