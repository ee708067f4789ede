"""The mosquitto of `broker-config`: nobody takes another's place, or leaves things behind."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.fleet.broker.link import Link
from edgepack.fleet.broker.settings.write import write_broker_folder
from edgepack.fleet.data_folder import CONTROLLER, DataFolder
from edgepack.wire import topics
from edgepack.wire.messages import MAX_MESSAGE_BYTES
from tests.integration.fleet.conftest import FleetProcess, Mosquitto, Serve, edgepack
from tests.integration.fleet.postgresql import PostgreSQL
from tests.simulators import warm_programs
from tests.simulators.signing import Speaker
from tests.simulators.waiting import wait_until

REPORT = b'{"v":1,"online":true,"at":1}'


@contextmanager
def device(
    fleet: FleetProcess, tmp_path: Path, name: str, client_id: str = ""
) -> Iterator[Speaker]:
    """Return a client with an enrolled device's certificate and key."""
    folder = tmp_path / name
    done = edgepack(fleet, "fleet", "enroll", name, "--group", "g", "-o", str(folder))
    assert done.returncode == 0, done.stderr
    with Speaker(folder, client_id=client_id) as speaker:
        yield speaker


def test_a_device_that_takes_the_controllers_client_id_throws_out_nobody(
    tls_fleet: FleetProcess, tmp_path: Path
) -> None:
    name = (tls_fleet.data / "controller").read_text()
    assert name.startswith(f"{CONTROLLER}-")
    with device(tls_fleet, tmp_path, "cam-1", client_id=name) as speaker:
        client = speaker.client
        # What it may not write is dropped, and so nothing of it is left behind.
        up = topics.up("default", "cam-1", "reported")
        client.publish(f"{up}s", REPORT, qos=1, retain=True).wait_for_publish(30)
        speaker.greet().say("reported", REPORT)
        tls_fleet.wait_until(lambda: tls_fleet.info().online == 1, "the report of cam-1 came")
    assert "unknown_topic" not in tls_fleet.info().counters
    log = (tls_fleet.data.parent / "serve.log").read_text()
    assert log.count(" connected") == 1, "the controller was never thrown out"
    assert " lost " not in log


def test_a_message_beyond_the_limit_is_not_read_and_its_sender_is_heard_again(
    tls_fleet: FleetProcess, tmp_path: Path
) -> None:
    has_ended = threading.Event()
    is_back = threading.Event()
    with device(tls_fleet, tmp_path, "cam-1") as speaker:
        client = speaker.client
        client.on_disconnect = lambda *_: has_ended.set()
        up = topics.up("default", "cam-1", "event")
        client.publish(up, b" " * MAX_MESSAGE_BYTES, qos=1).wait_for_publish(30)
        assert not has_ended.is_set(), "of the greatest length that devices send"
        client.on_subscribe = lambda *_: is_back.set()
        client.publish(up, b" " * 3 * MAX_MESSAGE_BYTES)
        assert has_ended.wait(400)
        # Devices connect anew by themselves.
        assert is_back.wait(400)
        speaker.greet().say("reported", REPORT)
        tls_fleet.wait_until(lambda: tls_fleet.info().online == 1, "it was heard")


def hears(fleet: FleetProcess) -> bool:
    return fleet.info().counters.get("not_enrolled") == 1


def test_two_fleets_meet_at_one_broker_and_both_stay(mosquitto: Mosquitto, tmp_path: Path) -> None:
    fleets = []
    for tenant in ("east", "west"):
        (tmp_path / tenant).mkdir()
        arguments = ("--broker", mosquitto.url, "--tenant", tenant)
        fleets.append(FleetProcess(tmp_path / tenant / "fleet", *arguments).start())
    try:
        client = open_client(BrokerAccess(url=mosquitto.url), "device")
        client.connect("127.0.0.1", mosquitto.port)
        client.loop_start()
        for tenant in ("east", "west"):
            topic = topics.up(tenant, "cam-1", "reported")
            client.publish(topic, REPORT, qos=1).wait_for_publish(30)
        for fleet in fleets:
            wait_until(partial(hears, fleet), "it hears its own device")
        client.disconnect()
        client.loop_stop()
    finally:
        for fleet in fleets:
            assert fleet.stop() == 0
    for fleet in fleets:
        assert " lost " not in (fleet.data.parent / "serve.log").read_text()


