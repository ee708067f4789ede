"""Real agents measure shadow agreement, and a rollout stops by the gate: real bundles, a real
broker.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.serving import following as serving
from edgepack.agent.serving.model import Model
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from edgepack.fleet.documents.gates import GateView
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
from tests.simulators.bundles import WIDTH, ExampleBundle, make_bundle
from tests.simulators.waiting import wait_until

INFERENCES = 300
"""That a soak waits for: of the first 60 shadow inferences the fleet has heard by then."""


def infer(model: Model, rng: np.random.Generator, stopping: threading.Event) -> None:
    """Run inferences no faster than the previous release's many processes on this machine."""
    opened = model._serving
    before = opened.record.shadowed.snapshot()
    model.run({"x": rng.standard_normal((1, WIDTH)).astype(np.float32)})
    while opened.shadow is not None and opened.record.shadowed.snapshot() == before:
        if before.because or stopping.wait(0.005):
            return


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applications]:
    """Start applications with frequent writes of their sketches."""
    monkeypatch.setattr(serving, "SPOOL_S", 0.2)
    with applications_of("tiny", infer) as running:
        yield running


def shadow_of(fleet: FleetProcess, rollout: str) -> GateView:
    return gate_of(fleet, rollout, "shadow")


def test_a_release_that_comes_to_something_else_than_the_one_before_is_rolled_back(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    applications: Applications,
    key_prefix: Path,
    tmp_path: Path,
) -> None:
    fleet = serve("--broker", mosquitto.url)
    key = load_private_key(key_prefix.with_suffix(".key"))

    def archive(bundle: ExampleBundle) -> Path:
        pack(bundle.folder, bundle.folder.with_suffix(".edgepack"))
        return bundle.folder.with_suffix(".edgepack")

    more = "\n[telemetry]\ninterval_s = 0.5\n[shadow]\nshare = 1.0\nbusy_share = 1.0\n"
    more += "disagree_max = 1.0\n"  # The fleet decides here, not the device.
    start_cameras(fleet, start_agent, tmp_path, more)
    one = make_bundle(tmp_path / "one", key, release=1)
    two = make_bundle(tmp_path / "two", key, release=2, tuned_from=one)
    three = make_bundle(tmp_path / "three", key, release=3)
    first = fleet.roll_out(archive(one), to=CAMERAS, waves="100%", deadline_s=400.0)
    fleet.wait_for(first, "FINISHED")
    assert shadow_of(fleet, first).verdict == "no evidence"
    for device in CAMERA_NAMES:
        applications.start(tmp_path / device / "state")
    wait_until(lambda: len(applications.models) == len(CAMERA_NAMES), "the applications run")

    views = {}
    for bundle in (two, three):
        done = edgepack(
            fleet,
            *("rollout", "start", str(archive(bundle)), "--group", "cameras", "--yes"),
            *("--waves", "100%", "--min-inferences", str(INFERENCES), "--deadline", "400"),
            *("--gate", "all=off", "--gate", "shadow=0.05", "--on-breach", "rollback", "--json"),
        )
        assert done.returncode == 0, done.stderr
        name = json.loads(done.stdout)["rollout"]
        fleet.wait_for(name, "FINISHED", "PAUSED", "ABORTED")
        views[bundle] = shadow_of(fleet, name)
    equal, other = views[two], views[three]
    assert (equal.verdict, equal.devices, equal.now) == ("pass", 3, 0.0), equal
    assert (other.devices, other.now) == (3, 1.0), other
    rollout = fleet.rollout(name)
    assert rollout.state == "ABORTED", rollout.because
    assert "shadow of " in rollout.because
    (breach,) = fleet.client.audit(rollout=name, action="rollout.breach")
    assert breach.actor == "gate shadow"

    def serves() -> set[str]:
        models = (model for device in fleet.client.devices() for model in device.models)
        return {model.active.version for model in models if model.active}

    fleet.wait_until(lambda: serves() == {two.ref.version}, "all devices went back")
    reasons = {
        event.because for event in fleet.client.events(limit=1000) if event.to_state == "COMMITTED"
    }
    assert any("shadow inferences agreed with 1.1.0" in because for because in reasons), reasons
    for model in applications.models:
        wait_until(lambda: model._serving.shadow is None, "nothing runs beside it any more")  # noqa: B023
