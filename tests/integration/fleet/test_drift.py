"""Real agents measure drift, and a rollout stops by drift: real bundles, a real broker."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.serving import following as serving
from edgepack.agent.serving.model import Model
from edgepack.agent.telemetry import sketches
from edgepack.fleet.documents.gates import GateView
from edgepack.packager import build
from tests.integration.fleet.applications import (
    CAMERA_NAMES,
    Applications,
    applications_of,
    gate_of,
    start_cameras,
)
from tests.integration.fleet.conftest import (
    CAMERAS,
    FleetProcess,
    Mosquitto,
    Serve,
    StartAgent,
    edgepack,
)
from tests.unit.packager_io.models import save, small_cnn, write_stack

SHIFTED = "1.2.0"


def infer(model: Model, rng: np.random.Generator, _: threading.Event) -> None:
    """Run inferences with inputs that shift once a release serves."""
    images = rng.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)
    model.run({"images": images + 2 * (model.bundle.version == SHIFTED)})


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applications]:
    """Start applications with many inferences a second and frequent writes of their sketches."""
    monkeypatch.setattr(sketches, "SAMPLE_S", 0.02)
    monkeypatch.setattr(serving, "SPOOL_S", 0.5)
    with applications_of("small", infer) as running:
        yield running


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
    return gate_of(fleet, rollout, "drift")


def _devices_with_drift(fleet: FleetProcess) -> int:
    """Return how many devices reported drift, by `edgepack fleet feedback`."""
    shown = edgepack(fleet, "fleet", "feedback", "small", "--json")
    evidence = json.loads(shown.stdout)["evidence"] if shown.returncode == 0 else []
    return sum(int(entry["drift_devices"]) for entry in evidence)


def test_a_rollout_goes_on_while_devices_see_what_the_build_saw_and_stops_when_they_do_not(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    applications: Applications,
    make_release: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    fleet = serve("--broker", mosquitto.url, "--value-seconds", "2")
    more = "\n[telemetry]\ninterval_s = 0.5\n"
    start_cameras(fleet, start_agent, tmp_path, more)
    asked = {"waves": "100%", "deadline_s": 400.0, "gates": {"drift": 0.3}}
    first = fleet.roll_out(make_release("1.0.0"), to=CAMERAS, **asked)
    fleet.wait_for(first, "FINISHED")
    for device in CAMERA_NAMES:
        applications.start(tmp_path / device / "state")
    fleet.wait_until(lambda: _devices_with_drift(fleet) == 3, "all devices reported drift")
    assert drift_of(fleet, first).verdict == "no evidence"  # as at its decision

    views = {}
    for version, end in (("1.1.0", "FINISHED"), (SHIFTED, "PAUSED")):
        done = edgepack(
            fleet,
            *("rollout", "start", str(make_release(version)), "--group", "cameras", "--yes"),
            *("--waves", "100%", "--soak", "2", "--deadline", "400", "--json"),
            *("--gate", "all=off", "--gate", "drift=0.3", "--first-look", "4"),
        )
        assert done.returncode == 0, done.stderr
        name = json.loads(done.stdout)["rollout"]
        fleet.wait_for(name, "FINISHED", "PAUSED")
        views[version] = drift_of(fleet, name)
        rollout = fleet.rollout(name)
        assert rollout.state == end, (rollout.because, views[version])
    assert views["1.1.0"].verdict == "pass"
    assert views[SHIFTED].verdict == "breach"
    assert (views[SHIFTED].now or 0) > 1 > (views["1.1.0"].now or 0)
    assert "drift of " in rollout.because
