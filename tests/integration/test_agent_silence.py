"""An agent reports, plainly and once, the reason of undelivered messages."""

import json
import re
import socket
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from edgepack.agent import open_model
from edgepack.agent.serving import following
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, make_bundle
from tests.simulators.certificates import Authority, issue, make_authority
from tests.simulators.device import DEVICE, Device, running, wait_for_line
from tests.simulators.waiting import PATIENCE_S, wait_until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Make the CA of the broker and the device, with certificates in `tmp_path`."""
    made = make_authority(tmp_path, "ca")
    issue(tmp_path, "server", made, "127.0.0.1")
    issue(tmp_path, "device", made, DEVICE)
    return made


def tls_listener(folder: Path) -> tuple[str, ...]:
    return (
        f"cafile {folder}/ca.pem",
        f"certfile {folder}/server.pem",
        f"keyfile {folder}/server.key",
        "require_certificate true",
        "use_identity_as_username true",
    )


def tls_lines(folder: Path, name: str = "device") -> tuple[str, ...]:
    return (
        f'ca_file = "{folder}/ca.pem"',
        f'cert_file = "{folder}/{name}.pem"',
        f'key_file = "{folder}/{name}.key"',
    )


def lines_of_the_broker(folder: Path) -> int:
    """Count the broker's log lines, at least one for each attempt."""
    return len((folder / "mosquitto.log").read_text().splitlines())


@pytest.mark.usefixtures("mosquitto_broker")
def test_the_certificate_of_another_device_is_refused_at_the_start(
    tmp_path: Path, authority: Authority, release_keys: Keys
) -> None:
    issue(tmp_path, "other", authority, "cam-2")
    lines = tls_lines(tmp_path, "other")
    device = Device(tmp_path / "device", "mqtts://127.0.0.1:1", release_keys[1], broker_lines=lines)
    device.start()
    assert device.wait() == 1
    assert device.said().splitlines() == [
        "error: the certificate is of 'cam-2', and this device is 'cam-1'",
        f"  found in: broker.cert_file, {tmp_path}/other.pem",
        "  try: use the folder that edgepack fleet enroll wrote for 'cam-1', whole",
    ]


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_a_scheme_that_the_port_does_not_speak_is_named_once(
    tmp_path: Path, release_keys: Keys, scheme: str
) -> None:
    listener = tls_listener(tmp_path) if scheme == "mqtt" else ()
    said = {
        "mqtt": "its port speaks TLS, broker.url says mqtt://; write mqtts://",
        "mqtts": "its port speaks MQTT without TLS, broker.url says mqtts://; write mqtt://",
    }[scheme]
    with Broker(tmp_path, listener=listener) as broker:
        url = broker.url.replace("mqtt:", f"{scheme}:")
        lines = tls_lines(tmp_path) if scheme == "mqtts" else ()
        device = Device(tmp_path / "device", url, release_keys[1], broker_lines=lines)
        with running(device):
            assert "WARNING" in wait_for_line(device, said)
            before = lines_of_the_broker(tmp_path)
            wait_until(lambda: lines_of_the_broker(tmp_path) >= before + 4)  # It goes on trying.
            assert device.said().count("WARNING") == 1
            assert device.stop() == 0


@pytest.mark.usefixtures("authority")
def test_a_certificate_that_the_broker_does_not_accept_is_named(
    tmp_path: Path, release_keys: Keys
) -> None:
    issue(tmp_path, "stranger", make_authority(tmp_path, "elsewhere"), DEVICE)
    with Broker(tmp_path, listener=tls_listener(tmp_path)) as broker:
        url = broker.url.replace("mqtt:", "mqtts:")
        lines = tls_lines(tmp_path, "stranger")
        device = Device(tmp_path / "device", url, release_keys[1], broker_lines=lines)
        with running(device):
            wait_for_line(device, "it does not accept this device's certificate")


def test_a_device_whose_certificate_has_expired_names_the_date(
    tmp_path: Path, authority: Authority, release_keys: Keys
) -> None:
    ended = datetime.now(UTC) - timedelta(days=3)
    issue(tmp_path, "expired", authority, DEVICE, begins_in_s=-9 * 86400, lasts_s=6 * 86400)
    with Broker(tmp_path, listener=tls_listener(tmp_path)) as broker:
        url = broker.url.replace("mqtt:", "mqtts:")
        lines = tls_lines(tmp_path, "expired")
        device = Device(tmp_path / "device", url, release_keys[1], broker_lines=lines)
        with running(device):
            line = wait_for_line(device, "this device's certificate expired on")
            assert f"{ended:%Y-%m-%d}" in line


