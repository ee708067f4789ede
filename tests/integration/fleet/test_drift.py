"""Real agents measure drift, and a rollout stops by it: real bundles, a real broker."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.agent.serving import model as serving
from edgepack.agent.serving.model import open_model
from edgepack.agent.telemetry import values
from edgepack.fleet.documents.gates import GateView
from edgepack.packager import build
from tests.integration.fleet.conftest import (
    CAMERAS,
    FleetProcess,
    Mosquitto,
    StartAgent,
    edgepack,
)
from tests.unit.packager_io.models import save, small_cnn, write_stack

DEVICES = ("cam-1", "cam-2", "cam-3")
SHIFTED = "1.2.0"


class Applications:
    """One a device, in a thread: what cameras see is shifted once a release serves there."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failed: list[BaseException] = []

    def start(self, state_dir: Path) -> None:
        thread = threading.Thread(target=self._run, args=(state_dir,))
        self._threads.append(thread)
        thread.start()

    def _run(self, state_dir: Path) -> None:
        rng = np.random.default_rng()
        try:
            with open_model("small", state_dir, threads=1) as model:
                while not self._stopping.wait(0.01):
                    images = rng.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)
                    model.run({"images": images + 2 * (model.bundle.version == SHIFTED)})
        except BaseException as error:
            self.failed.append(error)
            raise

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(20)


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applications]:
    """Each looks at many inferences a second, and writes often what it saw."""
    monkeypatch.setattr(values, "SAMPLE_S", 0.02)
    monkeypatch.setattr(serving, "SPOOL_S", 0.5)
    running = Applications()
    yield running
    running.stop()
    assert running.failed == []


@pytest.fixture
def make_release(tmp_path: Path, key_prefix: Path) -> Callable[[str], Path]:
    save(small_cnn(batch=1), tmp_path / "small.onnx")
    write_stack(tmp_path / "samples.npz", 40)

    def make(version: str) -> Path:
        return build(
            tmp_path / "small.onnx",
            profiles=["fp32"],
            version=version,
            calibration=tmp_path / "samples.npz",
            key=key_prefix.with_suffix(".key"),
            output=tmp_path / f"small-{version}.edgepack",
        ).output

    return make


def drift_of(fleet: FleetProcess, rollout: str) -> GateView:
    (view,) = [view for view in fleet.rollout(rollout).gates if view.name == "drift"]
    return view


def test_a_rollout_goes_on_while_devices_see_what_the_build_saw_and_stops_when_they_do_not(
    mosquitto: Mosquitto,
    serve: Callable[..., Any],
    start_agent: StartAgent,
    applications: Applications,
    make_release: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    fleet = serve("--broker", mosquitto.url)
    for device in DEVICES:
        folder = tmp_path / device
        fleet.client.enroll(device, group="cameras", folder=folder, state_dir=folder / "state")
        with (folder / "agent.toml").open("a") as settings:
            settings.write("\n[limits]\ntelemetry_interval_s = 0.5\n")
        start_agent(fleet, device)
    fleet.wait_until(lambda: fleet.info().online == len(DEVICES), "the agents are online")
    asked = {"waves": "100%", "deadline_s": 60.0, "gates": {"drift": 0.2}}
    first = fleet.roll_out(make_release("1.0.0"), to=CAMERAS, **asked)
    fleet.wait_for(first, "FINISHED", timeout_s=120)
    for device in DEVICES:
        applications.start(tmp_path / device / "state")
    fleet.wait_until(
        lambda: drift_of(fleet, first).because.startswith("3 devices measured it"),
        "all devices told of drift",
    )
    assert drift_of(fleet, first).verdict == "no baseline"

    views = {}
    for version, end in (("1.1.0", "FINISHED"), (SHIFTED, "PAUSED")):
        done = edgepack(
            fleet,
            *("rollout", "start", str(make_release(version)), "--group", "cameras", "--yes"),
            *("--waves", "100%", "--soak", "2", "--deadline", "60", "--json"),
            *("--gate", "all=off", "--gate", "drift=0.2"),
        )
        assert done.returncode == 0, done.stderr
        name = json.loads(done.stdout)["rollout"]
        fleet.wait_for(name, "FINISHED", "PAUSED", timeout_s=120)
        views[version] = drift_of(fleet, name)
        rollout = fleet.rollout(name)
        assert rollout.state == end, (rollout.because, views[version])
    assert views["1.1.0"].verdict == "pass"
    assert views[SHIFTED].verdict == "breach"
    assert (views[SHIFTED].now or 0) > 1 > (views["1.1.0"].now or 0)
    assert "drift of " in rollout.because
