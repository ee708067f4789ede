"""The loop: a scene gets dark, and a script leads to a release that is right in the dark."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict, deque
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.agent.serving import capture, following
from edgepack.agent.serving.model import Model
from edgepack.agent.telemetry import sketches
from edgepack.tasks.arrays import Singles
from tests.graphs import graph_model
from tests.integration.fleet.applications import CAMERA_NAMES, applications_of
from tests.integration.fleet.conftest import CAMERAS, Mosquitto, Serve, StartAgent, edgepack
from tests.integration.fleet.dashboard import Visitor
from tests.simulators import warm_programs
from tests.simulators.waiting import wait_until

SCRIPT = Path("examples/loop/next_release.sh")
DARK = 0.002
LAST = 60
"""Inferences over which the accuracy is measured."""

SETTINGS = """
[telemetry]
interval_s = 0.2
heartbeat_s = 1
drift_window_s = 0.3
[shadow]
share = 1.0
busy_share = 1.0
spacing_s = 0.01
[watch]
slowdown = 0
"""


def classifier() -> onnx.ModelProto:
    """Return a model from picture [1, 3, 16, 16] to probabilities [1, 3]: the brightest channel
    wins. In 8 bits it is right while the light is that of its calibration.
    """
    first = np.random.default_rng(7).normal(0, 1e-4, (3, 256, 64)).astype(np.float32)
    second = np.zeros((64, 3), np.float32)
    for unit in range(64):
        first[unit % 3, :, unit] += 1 / 256
        second[unit, unit % 3] = 0.75
    return graph_model(
        "(float[1,3,16,16] images) => (float[1,3] scores) { [flatten] flat = Flatten(images) "
        "[first] hidden = Gemm(flat, first) [relu] active = Relu(hidden) "
        "[second] logits = Gemm(active, second) [softmax] scores = Softmax<axis=-1>(logits) }",
        {"first": first.reshape(768, 64), "second": second},
    )


def picture(rng: np.random.Generator, label: int, light: float) -> Singles:
    image = rng.uniform(0.1, 0.3, (1, 3, 16, 16))
    image[0, label] += rng.uniform(0.2, 0.5)
    return (light * image).astype(np.float32)


class Scene:
    """The scene before all cameras, and the results of their inferences.

    Attributes:
        light: Brightness.
        right: Last results of each model: the version, and whether the answer was right.
    """

    def __init__(self) -> None:
        self.light = 1.0
        self.right: defaultdict[int, deque[tuple[str, bool]]] = defaultdict(
            lambda: deque(maxlen=LAST)
        )

    def infer(self, model: Model, rng: np.random.Generator, _: threading.Event) -> None:
        label = int(rng.integers(3))
        version = model.bundle.version
        scores = model.run({"images": picture(rng, label, self.light)})["scores"]
        self.right[id(model)].append((version, int(scores.argmax()) == label))

    def change(self, light: float) -> None:
        self.light = light
        for results in self.right.values():
            results.clear()

    def accuracies(self, version: str) -> list[float]:
        """Return the accuracy of each model that answered with this version alone."""
        found = [tuple(one) for one in self.right.values()]
        return [
            sum(is_right for _, is_right in one) / LAST
            for one in found
            if len(one) == LAST and {by for by, _ in one} == {version}
        ]


def test_a_script_leads_from_a_dark_scene_to_a_release_that_is_right_in_the_dark(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    key_prefix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "SPOOL_S", 0.2)
    monkeypatch.setattr(sketches, "SAMPLE_S", 0.0)
    monkeypatch.setattr(capture, "OFFER_S", 0.0)
    fleet = serve("--broker", mosquitto.url)
    for name in CAMERA_NAMES:
        place = tmp_path / name
        fleet.client.enroll(name, group="cameras", folder=place, state_dir=place / "state")
        consents = name != "cam-3"
        with (place / "agent.toml").open("a") as settings:
            settings.write(SETTINGS + ("[capture]\nupload = true\n" if consents else ""))
        start_agent(fleet, name)

    model, key = tmp_path / "parts.onnx", key_prefix.with_suffix(".key")
    onnx.save(classifier(), model)
    rng = np.random.default_rng(0)
    bright = np.concatenate([picture(rng, n % 3, 1.0) for n in range(120)])
    np.savez(tmp_path / "bright.npz", images=bright)
    archive = tmp_path / "parts-1.0.0.edgepack"
    words = [sys.executable, "-m", "edgepack.cli", "build", str(model), "--prefer", "size"]
    words += ["--profile", "cpu", "--calibration", str(tmp_path / "bright.npz")]
    words += ["--key", str(key), "-o", str(archive)]
    built = warm_programs.run(words, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    fleet.wait_until(lambda: fleet.info().online == len(CAMERA_NAMES), "the agents are online")
    first = fleet.roll_out(archive, to=CAMERAS, waves="100%", deadline_s=400.0)
    fleet.wait_for(first, "FINISHED")

    scene = Scene()
    with applications_of("parts", scene.infer) as applications:
        for count, name in enumerate(CAMERA_NAMES, 1):
            applications.start(tmp_path / name / "state")
            wait_until(lambda: len(applications.models) == count, "the application runs")  # noqa: B023
        wait_until(lambda: len(scene.accuracies("1.0.0")) == 3, "the cameras see daylight")
        assert min(scene.accuracies("1.0.0")) > 0.95
        scene.change(DARK)
        wait_until(lambda: len(scene.accuracies("1.0.0")) == 3, "the cameras see the dark")
        assert max(scene.accuracies("1.0.0")) < 0.9

        def drifted() -> list[str]:
            rows = fleet.client.feedback("parts").evidence
            return [one.words for row in rows for one in row.drifted if one.difference > 1]

        wait_until(lambda: any("level" in one for one in drifted()), "devices report drift")
        done = subprocess.run(
            [SCRIPT, model, "parts", "1.1.0", key, tmp_path / "next"],
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "EDGEPACK_FLEET_URL": fleet.url,
                "EDGEPACK_FLEET_DATA": str(fleet.data),
                "NO_COLOR": "1",
                "CAPTURE": "--samples 90 --collect 3s",
                "BUILD": "--profile cpu --prefer size",
                "ROLLOUT": "--waves 100% --soak 1 --deadline 400 --gate all=off "
                "--gate-evidence optional",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        wait_until(lambda: len(scene.accuracies("1.1.0")) == 3, "the cameras run 1.1.0")
        assert min(scene.accuracies("1.1.0")) > 0.95, "accuracy is back"

    lines = done.stdout.splitlines()
    assert any(one.startswith("drift: cpu 1.0.0") and "level" in one for one in lines), lines
    title = next(n for n, one in enumerate(lines) if one.startswith("parts 1.1.0 (release"))
    responses = [one for one in lines[title + 1 :] if one.startswith("feedback: ")]
    assert lines[title + 1] == responses[0]
    assert any("level" in one and "ranges and verdict hold" in one for one in responses), responses
    (asked,) = fleet.client.sample_requests("parts")
    assert [one.state for one in asked.devices] == ["DONE", "DONE", "REFUSED"]
    received = [one.received for one in asked.devices]
    assert all(1 <= count <= asked.share for count in received[:2]), asked
    assert received[2] == 0
    assert "[capture] upload" in asked.devices[2].because
    pulled = sorted((tmp_path / "next" / "captured").iterdir())
    assert len(pulled) == sum(received)
    levels = [float(np.load(path)["images"].mean()) for path in pulled]
    assert max(levels) < 2 * DARK, "devices chose the dark scene"
    assert b"images.npy" not in b"".join(path.read_bytes() for path in fleet.data.glob("fleet.db*"))
    for name in CAMERA_NAMES:
        assert list((tmp_path / name / "state" / "captured").glob("*")) == []
    accepted = [e.because for e in fleet.client.events(limit=1000) if e.to_state == "ACTIVATING"]
    assert sum(one.startswith("shadow first") for one in accepted) == 3
    shown = edgepack(fleet, "fleet", "samples", "--json")
    assert [one["capture"] for one in json.loads(shown.stdout)] == [asked.capture]
    token = (fleet.data / "token").read_text()
    page = Visitor(fleet.url).log_in(token).get("/models/parts").text
    assert f"{sum(received)}<small>of 90</small>" in page
    assert re.search("2 done</span>.*1 refused</span>.*capture. upload.*cam-3", page), page
    undone = edgepack(fleet, "fleet", "capture", "parts", "--wait", "1s")
    assert undone.returncode == 1, "no camera is there any more"
    assert "asked" in undone.stdout