def test_settings_of_an_earlier_version_are_noticed(tls_fleet: FleetProcess) -> None:
    log = tls_fleet.data.parent / "serve.log"
    warning = "note: the broker's settings were written by an earlier edgepack"
    assert warning not in log.read_text()
    note = tls_fleet.data / "broker-settings"
    note.write_text("0")
    log.write_text("")
    assert tls_fleet.stop() == 0
    tls_fleet.start()
    assert warning in log.read_text()


def test_a_controller_that_has_a_certificate_keeps_its_name(
    tls_fleet: FleetProcess, serve: Serve
) -> None:
    (tls_fleet.data / "controller").unlink()
    tls_fleet.stop()
    tls_fleet.start()
    assert (tls_fleet.data / "controller").read_text() == CONTROLLER


def test_a_controller_whom_the_access_rules_do_not_name_says_so_at_the_start(
    tls_fleet: FleetProcess,
) -> None:
    broker = tls_fleet.info().broker
    assert tls_fleet.stop() == 0
    for name in ("controller", "pki/controller.crt"):
        (tls_fleet.data / name).unlink()
    words = ("fleet", "serve", "--broker", broker, "--data", str(tls_fleet.data), "--port", "0")
    done = warm_programs.run(
        [sys.executable, "-m", "edgepack.cli", *words],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "WARNING" not in line] == [
        "error: the broker refused the controller: it may not publish (Not authorized)",
        f"  found in: {broker}",
        "  try: let the broker's access rules name this controller: edgepack fleet broker-config "
        "writes them",
    ]


# paho makes itself a new pair of sockets and leaves the old one to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_thread_of_the_broker_that_ended_is_started_again(mosquitto: Mosquitto) -> None:
    heard: list[bytes] = []
    link = Link(
        BrokerAccess(url=mosquitto.url),
        client_id="controller",
        subscriptions=("said",),
        trial="trial",
        on_message=lambda _, payload: heard.append(payload),
        on_connected=lambda: None,
    )

    def says(word: bytes) -> bool:
        link.look_after()
        link.publish_retained("said", word)
        return word in heard

    link.open()
    try:
        wait_until(lambda: says(b"before"), "it hears")
        link._client._thread_terminate = True  # what ends paho's loop
        name = "paho-mqtt-client-controller"
        wait_until(lambda: name not in {t.name for t in threading.enumerate()}, "it has ended")
        wait_until(lambda: says(b"after"), "it hears again")
    finally:
        link.close()


def test_the_access_rules_know_several_controllers_and_whoever_leads(
    tls_fleet: FleetProcess, postgresql: PostgreSQL
) -> None:
    assert tls_fleet.stop() == 0
    write_broker_folder(
        DataFolder(tls_fleet.data),
        folder=tls_fleet.broker_folder,
        hosts=("localhost",),
        port=1,
        tenant="default",
        controllers=2,
    )
    assert tls_fleet.broker is not None
    tls_fleet.broker.send_signal(signal.SIGHUP)  # it reads the access rules anew
    url = tls_fleet.arguments[tls_fleet.arguments.index("--broker") + 1]
    arguments = ("--broker", url, "--database", postgresql.empty_database(), "--lease", "10")
    both = [FleetProcess(tls_fleet.data, *arguments).start() for _ in range(2)]
    try:
        first, second = (one.info() for one in both)
        assert first.controller != second.controller
        wait_until(lambda: both[1].info().leader == first.controller, "the first one leads")
        assert both[0].stop() == 0
        wait_until(lambda: both[1].info().leader == second.controller, "the second one leads")
        log = tls_fleet.data.parent / "serve.log"
        assert "refused" not in log.read_text()
    finally:
        for one in both:
            if one.process is not None and one.process.poll() is None:
                one.stop()
