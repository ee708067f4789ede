"""The agent with absent or rejecting brokers, and brokers that require certificates."""

import json
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.publish
import pytest

from edgepack.agent.broker.connection import MAX_PACKET_BYTES, Connection
from edgepack.agent.broker.inbox import Arrived, Connected, Inbox, Item
from edgepack.agent.broker.signing import make_signer
from edgepack.agent.config import AgentConfig, BrokerConfig, TrustConfig
from edgepack.wire import topics
from tests.integration.conftest import Keys
from tests.simulators import broker as mosquitto
from tests.simulators import warm_programs
from tests.simulators.broker import Broker
from tests.simulators.certificates import issue, make_authority
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, running, wait_for_line
from tests.simulators.ports import free_port
from tests.simulators.waiting import PATIENCE_S, wait_until


@pytest.fixture
def needs_mosquitto() -> None:
    if not mosquitto.is_installed():
        pytest.skip("mosquitto is not installed")


@pytest.mark.usefixtures("needs_mosquitto")
def test_an_agent_waits_for_a_broker_that_is_not_there_yet_and_says_so(
    tmp_path: Path, release_keys: Keys
) -> None:
    port = free_port()
    device = Device(tmp_path / "device", f"mqtt://127.0.0.1:{port}", release_keys[1])
    with running(device):
        line = wait_for_line(device, "cannot reach the broker")
        assert "WARNING" in line
        assert f"broker 127.0.0.1:{port}" in line
        assert "Connection refused" in line
        time.sleep(2)
        assert device.said().count("cannot reach the broker") == 1
        with Broker(tmp_path, port=port):
            wait_for_line(device, "connected to 127.0.0.1")
            assert device.stop() == 0


@pytest.mark.usefixtures("needs_mosquitto")
def test_wrong_credentials_are_named_and_right_ones_let_it_in(
    tmp_path: Path, release_keys: Keys
) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch(mode=0o600)
    warm_programs.run(
        ["mosquitto_passwd", "-b", str(passwords), DEVICE, "right"], check=True, timeout=400
    )
    settings = ("allow_anonymous false", f"password_file {passwords}")
    secret = tmp_path / "secret"
    refused = "refuses this device's user name, password or certificate"
    with Broker(tmp_path, settings=settings) as broker:
        device = Device(
            tmp_path / "device",
            broker.url,
            release_keys[1],
            broker_lines=(f'password_file = "{secret}"',),
        )
        for password, said in (("wrong", refused), ("right", "connected to")):
            secret.write_text(f"{password}\n")
            with running(device):
                wait_for_line(device, said)
                time.sleep(1.5)  # Long enough for a second attempt.
                assert device.stop() == 0
    assert "wrong" not in device.said()
    assert device.said().count("refuses this device") == 1


@pytest.mark.usefixtures("needs_mosquitto")
def test_a_certificate_lets_the_device_in_and_an_unknown_authority_is_refused(
    tmp_path: Path, release_keys: Keys
) -> None:
    authority = make_authority(tmp_path, "ca")
    make_authority(tmp_path, "stranger")
    issue(tmp_path, "server", authority, "127.0.0.1")
    issue(tmp_path, "device", authority, DEVICE)
    listener = (
        f"cafile {tmp_path}/ca.pem",
        f"certfile {tmp_path}/server.pem",
        f"keyfile {tmp_path}/server.key",
        "require_certificate true",
        "use_identity_as_username true",
    )
    with Broker(tmp_path, listener=listener) as broker:
        url = broker.url.replace("mqtt:", "mqtts:")
        for ca, said in (
            ("ca", "connected to"),
            ("stranger", "ca_file in [broker]"),
        ):
            lines = (
                f'ca_file = "{tmp_path}/{ca}.pem"',
                f'cert_file = "{tmp_path}/device.pem"',
                f'key_file = "{tmp_path}/device.key"',
            )
            device = Device(tmp_path / ca, url, release_keys[1], broker_lines=lines)
            with running(device):
                wait_for_line(device, said)
                assert device.stop() == 0


