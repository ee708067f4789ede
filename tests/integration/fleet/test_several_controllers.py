"""Several controllers on the same PostgreSQL: real processes, killed and stopped while leading."""

import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.fleet.documents.rollouts import RolloutView
from edgepack.wire import topics
from edgepack.wire.messages import decode, encode
from edgepack.wire.orders import Desired
from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Serve, Simulate
from tests.integration.fleet.controller_processes import ControllerProcesses, controllers
from tests.integration.fleet.postgresql import PostgreSQL
from tests.simulators import warm_programs
from tests.simulators.signing import Speaker
from tests.simulators.waiting import wait_until
from tests.unit.fleet.world import says, telemetry_window

MOSQUITTO, EJABBERD = "mosquitto", "ejabberd"
KILLS = {MOSQUITTO: 20, EJABBERD: 6}
WAVES = "1,3,6,9,12,15,18,100%"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that controllers share.

    Attributes:
        kind: Kind of the broker.
        access: Access of a listener to all topics.
        listener: His name.
    """

    kind: str
    access: BrokerAccess
    listener: str


class Listener:
    """Receives all orders of devices, in sequence."""

    def __init__(self, place: Place) -> None:
        self.told: dict[str, list[bytes]] = defaultdict(list)
        self._client = open_client(place.access, place.listener)
        subscribed = threading.Event()
        self._client.on_message = self._hear
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect_somewhere()
        self._client.loop_start()
        self._client.subscribe(topics.desired("default", "+"), qos=1)
        assert subscribed.wait(400)

    def _hear(self, _client: object, _userdata: object, message: Any) -> None:
        if message.payload:
            self.told[message.topic.split("/")[4]].append(message.payload)

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def check(self, answers: int) -> None:
        """Check that no device received an older order after a newer order, or two orders with the
        same number.

        The first order, with number 0, is empty.
        """
        for device, payloads in self.told.items():
            documents = [decode(payload, Desired) for payload in payloads]
            numbers = [document.sequence for document in documents]
            assert numbers == sorted(numbers), device
            # What is said again is signed anew, and says the same.
            said = {
                (one.sequence, encode(Desired(sequence=0, models=one.models))) for one in documents
            }
            assert len(said) == len(set(numbers)), (device, numbers)
            assert len(set(numbers) - {0}) == answers, (device, numbers)


@pytest.fixture(params=[MOSQUITTO, EJABBERD])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == MOSQUITTO:
        access = BrokerAccess(url=request.getfixturevalue("mosquitto").url)
        yield Place(kind=MOSQUITTO, access=access, listener="listener")
        return
    cluster = request.getfixturevalue("ejabberd")
    cluster.adopt(tmp_path / "fleet")
    listener = cluster.names[-1]
    yield Place(kind=EJABBERD, access=cluster.access(listener), listener=listener)


@pytest.fixture
def processes(
    tmp_path: Path, postgresql: PostgreSQL, place: Place, key_prefix: Path
) -> Iterator[ControllerProcesses]:
    trust = key_prefix.with_suffix(".pub")
    with controllers(tmp_path / "fleet", postgresql, place.access.url, trust) as processes:
        yield processes


@pytest.fixture
def listener(place: Place) -> Iterator[Listener]:
    listener = Listener(place)
    yield listener
    listener.stop()


def without_measured(view: RolloutView) -> RolloutView:
    """Remove latency and gates, which a controller other than the leader may also have written."""
    return msgspec.structs.replace(view, latency=(), gates=())


def started_waves(fleet: FleetProcess, rollout: str) -> list[str]:
    events = fleet.client.events(limit=1000)
    return [
        event.because
        for event in events
        if event.rollout == rollout and event.because.startswith("wave ") and not event.device
    ]


def approve_after(fleet: FleetProcess, rollout: str, wave: int) -> None:
    """Approve the wave after a wave, once that wave has begun."""
    wait_until(lambda: len(started_waves(fleet, rollout)) == wave, "the wave begins")
    fleet.client.approve_rollout(rollout)


def test_a_rollout_is_finished_though_whoever_leads_is_killed_again_and_again(
    place: Place,
    processes: ControllerProcesses,
    listener: Listener,
    simulation: Simulate,
    make_bundle: MakeBundle,
) -> None:
    names = [processes.start() for _ in range(2)]
    fleet = processes.fleets[names[0]]
    simulation(fleet, count=20)
    # Each wave waits for its approval, so the kills meet all waves on a machine of any speed.
    rollout = fleet.roll_out(
        make_bundle(), waves=WAVES, soak_s=1.0, deadline_s=300.0, approve_waves=True
    )
    last = WAVES.count(",")
    moments, approved, kills = random.Random(17), 0, KILLS[place.kind]
    for kill in range(1, kills + 1):
        fleet = next(iter(processes.fleets.values()))
        for wave in range(approved + 1, last * kill // kills + 1):
            approve_after(fleet, rollout, wave)
            approved = wave
        leader = processes.leader
        time.sleep(moments.uniform(0.0, 0.8))
        processes.kill(leader)
        processes.start()
    fleet = next(iter(processes.fleets.values()))
    done = fleet.wait_for(rollout, "FINISHED")
    assert done.counts == {"COMMITTED": 20}
    assert len(listener.told) == 20
    listener.check(answers=1)
    waves = started_waves(fleet, rollout)
    assert [wave.split(":")[0] for wave in waves] == [f"wave {n} of 8" for n in range(1, 9)]


def test_a_leader_that_hangs_and_wakes_up_says_and_writes_nothing(
    processes: ControllerProcesses,
    listener: Listener,
    simulation: Simulate,
    make_bundle: MakeBundle,
) -> None:
    first, second = (processes.start("--lease", "4") for _ in range(2))
    assert processes.leader == first
    fleet = processes.fleets[second]
    simulation(fleet, count=12)
    # What is asked of a follower is done by the leader.
    rollout = fleet.roll_out(make_bundle(), waves="4,8,100%", soak_s=0.5)
    fleet.wait_until(lambda: bool(listener.told), "the first wave is offered")
    hanging = processes.fleets[first]
    hanging.send_signal(signal.SIGSTOP)
    try:
        assert fleet.wait_for(rollout, "FINISHED").counts == {"COMMITTED": 12}
        assert fleet.info().leader == second
        # What devices measured goes to a controller that hangs, too, and is lost with it.
        other = fleet.roll_out(make_bundle("2.0.0", 2), waves="100%", soak_s=0.2, evidence_s=1.0)
        assert fleet.wait_for(other, "FINISHED").counts == {"COMMITTED": 12}
        before = without_measured(fleet.rollout(rollout))
    finally:
        hanging.send_signal(signal.SIGCONT)
    wait_until(
        lambda: "leads no longer" in hanging.log.read_text(), "it sees that it leads no longer"
    )
    assert without_measured(fleet.rollout(rollout)) == before
    third = fleet.roll_out(make_bundle("3.0.0", 3), waves="100%", soak_s=0.2, evidence_s=1.0)
    assert fleet.wait_for(third, "FINISHED").counts == {"COMMITTED": 12}
    assert processes.leader == second
    listener.check(answers=3)


@pytest.mark.parametrize("place", [MOSQUITTO], indirect=True)  # ejabberd shares no subscription
def test_telemetry_is_shared_by_the_controllers_and_each_window_counts_once(
    place: Place, processes: ControllerProcesses, tmp_path: Path
) -> None:
    names = [processes.start() for _ in range(2)]
    fleet = processes.fleets[names[1]]
    fleet.client.enroll("cam-1", group="cameras", folder=tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1") as device:
        device.greet().say("reported", says("IDLE"))
        wait_until(lambda: fleet.client.device("cam-1").online, "its session is known to all")
        for _ in range(20):
            device.say("telemetry", telemetry_window())

    def heard() -> list[int]:
        return [one.info().counters.get("telemetry", 0) for one in processes.fleets.values()]

    wait_until(lambda: sum(heard()) == 20, "all of it is taken down")
    assert min(heard()) > 0


def test_a_second_controller_on_an_sqlite_is_refused(serve: Serve, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'shared.db'}"
    serve("--database", database)
    done = warm_programs.run(
        [
            *(sys.executable, "-m", "edgepack.cli", "fleet", "serve", "--database", database),
            *("--data", str(tmp_path / "other"), "--port", "0"),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: another 'edgepack fleet serve' works on this database",
        f"  found in: {tmp_path / 'shared.db'}",
        "  try: stop it; several controllers share a PostgreSQL: --database postgresql://…",
    ]
