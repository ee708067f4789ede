"""A release in the shadow never answers before it agrees: real builds, brokers and agents."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.agent.serving import following as serving
from edgepack.agent.serving.model import Model
from tests.graphs import graph_model
from tests.integration.fleet.applications import (
    CAMERA_NAMES,
    Applications,
    applications_of,
    start_cameras,
)
from tests.integration.fleet.conftest import CAMERAS, Mosquitto, Serve, StartAgent
from tests.simulators.building import build_archive
from tests.simulators.waiting import wait_until

CLASSES, WIDTH = 5, 16
BRIGHT = 10.0
"""Real inputs are brighter than any sample of the build."""


def classifier(*, is_wrong_when_bright: bool) -> onnx.ModelProto:
    """Return a classifier by a matrix; a wrong classifier adds a score for bright inputs."""
    rng = np.random.default_rng(1)
    values = {
        "weights": rng.standard_normal((WIDTH, CLASSES)),
        "brightness": np.full((WIDTH, 1), 1 / WIDTH),
        "threshold": np.array([-BRIGHT / 2]),
        "error": np.eye(CLASSES)[:1] * (1e6 if is_wrong_when_bright else 0.0),
    }
    return graph_model(
        f"(float[1,{WIDTH}] x) => (float[1,{CLASSES}] y) {{ "
        "[classify] scores = MatMul(x, weights) [measure] bright = MatMul(x, brightness) "
        "[compare] above = Add(bright, threshold) [cut] only_above = Relu(above) "
        "[err] added = MatMul(only_above, error) [add] logits = Sub(scores, added) "
        "[decide] y = Softmax<axis=-1>(logits) }",
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in values.items()],
    )


def build(folder: Path, key: Path, number: int, *, is_wrong_when_bright: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    model = folder / f"model-{number}.onnx"
    onnx.save(classifier(is_wrong_when_bright=is_wrong_when_bright), model)
    rng = np.random.default_rng(0)
    samples = folder / "samples.npz"
    np.savez(samples, x=rng.standard_normal((200, WIDTH)).astype(np.float32))
    return build_archive(model, samples, key, folder / f"shapes-1.{number}.0.edgepack")


def bright_input(rng: np.random.Generator) -> np.ndarray:
    """Return an input of class 0; with samples' whole noise, one of 20,000 is of another class."""
    return (0.3 * rng.standard_normal((1, WIDTH)) + BRIGHT).astype(np.float32)


answered: set[str] = set()
"""Versions that answered an inference."""


def infer(model: Model, rng: np.random.Generator, stopping: threading.Event) -> None:
    """Run inferences no faster than the shadow release, which has the lowest priority."""
    opened = model._serving
    shadow = opened.shadow
    before = shadow._recorder.snapshot() if shadow else None
    answered.add(opened.pointer.bundle.version)
    opened.run({"x": bright_input(rng)})
    while shadow is not None and opened.shadow is shadow:
        if shadow._recorder.snapshot() != before or stopping.wait(0.005):
            return


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applications]:
    """Start applications with frequent writes of their sketches."""
    monkeypatch.setattr(serving, "SPOOL_S", 0.2)
    with applications_of("shapes", infer) as running:
        yield running


def test_classifier_that_is_right_on_golden_samples_and_wrong_on_real_inputs_never_answers(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    applications: Applications,
    key_prefix: Path,
    tmp_path: Path,
) -> None:
    fleet = serve("--broker", mosquitto.url)
    key = key_prefix.with_suffix(".key")
    more = "\n[telemetry]\ninterval_s = 0.5\n[shadow]\nshare = 1.0\nbusy_share = 1.0\n"
    start_cameras(fleet, start_agent, tmp_path, more + "spacing_s = 0.01\n")
    good, same = build(tmp_path / "built", key, 1), build(tmp_path / "built", key, 2)
    wrong = build(tmp_path / "built", key, 3, is_wrong_when_bright=True)
    first = fleet.roll_out(good, to=CAMERAS, waves="100%", deadline_s=400.0)
    fleet.wait_for(first, "FINISHED")
    for device in CAMERA_NAMES:
        applications.start(tmp_path / device / "state")
    wait_until(lambda: len(applications.models) == len(CAMERA_NAMES), "the applications run")
    rng = np.random.default_rng(0)
    right = {int(m.run({"x": bright_input(rng)})["y"].argmax()) for m in applications.models}
    assert len(right) == 1

    settings = {"waves": "100%", "soak_s": 1.0, "deadline_s": 500.0, "shadow": True}
    unchanged = fleet.roll_out(same, to=CAMERAS, **settings)
    fleet.wait_for(unchanged, "FINISHED", "PAUSED")
    assert fleet.rollout(unchanged).state == "FINISHED", fleet.rollout(unchanged)
    wait_until(lambda: answered == {"1.1.0", "1.2.0"}, "the next release answers")
    events = fleet.client.events(limit=1000)
    accepted = {event.because for event in events if event.to_state == "ACTIVATING"}
    shadowed = [one for one in accepted if one.startswith("shadow first")]
    assert len(shadowed) > 0, accepted
    for one in shadowed:
        agreed, spaced = map(int, re.findall(r"(\d+) of (\d+) spaced inferences agreed", one)[0])
        assert agreed == spaced >= 74, one

    name = fleet.roll_out(wrong, to=CAMERAS, **settings)
    ended = fleet.wait_for(name, "FINISHED", "PAUSED", "ABORTED")
    assert (ended.state, ended.counts) == ("PAUSED", {"FAILED": 3}), ended
    reasons = {
        event.because
        for event in fleet.client.events(limit=1000)
        if event.to_state == "ROLLED_BACK"
    }
    assert len(reasons) > 0
    for one in reasons:
        differ, spaced = re.findall(r"(\d+) of (\d+) spaced inferences differ from 1.2.0", one)[0]
        assert differ == spaced, one
    assert answered == {"1.1.0", "1.2.0"}, "no inference was answered by 1.3.0"
    for model in applications.models:
        wait_until(lambda: model._serving.shadow is None, "nothing runs beside it any more")  # noqa: B023
        assert {int(model.run({"x": bright_input(rng)})["y"].argmax())} == right
