"""The whole path with real agents as processes: enrolled, rolled out to, refused, taken back."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from tests.simulators.bundles import make_bundle as make_real_bundle

Serve = Callable[..., Any]


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[[Any, str], None]]:
    """Enrols a device and runs its agent."""
    agents: list[subprocess.Popen[bytes]] = []

    def start(fleet: Any, device: str) -> None:
        folder = tmp_path / device
        fleet.client.enroll(device, group="cameras", folder=folder, state_dir=folder / "state")
        command = [sys.executable, "-m", "edgepack.agent.cli", "run"]
        with (folder / "agent.log").open("w") as log:
            agents.append(
                subprocess.Popen(
                    [*command, "--config", str(folder / "agent.toml")], stdout=log, stderr=log
                )
            )

    yield start
    for agent in agents:
        agent.terminate()
    for agent in agents:
        agent.wait(20)


@pytest.fixture
def release(tmp_path: Path, key_prefix: Path) -> Callable[..., Path]:
    """Real bundles with a model that runs, as archives."""

    def make(number: int, *, is_wrong: bool = False) -> Path:
        folder = tmp_path / f"release-{number}"
        key = load_private_key(key_prefix.with_suffix(".key"))
        make_real_bundle(folder, key, release=number, is_wrong=is_wrong)
        archive = tmp_path / f"release-{number}.edgepack"
        pack(folder, archive)
        return archive

    return make


def running(fleet: Any) -> dict[str, str]:
    found = fleet.client.devices()
    return {
        device.device: next((m.active.version for m in device.models if m.active), "")
        for device in found
    }


def test_real_agents_take_what_is_right_refuse_what_is_wrong_and_go_back_when_told(
    tmp_path: Path,
    serve: Serve,
    start_agent: Callable[[Any, str], None],
    release: Callable[..., Path],
) -> None:
    fleet = serve()
    cameras = Selector(kind="group", group="cameras")
    for device in ("cam-1", "cam-2"):
        start_agent(fleet, device)
    fleet.wait_until(lambda: fleet.info().online == 2, "the agents are online")

    first = fleet.roll_out(release(1), to=cameras, deadline_s=60.0)
    view = fleet.wait_for(first, "FINISHED", "PAUSED", timeout_s=120)
    assert view.counts == {"COMMITTED": 2}, view
    second = fleet.roll_out(release(2), to=cameras, deadline_s=60.0)
    fleet.wait_for(second, "FINISHED", timeout_s=120)
    assert running(fleet) == {"cam-1": "1.2.0", "cam-2": "1.2.0"}

    broken = fleet.roll_out(release(3, is_wrong=True), to=cameras, deadline_s=60.0)
    view = fleet.wait_for(broken, "PAUSED", timeout_s=120)
    assert view.counts == {"FAILED": 1, "WAITING": 1}
    failed = next(part for part in view.assignments if part.state == "FAILED")
    assert "golden" in failed.because
    assert fleet.client.abort_rollout(broken).counts == {"FAILED": 1, "WITHDRAWN": 1}
    assert running(fleet) == {"cam-1": "1.2.0", "cam-2": "1.2.0"}

    settings = RolloutSettings(waves="1,100%", soak_s=0.2, deadline_s=60.0)
    (back,) = fleet.client.rollback(second, settings=settings)
    view = fleet.wait_for(back.rollout, "FINISHED", "PAUSED", timeout_s=120)
    assert view.counts == {"COMMITTED": 2}, view
    assert running(fleet) == {"cam-1": "1.1.0", "cam-2": "1.1.0"}
    assert fleet.rollout(second).counts == {"RECALLED": 2}

    start_agent(fleet, "cam-3")
    fleet.wait_until(
        lambda: running(fleet).get("cam-3") == "1.1.0", "the late one gets the last good release"
    )
    # Nothing was wanted of them at first, and they could tell: the controller had answered.
    for device in ("cam-1", "cam-2"):
        said = (tmp_path / device / "agent.log").read_text()
        assert "no controller answers" not in said
        assert "nobody listens" not in said
