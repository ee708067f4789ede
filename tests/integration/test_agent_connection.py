"""The agent and brokers that are away, refuse it, or want certificates."""

import subprocess
import time
from pathlib import Path

import pytest

from edgepack.bundle.keys import PrivateKey
from tests.simulators import broker as mosquitto
from tests.simulators.broker import Broker, free_port
from tests.simulators.certificates import issue, make_authority
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, running, wait_for_line

Keys = tuple[PrivateKey, Path]


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
    subprocess.run(
        ["mosquitto_passwd", "-b", str(passwords), DEVICE, "right"], check=True, timeout=10
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
        for ca, said in (("ca", "connected to"), ("stranger", "certificate verify failed")):
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
    until = time.monotonic() + 15
    while controller.reports[-1].online:
        assert time.monotonic() < until
        time.sleep(0.05)
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
