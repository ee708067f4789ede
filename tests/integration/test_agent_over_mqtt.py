"""A real agent as a process, a real broker, real models: updates over MQTT."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.wire import topics
from edgepack.wire.messages import WIRE_VERSION, encode
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import make_bundle
from tests.simulators.controller import TENANT, Controller
from tests.simulators.device import DEVICE, Device
from tests.simulators.waiting import wait_until


@pytest.fixture
def device(tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys) -> Iterator[Device]:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    yield device
    if device.is_running:
        device.kill()


def test_an_update_arrives_is_proved_and_is_reported(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    first = make_bundle(tmp_path / "one", release_keys[0], release=1)
    second = make_bundle(tmp_path / "two", release_keys[0], release=2)
    for bundle in (first, second):
        controller.hold(bundle)
    device.start()
    idle = controller.wait_for(lambda report: report.state == "IDLE")
    assert idle.active is None
    heard = controller.last()
    assert heard is not None
    assert heard.facts is not None

    controller.offer(DEVICE, first.desired(1, soak_s=0.1))
    done = controller.wait_for(lambda report: report.state == "COMMITTED")
    assert done.active is not None
    assert done.active.bundle == first.ref
    assert done.active.choice.chosen == "cpu"
    assert done.rollout == "r1"
    sent = controller.sent_chunks

    controller.offer(DEVICE, second.desired(2, soak_s=0.1))
    done = controller.wait_for(lambda report: report.sequence == 2 and report.state == "COMMITTED")
    assert done.previous == first.ref
    # Half of the model did not change, so half of it was not sent again.
    assert controller.sent_chunks - sent < sent
    wait_until(
        lambda: [e.to_state for e in controller.events if e.sequence == 2][-1:] == ["COMMITTED"],
        "the last event",
    )
    steps = [event.to_state for event in controller.events if event.sequence == 2]
    assert steps == [
        "OFFERED",
        "DOWNLOADING",
        "VERIFIED",
        "STAGED",
        "PROBING",
        "ACTIVATING",
        "SOAKING",
        "COMMITTED",
    ]

    assert device.stop() == 0
    wait_until(lambda: not controller.reports[-1].online, "the farewell")
    assert "from=SOAKING to=COMMITTED" in device.said()


def test_a_model_that_is_wrong_here_is_rolled_back_and_the_old_one_keeps_serving(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    good = make_bundle(tmp_path / "good", release_keys[0], release=1)
    wrong = make_bundle(tmp_path / "wrong", release_keys[0], release=2, is_wrong=True)
    for bundle in (good, wrong):
        controller.hold(bundle)
    device.start()
    controller.offer(DEVICE, good.desired(1))
    controller.wait_for(lambda report: report.state == "COMMITTED")
    controller.offer(DEVICE, wrong.desired(2))
    report = controller.wait_for(lambda report: report.state == "ROLLED_BACK")
    assert "cosine -1.0" in report.because
    assert report.active is not None
    assert report.active.bundle == good.ref


def test_a_download_survives_a_restart_of_the_broker_and_spoilt_chunks(
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    device: Device,
    release_keys: Keys,
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0], release=1)
    controller.hold(bundle)
    controller.pause_s = 0.1

    def spoil(index: int, content: bytes) -> bytes:
        """Spoil two chunks until the device has noticed, even if the restart loses some."""
        if index in (3, 4) and "dropped=bad chunk" not in device.said():
            return b"?" * len(content)
        return content

    controller.spoil = spoil
    device.start()
    controller.offer(DEVICE, bundle.desired(1))
    controller.wait_for(lambda report: report.state == "DOWNLOADING" and report.progress > 0.2)
    mosquitto_broker.stop()
    time.sleep(0.3)
    mosquitto_broker.start()
    report = controller.wait_for(lambda report: report.state == "COMMITTED")
    assert report.active is not None
    assert report.active.bundle == bundle.ref
    assert "dropped=bad chunk" in device.said()
    assert "connection was lost" in device.said()


def test_malformed_messages_on_every_topic_are_dropped_and_the_agent_goes_on(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0], release=1)
    controller.hold(bundle)
    device.start()
    controller.wait_for(lambda report: report.state == "IDLE")
    down = f"ep/1/{TENANT}/d/{DEVICE}/dn"
    for payload in (b"\xff\x00", b"{}", b"[]", b'{"sequence": -1}', b""):
        controller.send(topics.desired(TENANT, DEVICE), payload)
        controller.send(f"{down}/other", payload)
        controller.send(f"{down}/b/{'0' * 64}", payload)
        controller.send(f"{down}/b/short", payload)
    controller.offer(DEVICE, bundle.desired(1))
    controller.wait_for(lambda report: report.state == "COMMITTED")
    assert "dropped=malformed offer" in device.said()
    assert "dropped=unknown topic" in device.said()
    assert "Traceback" not in device.said()
    assert any(event.kind == "refused" for event in controller.events)


def test_a_controller_of_a_newer_minor_version_finishes_an_update(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    controller.hold(bundle)
    device.start()
    desired = json.loads(encode(bundle.desired(1)))
    desired |= {"minor": WIRE_VERSION.minor + 1, "mood": "good"}
    desired["models"]["tiny"] |= {"mood": {"is": "good"}}
    payload = json.dumps(desired).encode()
    controller.send(topics.desired(TENANT, DEVICE), payload, retain=True)
    controller.wait_for(lambda report: report.state == "COMMITTED")
    assert "dropped" not in device.said()


def test_a_controller_of_a_newer_major_version_is_refused_and_what_serves_stays(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    controller.hold(bundle)
    device.start()
    controller.offer(DEVICE, bundle.desired(1))
    controller.wait_for(lambda report: report.state == "COMMITTED")
    major = WIRE_VERSION.major + 1
    newer = json.dumps({"v": major, "models": []}).encode()
    controller.send(topics.desired(TENANT, DEVICE), newer)
    wait_until(
        lambda: any(f"is of version {major}.0" in event.because for event in controller.events),
        "the refusal is told",
    )
    said = controller.wait_for(lambda report: report.active is not None)
    assert said.state == "COMMITTED"
