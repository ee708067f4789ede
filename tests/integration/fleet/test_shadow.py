"""Real agents measure shadow agreement, and a rollout stops by it: real bundles, a real broker."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.agent.serving import model as serving
from edgepack.agent.serving.model import Model, open_model
from edgepack.agent.serving.opened import OpenedModel
from edgepack.agent.telemetry.shadowed import Shadowed
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from edgepack.fleet.documents.gates import GateView
from tests.integration.fleet.conftest import (
    CAMERAS,
    FleetProcess,
    Mosquitto,
    StartAgent,
    edgepack,
    wait_until,
)
from tests.simulators.bundles import WIDTH, ExampleBundle, make_bundle

DEVICES = ("cam-1", "cam-2", "cam-3")
INFERENCES = 300
"""That a soak waits for: of the first 60 shadow inferences the fleet has heard by then."""


class Applications:
    """One a device, in a thread."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.models: list[Model] = []
        self.failed: list[BaseException] = []

    def start(self, state_dir: Path) -> None:
        thread = threading.Thread(target=self._run, args=(state_dir,))
        self._threads.append(thread)
        thread.start()

    def _run(self, state_dir: Path) -> None:
        rng = np.random.default_rng()
        try:
            with open_model("tiny", state_dir, threads=1) as model:
                self.models.append(model)
                while not self._stopping.wait(0.01):
                    serving = model._serving
                    before = serving.record.shadowed.snapshot()
                    model.run({"x": rng.standard_normal((1, WIDTH)).astype(np.float32)})
                    self._follow(serving, before)
        except BaseException as error:
            self.failed.append(error)
            raise

    def _follow(self, serving: OpenedModel, before: Shadowed) -> None:
        """Runs no faster than the release before, whose processes are many on this machine."""
        while serving.shadow is not None and serving.record.shadowed.snapshot() == before:
            if before.because or self._stopping.wait(0.005):
                return

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(20)


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applications]:
    """Each writes often what it saw."""
    monkeypatch.setattr(serving, "SPOOL_S", 0.2)
    running = Applications()
    yield running
    running.stop()
    assert running.failed == []


def shadow_of(fleet: FleetProcess, rollout: str) -> GateView:
    (view,) = [view for view in fleet.rollout(rollout).gates if view.name == "shadow"]
    return view


def test_a_release_that_comes_to_something_else_than_the_one_before_is_rolled_back(
    mosquitto: Mosquitto,
    serve: Callable[..., Any],
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

    for device in DEVICES:
        folder = tmp_path / device
        fleet.client.enroll(device, group="cameras", folder=folder, state_dir=folder / "state")
        with (folder / "agent.toml").open("a") as settings:
            settings.write("\n[limits]\ntelemetry_interval_s = 0.2\n")
            settings.write("\n[shadow]\nshare = 1.0\nbusy_share = 1.0\n")
        start_agent(fleet, device)
    fleet.wait_until(lambda: fleet.info().online == len(DEVICES), "the agents are online")
    one = make_bundle(tmp_path / "one", key, release=1)
    two = make_bundle(tmp_path / "two", key, release=2, tuned_from=one)
    three = make_bundle(tmp_path / "three", key, release=3)
    first = fleet.roll_out(archive(one), to=CAMERAS, waves="100%", deadline_s=60.0)
    fleet.wait_for(first, "FINISHED", timeout_s=120)
    assert shadow_of(fleet, first).verdict == "no evidence"
    for device in DEVICES:
        applications.start(tmp_path / device / "state")
    wait_until(lambda: len(applications.models) == len(DEVICES), "the applications run")

    views = {}
    for bundle in (two, three):
        done = edgepack(
            fleet,
            *("rollout", "start", str(archive(bundle)), "--group", "cameras", "--yes"),
            *("--waves", "100%", "--min-inferences", str(INFERENCES), "--deadline", "240"),
            *("--gate", "all=off", "--gate", "shadow=0.05", "--on-breach", "rollback", "--json"),
        )
        assert done.returncode == 0, done.stderr
        name = json.loads(done.stdout)["rollout"]
        fleet.wait_for(name, "FINISHED", "PAUSED", "ABORTED", timeout_s=240)
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
