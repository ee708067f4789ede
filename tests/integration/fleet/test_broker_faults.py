"""Brokers that die with many devices connected, and controllers that hang with shared resources."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.fleet.broker.link import Link
from edgepack.fleet.broker.links import Links
from edgepack.wire import topics
from tests.integration.fleet.conftest import MakeBundle, Mosquitto, Serve, Simulate
from tests.simulators.waiting import wait_until

DEVICES = 300


def test_three_hundred_devices_that_come_back_at_once_are_all_there_and_commit_once(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, mosquitto: Mosquitto
) -> None:
    fleet = serve("--broker", mosquitto.url)
    simulation(fleet, count=DEVICES)
    rollout = fleet.roll_out(make_bundle(), waves="10%,100%", soak_s=1.0, deadline_s=300.0)
    for share in (0.1, 0.4):
        wait_until(
            lambda share=share: (
                fleet.rollout(rollout).counts.get("COMMITTED", 0) >= share * DEVICES
            ),  # type: ignore[misc]
            "some have committed",
        )
        assert mosquitto.process is not None
        mosquitto.process.kill()  # it keeps nothing: no session, nothing that was retained
        mosquitto.process.wait(400)
        mosquitto.start()
    done = fleet.wait_for(rollout, "FINISHED")
    assert done.counts == {"COMMITTED": DEVICES}
    wait_until(lambda: fleet.info().online == DEVICES, "all of them are online")
    with closing(sqlite3.connect(fleet.data / "fleet.db")) as database:
        query = "SELECT device FROM events WHERE to_state = 'COMMITTED' AND device != ''"
        committed = Counter(device for (device,) in database.execute(query))
    # What the broker had yet to hand on died with it: some of the history, nothing of the state.
    assert set(committed.values()) == {1}
    assert not fleet.info().counters.get("overflow")


class Heard:
    """A controller's connections, and the received topics."""

    def __init__(self, name: str, mosquitto: Mosquitto) -> None:
        self.topics: list[str] = []
        access = BrokerAccess(url=mosquitto.url)
        self.own = Link(
            access,
            client_id=name,
            subscriptions=(),
            trial=topics.desired("default", name),
            on_message=self._hear,
            on_connected=lambda: None,
        )
        self.own.open()
        self.links = Links(
            self.own,
            access=lambda _: access,
            leader_client_id=lambda: "leader",
            tenant="default",
            on_message=self._hear,
            on_connected=lambda: None,
        )

    def _hear(self, topic: str, _: bytes) -> None:
        self.topics.append(topic)


@pytest.fixture
def controllers(mosquitto: Mosquitto) -> Iterator[tuple[Heard, Heard]]:
    both = Heard("one", mosquitto), Heard("two", mosquitto)
    yield both
    for one in both:
        one.own.close()


def test_what_devices_measure_goes_to_the_others_while_a_controller_hangs(
    controllers: tuple[Heard, Heard], mosquitto: Mosquitto
) -> None:
    first, second = controllers
    client = open_client(BrokerAccess(url=mosquitto.url), "cam-1")
    client.connect("127.0.0.1", mosquitto.port)
    client.loop_start()

    def say(count: int) -> None:
        """Publish a number of messages, and wait for their receipt."""
        before = len(first.topics) + len(second.topics)
        for _ in range(count):
            topic = topics.up("default", "cam-1", "telemetry")
            client.publish(topic, b"{}", qos=1).wait_for_publish(10)
        wait_until(
            lambda: len(first.topics) + len(second.topics) == before + count, "all of it is heard"
        )

    try:
        while not (first.topics and second.topics):  # until the broker knows both subscriptions
            say(10)
        first.links.leave_share()
        while True:  # until the broker has taken note
            heard = len(first.topics)
            say(10)
            if len(first.topics) == heard:
                break
        first.links.look_after()
        while len(first.topics) == heard:
            say(10)
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_leader_whose_connection_the_broker_ended_knows_it_and_opens_it_anew(
    controllers: tuple[Heard, Heard],
) -> None:
    leads, other = (one.links for one in controllers)
    leads.lead()
    assert leads.can_publish
    other.lead()  # the same client id: the broker tells the first one so, and ends its connection
    wait_until(lambda: not leads.can_publish, "it knows")
    leads.lead()
    assert leads.can_publish
    wait_until(lambda: not other.can_publish, "and so does the other one")
    leads.follow()
    other.follow()