def test_two_agents_with_one_identity_are_recognized_and_do_not_take_it_from_each_other_for_ever(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    one, two = (
        Device(tmp_path / name, mosquitto_broker.url, release_keys[1]) for name in ("one", "two")
    )
    with running(one), running(two):
        said = "another client seems to use this identity, 'cam-1'"
        wait_until(lambda: said in one.said() + two.said())
        delays = re.findall(r"identity.*trying on in (\d+) s", one.said() + two.said())
        assert delays
        assert all(int(delay) >= 20 for delay in delays)


def test_a_broker_that_says_why_is_believed_at_once(tmp_path: Path, release_keys: Keys) -> None:
    """This mosquitto ends the connection without a reason; newer releases send a reason."""
    connack, taken_over = bytes.fromhex("2003 00 00 00"), bytes.fromhex("e001 8e")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        device = Device(tmp_path / "device", url, release_keys[1])
        with running(device):
            opened, _ = server.accept()
            with opened:
                opened.recv(4096)
                opened.sendall(connack + taken_over)
                said = wait_for_line(device, "another client uses this identity, 'cam-1'")
            assert "ended the connection for it 1 time;" in said
            assert device.stop() == 0


def test_a_device_to_which_nobody_listens_says_so(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    with running(device):
        said = wait_for_line(device, "nobody listens to what this device says")
        assert "no controller is at this broker for tenant 'default'" in said


def test_a_device_that_no_controller_answers_says_so(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    listener = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    has_subscribed = threading.Event()

    def subscribe(*_: object) -> None:
        listener.subscribe("ep/1/#", 1)

    listener.on_connect = subscribe
    listener.on_subscribe = lambda *_: has_subscribed.set()
    listener.connect("127.0.0.1", mosquitto_broker.port)
    listener.loop_start()
    try:
        assert has_subscribed.wait(PATIENCE_S)
        device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
        with running(device):
            wait_for_line(device, "no controller answers this device: is 'cam-1' enrolled")
    finally:
        listener.disconnect()
        listener.loop_stop()


def test_a_broker_that_lets_a_device_in_but_not_publish_is_named(
    tmp_path: Path, release_keys: Keys
) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read ep/#\n")
    with Broker(tmp_path, settings=("allow_anonymous true", f"acl_file {rules}")) as broker:
        device = Device(tmp_path / "device", broker.url, release_keys[1])
        with running(device):
            wait_for_line(device, "the broker takes no report of this device (Not authorized)")


def test_a_port_that_takes_connections_and_says_nothing_is_named(
    tmp_path: Path, release_keys: Keys
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        device = Device(tmp_path / "device", url, release_keys[1])
        with running(device):
            wait_for_line(device, "it takes connections and does not answer")


def test_a_device_without_a_broker_states_that_its_inputs_are_nan(
    tmp_path: Path, release_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SPOOL_S", 0.2)
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])
    bundle = make_bundle(tmp_path / "release", release_keys[0])
    agent(device, "install", str(bundle.folder), "--soak", "0")
    good, bad = (np.full((1, WIDTH), value, np.float32) for value in (1.0, np.nan))
    began = time.time()
    with running(device), open_model("tiny", device.state_dir, threads=1) as model:
        for x in (*[good] * 40, *[bad] * 60):
            model.run({"x": x})
        line = wait_for_line(device, "had NaN or infinity in the input 'x'")
        wait_until(lambda: "60 had" in agent(device, "status"))
        shown = agent(device, "status", "--json")
        failing = json.loads(shown)["models"]["tiny"]["failing"]
        counts = {"inferences": 100, "failed": 0, "not_finite": 0}
        assert failing["outcomes"] == counts | {"bad_inputs": 60, "bad_input": "x"}
        assert began < failing["since"] < time.time()
        assert "(60.0%)" in agent(device, "status")
        assert "look for the reason" in agent(device, "status")
        assert "WARNING" in line
        assert device.said().count("work again") == 0
        for _ in range(10000):
            model.run({"x": good})
        wait_for_line(device, "work again")
        wait_until(lambda: "failing " not in agent(device, "status"))


def agent(device: Device, *command: str) -> str:
    """Run a command of the agent on the device's settings; return its output."""
    whole = [sys.executable, "-m", "edgepack.agent.cli", *command, "--config", str(device.config)]
    done = warm_programs.run(whole, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
