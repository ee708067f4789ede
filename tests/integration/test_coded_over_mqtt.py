"""Real agents and a real broker: each agent recovers its lost chunk from the same message."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from edgepack.wire import topics
from edgepack.wire.coded import pack_coded
from edgepack.wire.need_bitmap import read_missing
from edgepack.wire.transfers import Need
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker, is_installed
from tests.simulators.bundles import make_bundle
from tests.simulators.controller import TENANT, Controller
from tests.simulators.device import Device
from tests.simulators.waiting import wait_until

LOST = {"cam-1": 2, "cam-2": 5}
"""Which chunk of the model each device loses."""
PLUGIN = "/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so"


class CodingController(Controller):
    """Controller that sends each device all chunks but a lost chunk, and the lost chunks by a
    single message to both.
    """

    def __init__(self, port: int) -> None:
        self.lacking: dict[str, bool] = {}
        self.spoilt = False
        super().__init__(port)

    def _answer(self, device: str, need: Need) -> None:
        for wanted in need.files:
            path, starts = self._files[wanted.sha256]
            content = path.read_bytes()
            chunks = [content[start:end] for start, end in pairwise(starts)]
            missing = read_missing(wanted, len(chunks))
            lost = LOST[device] if path.suffix == ".onnx" else None
            if missing == (lost,):
                self.lacking[device] = wanted.takes_coded
                if self.lacking == dict.fromkeys(LOST, True):
                    self._send_both(wanted.sha256, chunks)
                continue
            for index in missing:
                if index != lost:
                    topic = topics.repair(TENANT, device, wanted.sha256)
                    self._client.publish(topic, index.to_bytes(4, "big") + chunks[index])

    def _send_both(self, sha256: str, chunks: list[bytes]) -> None:
        payload = pack_coded(7, {index: chunks[index] for index in (0, *LOST.values())})
        topic = topics.coded(TENANT, sha256)
        if not self.spoilt:
            self.spoilt = True
            self._client.publish(topic, payload[:-1] + bytes((payload[-1] ^ 1,)))
        self._client.publish(topic, payload)


@pytest.fixture
def devices(tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys) -> Iterator[list[Device]]:
    found = [
        Device(tmp_path / name, mosquitto_broker.url, release_keys[1], name=name) for name in LOST
    ]
    yield found
    for device in found:
        if device.is_running:
            device.kill()


def test_two_devices_that_lost_different_chunks_get_both_from_one_message(
    tmp_path: Path, mosquitto_broker: Broker, devices: list[Device], release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    controller = CodingController(mosquitto_broker.port)
    try:
        controller.hold(bundle)
        for name, device in zip(LOST, devices, strict=True):
            device.start()
            controller.offer(name, bundle.desired(1))
        wait_until(lambda: all(device.pointer() is not None for device in devices), "both run it")
    finally:
        controller.close()
    assert controller.lacking == dict.fromkeys(LOST, True)
    # The first message was spoilt: nobody took anything out of it.
    assert all("dropped=bad chunk" in device.said() for device in devices)


def test_a_device_whose_broker_refuses_coded_messages_says_that_it_takes_none(
    tmp_path: Path, release_keys: Keys
) -> None:
    if not (is_installed() and Path(PLUGIN).exists()):
        pytest.skip("mosquitto with its plugin of dynamic security is not installed")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(older_rules()))
    settings = ("allow_anonymous true", f"plugin {PLUGIN}", f"plugin_opt_config_file {rules}")
    with Broker(tmp_path, settings=settings) as broker:
        device = Device(tmp_path / "device", broker.url, release_keys[1])
        controller = Controller(broker.port)
        try:
            bundle = make_bundle(tmp_path / "one", release_keys[0])
            controller.hold(bundle)
            device.start()
            controller.offer("cam-1", bundle.desired(1))
            controller.wait_for(lambda report: report.state == "COMMITTED")
        finally:
            controller.close()
            device.kill()
    flags = {file.takes_coded for need in controller.needs for file in need.files}
    assert flags == {False}
    assert "does not let this device read" not in device.said(), "nobody needs to act"


def older_rules() -> dict[str, object]:
    """Return access rules for chunks of a single kind."""
    readable = [f"ep/1/{TENANT}/{rest}" for rest in ("d/#", "b/+", "meta/#")]
    rules = [
        {"acltype": "subscribePattern", "topic": topic, "allow": True, "priority": 0}
        for topic in readable
    ]
    return {
        "defaultACLAccess": {
            "publishClientSend": True,
            "publishClientReceive": True,
            "subscribe": False,
            "unsubscribe": True,
        },
        "anonymousGroup": "all",
        "groups": [{"groupname": "all", "roles": [{"rolename": "older", "priority": 0}]}],
        "roles": [{"rolename": "older", "acls": rules}],
    }
