"""A device that speaks the real protocol and pretends the rest: no disk, no model is run.

It reports, gets the bundle (`simulated_transfer.py`), soaks and commits, or fails, or falls
silent, as it was told to.
"""

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from edgepack.agent.broker.report import report_due_s
from edgepack.errors import EdgepackError
from edgepack.fleet.simulation.port import Port
from edgepack.fleet.simulation.simulated_transfer import SimulatedTransfer
from edgepack.wire import topics
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import (
    Active,
    BundleRef,
    Choice,
    Desired,
    DeviceFacts,
    Event,
    Message,
    ProviderFacts,
    Reported,
    Telemetry,
    decode,
    encode,
)

STEP_S = 0.1
INFERENCES = 200
HARDWARE = (("sim-arm-a76", 9.0), ("sim-x86-vnni", 4.0), ("sim-hexagon-v73", 1.5))
"""Hardware classes and their median latency, ms."""
PROVIDER = ProviderFacts(
    name="CPUExecutionProvider",
    available=True,
    because="edgepack simulate runs no model",
    is_simulator=True,
)

Fate = Literal["commit", "fail", "silent"]


class SimulatedDevice:
    """One device.

    Args:
        device: Its id.
        tenant: Its fleet.
        port: The world.
        rng: Decides fates, jitter and latencies.
        fail_rate, silent_rate: 0..1, share of rollouts that this device fails or says nothing to.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        *,
        device: str,
        tenant: str,
        port: Port,
        rng: random.Random,
        fail_rate: float,
        silent_rate: float,
        clock: Callable[[], float],
    ) -> None:
        self.device = device
        self.state = "IDLE"
        self._tenant = tenant
        self._port = port
        self._rng = rng
        self._fail_rate, self._silent_rate = fail_rate, silent_rate
        self._clock = clock
        self._boot = f"{rng.getrandbits(64):016x}"
        self._count = 0
        self._because = ""
        self._hardware, self._median_ms = rng.choice(HARDWARE)
        self._desired: Desired | None = None
        self._fate: Fate = "commit"
        self._transfer = SimulatedTransfer(
            device=device, tenant=tenant, port=port, rng=rng, clock=clock
        )
        self._held: set[str] = set()
        self._active: Active | None = None
        self._next_at: float | None = None
        self._report_at = self._told_at = 0.0

    def last_will(self) -> tuple[str, bytes]:
        """Topic and payload that the broker publishes when this device vanishes."""
        will = Reported(online=False, at=self._clock(), boot=self._boot)
        return topics.up(self._tenant, self.device, "reported"), encode(will)

    def connected(self) -> None:
        """Holds its subscriptions and says what it is; what was under way goes on."""
        for topic in topics.device_subscriptions(self._tenant, self.device):
            self._port.subscribe(topic)
        self._transfer.resume()
        self._report()

    def received(self, topic: str, payload: bytes) -> None:
        """Takes a message; one that makes no sense is dropped."""
        if topic == topics.desired(self._tenant, self.device):
            if payload:
                self._take_desired(decode(payload, Desired))
            return
        try:
            is_complete = self._transfer.take(topic, payload)
        except EdgepackError as error:
            self._become("REJECTED", error.problem)
            return
        if is_complete:
            self._become("VERIFIED", "")
            self._next_at = self._clock() + STEP_S

    def tick(self) -> None:
        """Does what time has come for."""
        now = self._clock()
        self._transfer.tick()
        if self._next_at is not None and now >= self._next_at:
            self._advance()
        if now >= self._report_at:
            self._report()
            self._tell_latency()
            self._report_at = now + report_due_s(self.device, is_news=False)

    def _take_desired(self, desired: Desired) -> None:
        if self._desired is not None and desired.sequence <= self._desired.sequence:
            if desired.sequence == self._desired.sequence and self._fate != "silent":
                self._report()
            return
        self._desired = desired
        self._transfer.drop()
        self._next_at = None
        if desired.bundle.digest in self._held:
            self._fate = "commit"
            self._become("COMMITTED", "it is held already")
            self._activate(desired.bundle)
            self._report()
            return
        chance = self._rng.random()
        silent = chance < self._silent_rate
        fails = chance < self._silent_rate + self._fail_rate
        self._fate = "silent" if silent else "fail" if fails else "commit"
        if self._fate == "silent":
            return
        self._become("DOWNLOADING", "")
        self._transfer.start(desired)

    def _advance(self) -> None:
        if self._desired is None:
            return
        self._next_at = self._clock() + STEP_S
        match self.state:
            case "VERIFIED":
                self._become("PROBING", "")
            case "PROBING" if self._fate == "fail":
                self._next_at = None
                self._become("ROLLED_BACK", "golden outputs differ: nrmse 0.83 > 0.05 (simulated)")
            case "PROBING":
                self._become("SOAKING", "")
                self._next_at = self._clock() + self._desired.soak_s
            case "SOAKING":
                self._next_at = None
                self._activate(self._desired.bundle)
                self._become("COMMITTED", f"served {self._desired.soak_s:g} s without trouble")
                self._tell_latency()

    def _activate(self, bundle: BundleRef) -> None:
        choice = Choice(
            wanted="",
            chosen="simulated",
            provider=PROVIDER.name,
            because="simulated",
            is_fallback=False,
        )
        self._active = Active(bundle=bundle, choice=choice, since=self._clock())
        self._held.add(bundle.digest)

    def _tell_latency(self) -> None:
        if self._active is None or self._fate == "silent":
            return
        now = self._clock()
        start, self._told_at = max(self._told_at, self._active.since), now
        recorder = LatencyRecorder()
        for _ in range(INFERENCES):
            recorder.record(self._rng.lognormvariate(0.0, 0.2) * self._median_ms)
        telemetry = Telemetry(
            digest=self._active.bundle.digest,
            variant=self._active.choice.chosen,
            provider=self._active.choice.provider,
            window_start=start,
            window_s=now - start,
            latency=recorder.snapshot(),
        )
        self._say("telemetry", telemetry)

    def _become(self, state: str, because: str) -> None:
        before, self.state, self._because = self.state, state, because
        self._report()
        if self._desired is not None:
            event = Event(
                at=self._clock(),
                kind="transition",
                bundle=self._desired.bundle.digest,
                from_state=before,
                to_state=state,
                because=because,
                rollout=self._desired.rollout,
                sequence=self._desired.sequence,
            )
            self._say("event", event)

    def _report(self) -> None:
        self._count += 1
        self._report_at = self._clock() + report_due_s(self.device, is_news=True)
        desired = self._desired if self._fate != "silent" else None
        reported = Reported(
            online=True,
            at=self._clock(),
            boot=self._boot,
            count=self._count,
            facts=_facts(self._hardware),
            state=self.state,
            because=self._because,
            sequence=desired.sequence if desired else 0,
            rollout=desired.rollout if desired else "",
            target=desired.bundle if desired else None,
            active=self._active,
        )
        self._say("reported", reported)

    def _say(self, kind: topics.UpKind, message: Message) -> None:
        topic = topics.up(self._tenant, self.device, kind)
        self._port.publish(topic, encode(message), 1, kind == "reported")


@lru_cache(maxsize=16)
def _facts(hardware: str) -> DeviceFacts:
    return DeviceFacts(
        arch="aarch64",
        cpu_model=hardware,
        cpu_count=4,
        cpu_features=(),
        memory_bytes=4 * 1024**3,
        os="simulated",
        python="3.11",
        agent_version="simulated",
        runtime="simulated",
        providers=(PROVIDER,),
        hardware_class=hardware,
    )
