"""The whole path with real agents as processes: enrolled, rolled out to, refused, taken back."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepack.errors import FleetError
from edgepack.fleet.documents.rollouts import RolloutSettings
from edgepack.fleet.repository.repository import ImageRepository
from tests.integration.fleet.conftest import CAMERAS, FleetProcess, Mosquitto, Serve, StartAgent
from tests.integration.fleet.postgresql import PostgreSQL
from tests.simulators.newer_minor import NEW_KIND


def running(fleet: Any) -> dict[str, str]:
    found = fleet.client.devices()
    return {
        device.device: next((m.active.version for m in device.models if m.active), "")
        for device in found
    }


def test_real_agents_take_what_is_right_refuse_what_is_wrong_and_go_back_when_told(
    tmp_path: Path, serve: Serve, start_agent: StartAgent, release: Callable[..., Path]
) -> None:
    fleet = serve()
    for device in ("cam-1", "cam-2"):
        start_agent(fleet, device)
    fleet.wait_until(lambda: fleet.info().online == 2, "the agents are online")

    first = fleet.roll_out(release(1), to=CAMERAS, deadline_s=400.0)
    view = fleet.wait_for(first, "FINISHED", "PAUSED")
    assert view.counts == {"COMMITTED": 2}, view
    second = fleet.roll_out(release(2), to=CAMERAS, deadline_s=400.0)
    fleet.wait_for(second, "FINISHED")
    assert running(fleet) == {"cam-1": "1.2.0", "cam-2": "1.2.0"}

    broken = fleet.roll_out(release(3, is_wrong=True), to=CAMERAS, deadline_s=400.0)
    view = fleet.wait_for(broken, "PAUSED")
    assert view.counts == {"FAILED": 1, "WAITING": 1}
    failed = next(part for part in view.assignments if part.state == "FAILED")
    assert "golden" in failed.because
    assert fleet.client.abort_rollout(broken).counts == {"FAILED": 1, "WITHDRAWN": 1}
    assert running(fleet) == {"cam-1": "1.2.0", "cam-2": "1.2.0"}

    settings = RolloutSettings(waves="1,100%", soak_s=0.2, deadline_s=400.0)
    (back,) = fleet.client.rollback(second, settings=settings)
    view = fleet.wait_for(back.rollout, "FINISHED", "PAUSED")
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


@pytest.mark.parametrize(("controller", "agents"), [("", ("", "newer")), ("newer", ("",))])
def test_agents_and_controllers_of_different_minor_versions_finish_rollouts(
    mosquitto: Mosquitto,
    tmp_path: Path,
    key_prefix: Path,
    start_agent: StartAgent,
    release: Callable[..., Path],
    controller: str,
    agents: tuple[str, ...],
) -> None:
    trust = ("--trust", str(key_prefix.with_suffix(".pub")), "--broker", mosquitto.url)
    fleet = FleetProcess(tmp_path / "fleet", *trust)
    fleet.age = controller
    fleet.start()
    try:
        for age in agents:
            start_agent(fleet, f"cam-{age or 'same'}", age)
        fleet.wait_until(lambda: fleet.info().online == len(agents), "the agents are online")
        for number in (1, 2):
            name = fleet.roll_out(release(number), to=CAMERAS, deadline_s=400.0)
            view = fleet.wait_for(name, "FINISHED", "PAUSED")
            assert view.counts == {"COMMITTED": len(agents)}, view
        (back,) = fleet.client.rollback(name, settings=RolloutSettings(waves="100%", soak_s=0.2))
        view = fleet.wait_for(back.rollout, "FINISHED", "PAUSED")
        assert view.counts == {"COMMITTED": len(agents)}, view
        counters = fleet.info().counters
        assert "malformed" not in counters
        assert "broken" not in counters
        kinds = {event.kind for event in fleet.client.events(limit=1000) if event.device}
        assert (NEW_KIND in kinds) == ("newer" in agents), "shown as it came"
        assert ("transition" in kinds) == (agents != ("newer",))
    finally:
        assert fleet.stop() == 0


def test_a_device_restored_from_an_old_backup_of_its_state_folder_speaks_again(
    mosquitto: Mosquitto, serve: Serve, start_agent: StartAgent, release: Callable[..., Path]
) -> None:
    fleet = serve("--broker", mosquitto.url)
    agent = start_agent(fleet, "cam-1")
    state = fleet.data.parent / "cam-1" / "state"
    fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")

    def stop() -> None:
        agent.terminate()
        agent.wait(400)
        fleet.wait_until(lambda: fleet.info().online == 0, "the agent is away")

    stop()
    is_socket = shutil.ignore_patterns("*.sock")
    shutil.copytree(state, state.with_name("backup"), symlinks=True, ignore=is_socket)
    agent = start_agent(fleet, "cam-1")
    first = fleet.roll_out(release(1), to=CAMERAS, waves="100%", deadline_s=400.0)
    fleet.wait_for(first, "FINISHED")
    stop()
    shutil.rmtree(state)
    state.with_name("backup").rename(state)
    agent = start_agent(fleet, "cam-1")
    # The device knows neither its order nor the release; it takes both again.
    fleet.wait_until(lambda: fleet.info().online == 1, "it is heard")
    fleet.wait_until(lambda: running(fleet) == {"cam-1": "1.1.0"}, "it serves the release again")
    assert not fleet.info().dropped


def knows_of_restore(fleet: FleetProcess) -> bool:
    with contextlib.suppress(FleetError):
        return bool(fleet.client.audit(action="database.restored"))
    return False


def test_after_a_restore_under_a_running_controller_a_running_device_hears_what_is_said_next(
    mosquitto: Mosquitto,
    postgresql: PostgreSQL,
    serve: Serve,
    start_agent: StartAgent,
    release: Callable[..., Path],
) -> None:
    database = postgresql.empty_database()
    fleet = serve("--broker", mosquitto.url, "--database", database, "--lease", "1")
    copy = fleet.data.parent / "copy.sql"
    start_agent(fleet, "cam-1")
    fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")
    postgresql.dump(copy)
    first = fleet.roll_out(release(1), to=CAMERAS, waves="100%", deadline_s=400.0)
    fleet.wait_for(first, "FINISHED")
    version = ImageRepository(fleet.data / "tuf").state.timestamp.signed.version
    postgresql.restore(copy)
    # The controller that leads anew ends the sessions of its former self: a reading may be cut.
    fleet.wait_until(lambda: knows_of_restore(fleet), "it is seen")
    assert fleet.client.rollouts() == ()
    # Number 1 ordered another release, of which this database knows nothing.
    second = fleet.roll_out(release(2), to=CAMERAS, waves="100%", deadline_s=400.0)
    view = fleet.wait_for(second, "FINISHED", "PAUSED")
    assert view.counts == {"COMMITTED": 1}, view
    assert running(fleet) == {"cam-1": "1.2.0"}
    assert ImageRepository(fleet.data / "tuf").state.timestamp.signed.version > version
