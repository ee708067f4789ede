"""A device that speaks the real protocol and pretends the rest: no disk, no model is run.

The device reports, and passes received messages to its models (`simulated_model.py`).
"""

import random
from collections.abc import Callable, Sequence
from functools import lru_cache

from edgepack.agent.broker.report import report_due_s
from edgepack.fleet.documents.devices import SIMULATED
from edgepack.fleet.simulation.behaviour import HARDWARE, PROVIDER, Change, Pretence, Weather
from edgepack.fleet.simulation.port import Port
from edgepack.fleet.simulation.simulated_model import SimulatedModel
from edgepack.wire import topics
from edgepack.wire.batches import Session
from edgepack.wire.coded import read_coded
from edgepack.wire.messages import Message, decode, encode
from edgepack.wire.orders import Desired, RemoveModel
from edgepack.wire.reports import DeviceFacts, Reported
from edgepack.wire.router import Router
from edgepack.wire.signed import BatchSigner, Sign

HEARTBEAT_S = 60.0


class SimulatedDevice:
    """Simulated device.

    Args:
        device: Its id.
        tenant: Its fleet.
        port: The world.
        sign: Signs with the device's key.
        rng: Decides fates, jitter and latencies.
        fail_rate, silent_rate: 0..1, share of rollouts that this device fails or says nothing to.
        changes: Changes of a hardware class's measurements with later releases.
        clock: Seconds since the epoch.
        loss: 0..1, share of the chunks that do not reach this device.
        measure_s: Seconds between its telemetry; 0 with each report.
        weather: Weather of all devices.
    """

    def __init__(
        self,
        *,
        device: str,
        tenant: str,
        port: Port,
        sign: Sign,
        rng: random.Random,
        fail_rate: float,
        silent_rate: float,
        clock: Callable[[], float],
        changes: Sequence[Change] = (),
        loss: float = 0.0,
        measure_s: float = 0.0,
        weather: Weather | None = None,
    ) -> None:
        self.device = device
        self._tenant = tenant
        self._router: Router[Callable[[str, bytes], None]] = Router(
            {
                topics.desired(tenant, device): self._take_desired,
                topics.broadcast(tenant, topics.FILE): self._take_chunk,
                topics.repair(tenant, device, topics.FILE): self._take_chunk,
                topics.coded(tenant, topics.FILE): self._take_coded,
                topics.session(tenant, device): self._take_session,
            }
        )
        self._port = port
        self._rng = rng
        self._fail_rate, self._silent_rate = fail_rate, silent_rate
        self._clock = clock
        self._loss = loss
        self._measure_s, self._measure_at, self._weather = measure_s, 0.0, weather
        self._boot = f"{rng.getrandbits(64):016x}"
        self._signer = BatchSigner(tenant=tenant, device=device, boot=self._boot, sign=sign)
        self._hardware = rng.choice(tuple(HARDWARE))
        self._changes = [one for one in changes if one.hardware_class == self._hardware]
        self._heard_sequence = 0
        self._models: dict[str, SimulatedModel] = {}
        self._report_at = 0.0

    @property
    def state(self) -> str:
        """State of the model that was offered last."""
        return next((model.state for model in reversed(self._models.values())), "IDLE")

    def last_will(self) -> tuple[str, bytes]:
        """Return topic and payload that the broker publishes when this device vanishes."""
        will = Reported(online=False, at=self._clock(), boot=self._boot)
        return topics.up(self._tenant, self.device, "reported"), encode(will)

    def connected(self) -> None:
        """Subscribe and report the device's facts; continue earlier work."""
        for topic in topics.device_subscriptions(self._tenant, self.device):
            self._port.subscribe(topic)
        for model in self._models.values():
            model.resume()
        self._report()

    def received(self, topic: str, payload: bytes) -> None:
        """Handle a message; drop an invalid message."""
        if (found := self._router.find(topic)) is not None:
            take, sha256 = found
            take(sha256, payload)

    def tick(self) -> None:
        """Do all due work."""
        now = self._clock()
        for model in self._models.values():
            model.tick()
        is_due = now >= self._report_at
        if is_due:
            self._report()
            self._report_at = now + report_due_s(self.device, HEARTBEAT_S, is_news=False)
        if now >= self._measure_at if self._measure_s else is_due:
            self._measure_at = now + self._measure_s
            for model in self._models.values():
                model.tell_latency()

    def _take_chunk(self, sha256: str, payload: bytes) -> None:
        if not self._is_lost():
            for model in tuple(self._models.values()):
                model.received(sha256, payload)

    def _take_coded(self, sha256: str, payload: bytes) -> None:
        if not self._is_lost():
            coded = read_coded(payload)
            for model in tuple(self._models.values()):
                model.received_coded(sha256, coded)

    def _is_lost(self) -> bool:
        return bool(self._loss) and self._rng.random() < self._loss

    def _take_desired(self, _: str, payload: bytes) -> None:
        if not payload:
            return
        desired = decode(payload, Desired)
        heard = [
            self._open(name).take(order)
            for name, order in desired.models.items()
            if name in self._models or not isinstance(order, RemoveModel)
        ]
        if "silent" not in heard:
            self._heard_sequence = desired.sequence
            if "taken" not in heard:
                self._report()

    def _take_session(self, _: str, payload: bytes) -> None:
        if self._signer.accept(decode(payload, Session)):
            self._report()

    def _open(self, name: str) -> SimulatedModel:
        model = self._models.pop(name, None) or SimulatedModel(
            name,
            device=self.device,
            tenant=self._tenant,
            port=self._port,
            rng=self._rng,
            fail_rate=self._fail_rate,
            silent_rate=self._silent_rate,
            pretence=Pretence(
                HARDWARE[self._hardware],
                self._changes,
                random.Random(f"{self._boot}/{name}"),
                self._weather,
            ),
            clock=self._clock,
            say=self._say,
            report=self._report,
        )
        self._models[name] = model  # The one that was offered last is the last.
        return model

    def _report(self) -> None:
        self._report_at = self._clock() + report_due_s(self.device, HEARTBEAT_S, is_news=True)
        reported = Reported(
            online=True,
            at=self._clock(),
            boot=self._boot,
            facts=_facts(self._hardware),
            sequence=self._heard_sequence,
            models={name: model.reported() for name, model in self._models.items()},
        )
        self._say("reported", reported)

    def _say(self, kind: topics.UpKind, message: Message) -> None:
        topic = topics.up(self._tenant, self.device, kind)
        if kind == "reported" or self._signer.has_session:
            self._port.publish(topic, self._signer.sign(kind, (message,)), 1, kind == "reported")


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
        agent_version=SIMULATED,
        runtime="simulated",
        providers=(PROVIDER,),
        hardware_class=hardware,
    )
