"""Model of a simulated device: fetches, soaks and commits, or fails, or falls silent."""

import random
from collections.abc import Callable
from functools import partial
from typing import Literal

from edgepack.errors import EdgepackError
from edgepack.fleet.simulation.behaviour import Pretence
from edgepack.fleet.simulation.port import Port
from edgepack.fleet.simulation.simulated_transfer import SimulatedTransfer
from edgepack.wire import topics
from edgepack.wire.coded import CodedChunk
from edgepack.wire.messages import Message
from edgepack.wire.orders import BundleRef, ModelOrder, RemoveModel, RunModel
from edgepack.wire.reports import Active, ReportedModel
from edgepack.wire.telemetry import Event

STEP_S = 0.1

Fate = Literal["commit", "fail", "silent"]


class SimulatedModel:
    """Simulated model.

    Args:
        name: Its name.
        device, tenant, port, rng, fail_rate, silent_rate, clock: See `SimulatedDevice`.
        pretence: Simulated measurements of its releases.
        say: Sends a message of the device.
        report: Sends the device's report.
    """

    def __init__(
        self,
        name: str,
        *,
        device: str,
        tenant: str,
        port: Port,
        rng: random.Random,
        fail_rate: float,
        silent_rate: float,
        pretence: Pretence,
        clock: Callable[[], float],
        say: Callable[[topics.UpKind, Message], None],
        report: Callable[[], None],
    ) -> None:
        self.state = "IDLE"
        self._name = name
        self._rng = rng
        self._fail_rate, self._silent_rate = fail_rate, silent_rate
        self._pretence = pretence
        self._clock = clock
        self._say, self._report = say, report
        self._because = ""
        self._order: ModelOrder | None = None
        self._fate: Fate = "commit"
        self._transfer = SimulatedTransfer(
            device=device, tenant=tenant, port=port, rng=rng, clock=clock
        )
        self._held: set[str] = set()
        self._active: Active | None = None
        self._previous: BundleRef | None = None
        self._next_at: float | None = None
        self._told_at = 0.0

    def take(self, order: ModelOrder) -> Literal["taken", "known", "silent"]:
        """Accept the order for this model, unless the order was received before."""
        if self._order is not None and order.sequence <= self._order.sequence:
            return "silent" if self._fate == "silent" else "known"
        self._order = order
        self._transfer.drop()
        self._next_at = None
        if isinstance(order, RemoveModel):
            self._fate, self._active = "commit", None
            self._held.clear()
            self._become("REMOVED", "")
        elif order.bundle.digest in self._held:
            self._fate = "commit"
            self._activate(order.bundle)
            self._become("COMMITTED", "it is held already")
        else:
            chance = self._rng.random()
            silent = chance < self._silent_rate
            fails = chance < self._silent_rate + self._fail_rate
            self._fate = "silent" if silent else "fail" if fails else "commit"
            if silent:
                return "silent"
            self._become("DOWNLOADING", "")
            self._transfer.start(order)
        return "taken"

    def received(self, sha256: str, payload: bytes) -> None:
        """Handle a received chunk, if the chunk belongs to this model."""
        self._take_from(partial(self._transfer.take, sha256, payload))

    def received_coded(self, sha256: str, coded: CodedChunk) -> None:
        """Handle a coded message likewise."""
        self._take_from(partial(self._transfer.take_coded, sha256, coded))

    def _take_from(self, take: Callable[[], bool]) -> None:
        try:
            is_complete = take()
        except EdgepackError as error:
            self._become("REJECTED", error.problem)
            return
        if is_complete:
            self._become("VERIFIED", "")
            self._next_at = self._clock() + STEP_S

    def resume(self) -> None:
        """Continue after a new connection."""
        self._transfer.resume()

    def tick(self) -> None:
        """Do all due work."""
        self._transfer.tick()
        if self._next_at is not None and self._clock() >= self._next_at:
            self._advance()

    def reported(self) -> ReportedModel:
        """Return the model's part of the device's report."""
        order = self._order if self._fate != "silent" else None
        return ReportedModel(
            state=self.state,
            because=self._because,
            sequence=order.sequence if order else 0,
            acted_sequence=order.sequence if order else 0,
            rollout=order.rollout if order else "",
            target=order.bundle if isinstance(order, RunModel) else None,
            active=self._active,
            previous=self._previous,
        )

    def tell_latency(self) -> None:
        """State how long inferences took that nobody asked for."""
        if self._active is None or self._fate == "silent":
            return
        now = self._clock()
        start, self._told_at = max(self._told_at, self._active.since), now
        self._say("telemetry", self._pretence.measure(self._active.bundle, start, now))

    def _advance(self) -> None:
        order = self._order
        if not isinstance(order, RunModel):
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
                self._next_at = self._clock() + order.soak_s
            case "SOAKING":
                self._next_at = None
                self._activate(order.bundle)
                self._become("COMMITTED", f"served {order.soak_s:g} s without trouble")
                self.tell_latency()

    def _activate(self, bundle: BundleRef) -> None:
        choice = self._pretence.choose(bundle)
        if self._active is not None and self._active.bundle != bundle:
            self._previous = self._active.bundle
        self._active = Active(bundle=bundle, choice=choice, since=self._clock())
        self._held.add(bundle.digest)

    def _become(self, state: str, because: str) -> None:
        before, self.state, self._because = self.state, state, because
        self._report()
        order = self._order
        if order is not None:
            event = Event(
                at=self._clock(),
                kind="transition",
                model=self._name,
                bundle=order.bundle.digest if isinstance(order, RunModel) else self._name,
                from_state=before,
                to_state=state,
                because=because,
                rollout=order.rollout,
                sequence=order.sequence,
            )
            self._say("event", event)
