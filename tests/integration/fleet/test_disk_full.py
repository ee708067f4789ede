"""A fleet with a full disk: reports this, loses nothing, and continues once there is space."""

import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from edgepack.errors import FleetError
from edgepack.fleet.database.store import DatabaseAwayError
from edgepack.fleet.documents.rollouts import RolloutSettings
from tests.integration.fleet.conftest import (
    SIMULATED,
    FleetProcess,
    MakeBundle,
    Mosquitto,
    Serve,
    Simulate,
)
from tests.simulators.waiting import wait_until
from tests.unit.fleet.world import NEW, World, says

DEVICES = 20


class SmallFiles:
    """Limit on the size of a process's files: the kernel rejects writes beyond the limit."""

    def __init__(self, fleet: FleetProcess) -> None:
        assert fleet.process is not None
        self._pid = fleet.process.pid

    def begin(self, size_bytes: int) -> None:
        self._limit(size_bytes)

    def end(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size_bytes: int) -> None:
        hard = resource.RLIM_INFINITY
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


@pytest.fixture
def fleet(serve: Serve, mosquitto: Mosquitto) -> Iterator[FleetProcess]:
    one = serve("--broker", mosquitto.url)
    yield one
    SmallFiles(one).end()


def committed(fleet: FleetProcess) -> int:
    """Return the devices that reported a commit of a release, each once."""
    with closing(sqlite3.connect(fleet.data / "fleet.db")) as database:
        query = "SELECT count(*), count(DISTINCT device) FROM events WHERE to_state = 'COMMITTED'"
        said, devices = database.execute(query + " AND device != ''").fetchone()
    assert said == devices
    return int(devices)


def test_a_rollout_waits_for_room_and_loses_nothing(
    fleet: FleetProcess, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    simulation(fleet, count=DEVICES)
    release = fleet.client.publish(make_bundle())
    settings = RolloutSettings(waves="2,100%", soak_s=0.5, deadline_s=400.0)
    rollout = fleet.client.start_rollout(release, SIMULATED, settings).rollout
    wait_until(lambda: fleet.rollout(rollout).counts.get("COMMITTED", 0) > 0, "it has begun")
    small = SmallFiles(fleet)
    small.begin(4096)
    with pytest.raises(FleetError) as refusal:
        fleet.client.pause_rollout(rollout)
    assert refusal.value.problem.startswith("the database can take nothing down: ")
    assert "make room on its disk" in (refusal.value.remedy or "")
    # Nobody is told what is not durable, and what devices say waits; what is read is still read.
    before = fleet.rollout(rollout)
    for _ in range(15):
        time.sleep(0.2)
        assert fleet.rollout(rollout).counts == before.counts
    small.end()
    done = fleet.wait_for(rollout, "FINISHED")
    assert done.counts == {"COMMITTED": DEVICES}
    wait_until(lambda: committed(fleet) == DEVICES, "every device's word is there")
    counters = fleet.info().counters
    assert not counters.get("broken")
    assert not counters.get("overflow")
    assert "stumbled" not in (fleet.data.parent / "serve.log").read_text()


def test_a_release_that_has_no_room_is_refused_and_taken_later(
    fleet: FleetProcess, make_bundle: MakeBundle
) -> None:
    small = SmallFiles(fleet)
    archive = make_bundle()
    for size_bytes in (100_000, 305_000):  # in the upload; where it is unpacked, or signed for
        small.begin(size_bytes)
        with pytest.raises(FleetError) as refusal:
            fleet.client.publish(archive)
        assert "cannot" in refusal.value.problem
        assert "Errno" not in str(refusal.value)
        assert not fleet.client.releases()
        assert not list((fleet.data / "releases").glob("*/manifest.json"))
    small.end()
    release = fleet.client.publish(archive)
    assert [view.bundle for view in fleet.client.releases()] == [release.bundle]


def test_what_finds_no_room_in_the_middle_of_a_statement_is_taken_again(tmp_path: Path) -> None:
    """Use a database of a few pages: SQLite itself reports a full disk, at a statement."""
    world = World(tmp_path)
    world.enroll("a")
    world.start()
    world.look()
    pages = {"most": 1}

    def bound(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages['most']}")

    event.listen(world.store._engine, "checkout", bound)
    said = says("COMMITTED", 1, acted=1, active=NEW, because="x" * 100_000)
    with pytest.raises(DatabaseAwayError, match=r"can take nothing down: .* full"):
        world.hear("a", said)
    assert world.view("r1").counts == {"OFFERED": 1}
    pages["most"] = 1_000_000
    world.look()
    assert world.view("r1").counts == {"COMMITTED": 1}
    assert not world.inbox.counters["broken"]
