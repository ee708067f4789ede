"""Telemetry faster than the controller can store: stored messages, and their cost."""

import time
from pathlib import Path

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.fleet.running import RunningFleet, wait_until
from edgepack.agent.broker.signing import read_signer
from edgepack.agent.config import read_config
from edgepack.fleet.simulation.behaviour import PROVIDER
from edgepack.wire import topics
from edgepack.wire.batches import Session
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import decode
from edgepack.wire.reports import Reported
from edgepack.wire.signed import BatchSigner
from edgepack.wire.telemetry import Telemetry

MESSAGES = 20_000
OF_EACH_DEVICE = 400
"""A device may send 600 at once."""
GROUP = "flood"
UNANSWERED = 200
"""Of the one client that says it all."""
INFERENCES = 200


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements.

    Attributes:
        messages: Messages sent at the broker's full rate.
        lost: Messages that were not stored.
        wall_s: From the first sent to the last taken down, seconds.
        per_cpu_s: Messages that a second of the controller's processor time takes down.
    """

    messages: int
    lost: int
    wall_s: float
    per_cpu_s: float


def flood(fleet: RunningFleet, folder: Path, digest: str) -> Flood:
    """Publish latency windows of devices, at the broker's full rate.

    Args:
        fleet: The fleet.
        folder: For the devices' keys.
        digest: Root digest of the devices' release.
    """
    messages = MESSAGES
    client = _connect(fleet)
    signers = _greet(fleet, client, folder)
    said = [
        (
            name,
            signers[name].sign("telemetry", (_window(digest, number),)),
        )
        for number in range(OF_EACH_DEVICE)
        for name in signers
    ]
    before = _taken(fleet)
    cpu_s, began = fleet.cost().cpu_s, time.monotonic()
    _say(client, said)
    wait_until(_Settled(fleet, before + messages), "all of it is taken down, or no more comes")
    return Flood(
        messages=messages,
        lost=max(0, before + messages - _taken(fleet)),
        wall_s=time.monotonic() - began,
        per_cpu_s=messages / (fleet.cost().cpu_s - cpu_s),
    )


class _Settled:
    """Condition that all messages came, or no message for a while."""

    def __init__(self, fleet: RunningFleet, expected: int) -> None:
        self._fleet, self._expected = fleet, expected
        self._seen, self._since = 0, time.monotonic()

    def __call__(self) -> bool:
        taken = _taken(self._fleet)
        if taken != self._seen:
            self._seen, self._since = taken, time.monotonic()
        return taken >= self._expected or time.monotonic() - self._since > 20.0


def _taken(fleet: RunningFleet) -> int:
    return fleet.client.info().counters.get("telemetry", 0)


def _connect(fleet: RunningFleet) -> mqtt.Client:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "flood", protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(UNANSWERED)
    client.connect("127.0.0.1", fleet.broker_port)
    client.loop_start()
    return client


def _greet(fleet: RunningFleet, client: mqtt.Client, folder: Path) -> dict[str, BatchSigner]:
    """Enrol devices, and report in the received sessions; return the signer of each."""
    signers: dict[str, BatchSigner] = {}
    for number in range(MESSAGES // OF_EACH_DEVICE):
        name = f"flood-{number}"
        enrolled = fleet.client.enroll(name, group=GROUP, folder=folder / name)
        config = read_config(enrolled.config)
        sign = read_signer(config.signing_key)
        signers[name] = BatchSigner(tenant="default", device=name, boot="b", sign=sign)

    def offered(_client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        name = message.topic.split("/")[4]
        if name in signers and signers[name].accept(decode(message.payload, Session)):
            _report(client, name, signers[name])

    client.on_message = offered
    client.subscribe(topics.session("default", "+"), 1)
    for name, signer in signers.items():
        _report(client, name, signer)
    wait_until(lambda: _online(fleet) == len(signers), "the devices of the flood are online")
    return signers


def _report(client: mqtt.Client, name: str, signer: BatchSigner) -> None:
    reported = Reported(online=True, at=time.time(), boot="b")
    topic = topics.up("default", name, "reported")
    client.publish(topic, signer.sign("reported", (reported,)), qos=1)


def _online(fleet: RunningFleet) -> int:
    return fleet.ask("SELECT count(*) FROM devices WHERE id LIKE 'flood-%' AND online")


def _say(client: mqtt.Client, said: list[tuple[str, bytes]]) -> None:
    for device, payload in said:
        last = client.publish(topics.up("default", device, "telemetry"), payload, qos=1)
    last.wait_for_publish(600)
    client.disconnect()
    client.loop_stop()


def _window(digest: str, number: int) -> Telemetry:
    recorder = LatencyRecorder()
    for inference in range(INFERENCES):
        recorder.record(5.0 + inference * 0.05)
    return Telemetry(
        digest=digest,
        variant="simulated",
        provider=PROVIDER.name,
        window_start=time.time() - 30.0 * number,
        window_s=30.0,
        latency=recorder.snapshot(),
    )
