"""Telemetry that comes faster than anybody can take it down: what is kept, and what it costs."""

import time

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.fleet.running import RunningFleet, wait_until
from edgepack.fleet.simulation.behaviour import PROVIDER
from edgepack.wire import topics
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import Telemetry, encode

MESSAGES = 20_000
OF_EACH_DEVICE = 400
"""At most: a device may send 600 at once."""
UNANSWERED = 200
"""Of the one client that says it all."""
INFERENCES = 200


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        messages: How many were sent, as fast as the broker took them.
        lost: How many of them were not taken down.
        wall_s: From the first sent to the last taken down, seconds.
        per_cpu_s: Messages that a second of the controller's processor time takes down.
    """

    messages: int
    lost: int
    wall_s: float
    per_cpu_s: float


def flood(fleet: RunningFleet, names: list[str], digest: str) -> Flood:
    """Says latency windows in the name of devices, as many as can be.

    Args:
        fleet: The fleet.
        names: Its devices.
        digest: What they run.
    """
    names = names[: max(1, MESSAGES // 20)]
    messages = min(MESSAGES, OF_EACH_DEVICE * len(names))
    before = _taken(fleet)
    cpu_s, began = fleet.cost().cpu_s, time.monotonic()
    _say(
        fleet, [(names[n % len(names)], _window(digest, n // len(names))) for n in range(messages)]
    )
    wait_until(_Settled(fleet, before + messages), "all of it is taken down, or no more comes")
    return Flood(
        messages=messages,
        lost=max(0, before + messages - _taken(fleet)),
        wall_s=time.monotonic() - began,
        per_cpu_s=messages / (fleet.cost().cpu_s - cpu_s),
    )


class _Settled:
    """Whether all came, or nothing has for a while."""

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


def _say(fleet: RunningFleet, said: list[tuple[str, bytes]]) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "flood", protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(UNANSWERED)
    client.connect("127.0.0.1", fleet.broker_port)
    client.loop_start()
    for device, payload in said:
        last = client.publish(topics.up("default", device, "telemetry"), payload, qos=1)
    last.wait_for_publish(600)
    client.disconnect()
    client.loop_stop()


def _window(digest: str, number: int) -> bytes:
    recorder = LatencyRecorder()
    for inference in range(INFERENCES):
        recorder.record(5.0 + inference * 0.05)
    told = Telemetry(
        digest=digest,
        variant="simulated",
        provider=PROVIDER.name,
        window_start=time.time() - 30.0 * number,
        window_s=30.0,
        latency=recorder.snapshot(),
    )
    return encode(told)