def test_the_last_will_marks_a_killed_agent_offline(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    controller = Controller(mosquitto_broker.port)
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    with running(device):
        controller.wait_for(lambda report: report.state == "IDLE")
        boot = controller.reports[-1].boot
    wait_until(lambda: not controller.reports[-1].online, "the last will")
    assert controller.reports[-1].boot == boot
    controller.close()


def test_a_second_agent_on_the_same_state_folder_is_refused(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    with running(device):
        wait_for_line(device, "connected to")
        second = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
        second.log = tmp_path / "second.log"
        second.start()
        assert second.wait() == 1
        assert "error: another agent (process " in second.said()
        assert "try: stop it first" in second.said()
        device.stop()


@pytest.fixture
def connected(mosquitto_broker: Broker, tmp_path: Path) -> Iterator[tuple[Connection, Inbox]]:
    """Open a connection of an agent."""
    config = AgentConfig(device=DEVICE, state_dir=str(tmp_path), trust=TrustConfig(keys=()))
    broker, inbox = BrokerConfig(url=mosquitto_broker.url), Inbox()
    connection = Connection(
        config, broker, inbox, boot="b", signer=make_signer(config, "b"), rng=random.Random(1)
    )
    connection.start()
    next_item(inbox, Connected)
    yield connection, inbox
    connection.stop()


def next_item(inbox: Inbox, kind: type[Item]) -> Item:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        item = inbox.get(0.2)
        if isinstance(item, kind):
            return item
    raise AssertionError(f"no {kind.__name__} came")


def say(broker: Broker, payload: bytes, *, retain: bool = False) -> None:
    topic = topics.desired("default", DEVICE)
    paho.mqtt.publish.single(
        topic, payload, 1, retain=retain, hostname="127.0.0.1", port=broker.port
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_network_thread_that_dies_is_replaced_and_the_agent_hears_again(
    connected: tuple[Connection, Inbox],
    mosquitto_broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection, inbox = connected

    def die() -> None:
        raise MemoryError("no memory for a message")

    def threads() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.endswith(f"client-{DEVICE}")]

    with monkeypatch.context() as patched:
        patched.setattr(connection._client, "loop_misc", die)
        wait_until(lambda: not threads(), "the end of the thread")
    assert connection.is_connected, "nothing but the missing thread tells of it"
    for _ in range(3):
        connection.look_after()
    assert caplog.text.count("has ended and is started again") == 1
    next_item(inbox, Connected)
    assert len(threads()) == 1
    # Retained, as the controller's: it reaches the new connection whenever that subscribes.
    say(mosquitto_broker, b"heard", retain=True)
    try:
        assert next_item(inbox, Arrived) == Arrived(
            topic=topics.desired("default", DEVICE), payload=b"heard"
        )
    finally:
        say(mosquitto_broker, b"", retain=True)


def test_a_message_that_is_far_too_long_never_reaches_the_agent(
    connected: tuple[Connection, Inbox], mosquitto_broker: Broker
) -> None:
    connection, inbox = connected
    say(mosquitto_broker, bytes(MAX_PACKET_BYTES + 1))
    say(mosquitto_broker, bytes(3_000_000))
    say(mosquitto_broker, b"short")
    arrived = next_item(inbox, Arrived)
    assert isinstance(arrived, Arrived)
    assert arrived.payload == b"short"
    assert connection.is_connected


@pytest.mark.usefixtures("needs_mosquitto")
def test_status_says_whether_the_broker_is_reached_since_when_not_and_why(
    tmp_path: Path, release_keys: Keys
) -> None:
    def status(*words: str) -> str:
        command = [sys.executable, "-m", "edgepack.agent.cli", "status", *words]
        place = ("--state-dir", str(device.state_dir))
        done = warm_programs.run([*command, *place], capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return done.stdout

    port = free_port()
    device = Device(tmp_path / "device", f"mqtt://127.0.0.1:{port}", release_keys[1])
    with running(device):
        wait_for_line(device, "cannot reach the broker")
        said = status()
        assert re.search(rf"broker    127\.0\.0\.1:{port} is not reached since 20\d\d-", said)
        assert "Connection refused" in said
        with Broker(tmp_path, port=port):
            wait_for_line(device, "connected to 127.0.0.1")
            assert re.search(rf"broker    127\.0\.0\.1:{port} is reached since 20\d\d-", status())
            assert json.loads(status("--json"))["broker"]["is_connected"] is True
        wait_for_line(device, "the connection was lost")
        found = json.loads(status("--json"))["broker"]
        assert found["is_connected"] is False
        # A try to connect again may have failed already.
        assert re.search("the connection was lost|Connection refused", found["because"])
        assert device.stop() == 0
    assert "not reached when the agent last ran" in status()


@pytest.mark.usefixtures("needs_mosquitto")
@pytest.mark.parametrize("early", ["server", "device"])
def test_a_clock_before_a_certificates_validity_is_named(
    tmp_path: Path, release_keys: Keys, early: str
) -> None:
    authority = make_authority(tmp_path, "ca")
    for file, name in (("server", "127.0.0.1"), ("device", DEVICE)):
        begins_in_s = 86400 if file == early else -3600
        issue(tmp_path, file, authority, name, begins_in_s=begins_in_s)
    listener = (
        f"cafile {tmp_path}/ca.pem",
        f"certfile {tmp_path}/server.pem",
        f"keyfile {tmp_path}/server.key",
        "require_certificate true",
    )
    with Broker(tmp_path, listener=listener) as broker:
        url = broker.url.replace("mqtt:", "mqtts:")
        lines = (
            f'ca_file = "{tmp_path}/ca.pem"',
            f'cert_file = "{tmp_path}/device.pem"',
            f'key_file = "{tmp_path}/device.key"',
        )
        device = Device(tmp_path / "device", url, release_keys[1], broker_lines=lines)
        with running(device):
            line = wait_for_line(device, "set the clock")
            assert "clock" in line.split("set the clock")[0]
            assert re.search(r"shows 20\d\d-\d\d-\d\d \d\d:\d\d UTC", line)
            assert device.stop() == 0
