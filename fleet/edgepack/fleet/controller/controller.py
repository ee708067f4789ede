"""Controller: stores messages of devices, answers devices and advances rollouts.

Paho's thread only puts incoming messages into a bounded queue. Another thread takes the messages in
batches, each in a transaction; only this thread publishes, after the commit, so that an older order
never follows a newer order. A message that cannot be read or that breaks something is dropped
alone, counted and logged. Among several controllers only the leader does this; the others only
store telemetry.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from sqlalchemy.orm import Session

from edgepack.errors import EdgepackError, TransferError
from edgepack.fleet.controller.heartbeat import Heartbeat
from edgepack.fleet.controller.inbox import Inbox, Incoming
from edgepack.fleet.controller.intake import Intake, finish
from edgepack.fleet.controller.lead import Lead, SingleController
from edgepack.fleet.controller.metadata import MetadataKeeper
from edgepack.fleet.controller.renewals import Renewals
from edgepack.fleet.controller.verification import RefusalError, Verifier
from edgepack.fleet.database import (
    audit,
    device_logs,
    devices,
    latency,
    records,
    samples,
    unsent,
)
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.lease import LeadLostError
from edgepack.fleet.database.measures import VALUE_S
from edgepack.fleet.database.store import DatabaseAwayError, Store
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.rollouts import steps
from edgepack.fleet.rollouts.rollback import IsReleased
from edgepack.wire import topics
from edgepack.wire.messages import encode

log = logging.getLogger(__name__)

STEP_S = 0.5
"""How often rollouts are looked at, at least, while one is RUNNING."""
FORGET_S = 3600.0
HELPED: frozenset[topics.UpKind] = frozenset({"telemetry"})
"""What any controller takes down: it changes nothing that a leader decides by."""


class Broker(Protocol):
    """Methods that a controller needs of its connections to the broker."""

    @property
    def can_publish(self) -> bool:
        """True if the leader's messages are sent now or after the next reconnect."""

    def publish_retained(self, topic: str, payload: bytes) -> None:
        """Publish; never wait."""

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message that is not retained."""

    def acknowledge(self, topic: str, payload: bytes) -> None:
        """Publish a message that any controller may publish."""

    def lead(self) -> None:
        """Prepare to publish, in a controller with freshly verified leadership.

        Raises:
            TransferError: The broker cannot be reached, or refuses.
        """

    def follow(self) -> None:
        """Publish nothing any more."""

    def look_after(self) -> None:
        """Check the connections and repair broken connections; called at intervals."""


class Gathering(NamedTuple):
    """Delays for collecting messages, seconds: a transaction for each message costs ten times more.

    Attributes:
        idle_s: While no rollout is RUNNING; nobody waits for an answer then.
        rolling_s: While a rollout is RUNNING.
        idle_step_s: Period of checks for rollouts while no rollout is RUNNING: the start of a
            rollout wakes the controller.
    """

    idle_s: float = 2.0
    rolling_s: float = 0.2
    idle_step_s: float = 5.0


class Controller:
    """Answers devices and moves rollouts on, in a thread of its own.

    Args:
        store: The fleet's database.
        tenant: Tenant of the devices.
        inbox: Where messages come in.
        broker: Publishes.
        depot: Sends chunks.
        metadata: Keeps the image repository's metadata fresh.
        sign: Signs an order for a device: the device and the encoded `Desired`.
        is_released: Whether devices accept a release.
        open_authority: Opens the authority that signs devices' certificates.
        auto_enroll: Takes in any device that reports (only with the embedded broker).
        lead: Whether this controller leads.
        gathering: Delays for collecting messages.
        heartbeat: Beats while this controller continues.
        value_s: Seconds of a device's value for gates.
    """

    def __init__(
        self,
        *,
        store: Store,
        tenant: str,
        inbox: Inbox,
        broker: Broker,
        depot: Depot,
        metadata: MetadataKeeper,
        sign: Callable[[str, bytes], bytes],
        is_released: IsReleased,
        open_authority: Callable[[], Authority],
        auto_enroll: bool,
        lead: Lead = SingleController(),  # noqa: B008 (it cannot be changed)
        gathering: Gathering = Gathering(),  # noqa: B008 (it cannot be changed)
        heartbeat: Heartbeat | None = None,
        value_s: float = VALUE_S,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._inbox = inbox
        self._broker, self._lead = broker, lead
        self._depot, self._metadata, self._sign = depot, metadata, sign
        self._is_released = is_released
        self._renewals = Renewals(
            open_authority,
            lambda device, why: inbox.quotas.note_dropped(device, "certificate not renewed", why),
        )
        self._gathering, self._heartbeat = gathering, heartbeat or Heartbeat()
        self._is_rolling = self._has_moved = True
        self._verifier = Verifier(tenant)
        self._intake = Intake(
            self._verifier,
            open_authority,
            lambda message, more: (
                not more or inbox.quotas.admits(message.device, message.kind, message.at, more)
            ),
            auto_enroll=auto_enroll,
            value_s=value_s,
        )
        self._stopping = threading.Event()
        self._stepped_at = self._forgot_at = 0.0
        self._batch: list[Incoming] = []
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def start(self) -> None:
        """Start; rollouts that were under way when an earlier controller ended continue."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping.set()
        self._inbox.wake()
        self._thread.join(timeout=10)

    @property
    def leads(self) -> bool:
        """True if this controller leads, to its own knowledge."""
        return self._lead.is_held

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._heartbeat.beat()
            try:
                self.turn()
            except LeadLostError as error:
                log.warning("the controller waits because=%s", error.problem)
            except DatabaseAwayError as error:
                log.warning("the controller waits because=%s", error.problem)
                self._stopping.wait(1.0)
            except TransferError as error:
                log.warning("the controller waits because=%s", error)
                self._lead.pass_on()
                self._stopping.wait(1.0)
            except Exception:  # the outermost loop of this thread: the controller goes on
                log.exception("the controller stumbled")
                self._stopping.wait(1.0)

    def turn(self) -> None:
        """Handle received messages, advance rollouts, and publish the resulting orders.

        Raises:
            DatabaseAwayError: The database does not answer; the messages in hand are kept.
            LeadLostError: Another controller leads; the messages in hand are kept.
            TransferError: The broker does not answer the leader.
        """
        self._batch = self._batch or self._take()
        if not self._lead.is_held:
            self._broker.follow()
            self._leave_to_the_leader()
        self._handle_all()
        if not self._lead.is_held:
            self._broker.look_after()
            return
        now = self._store.now()
        # Under a flood of messages rollouts are looked at now and then, otherwise as soon as what
        # was heard, or the step before, may have left them something to do.
        due_s = STEP_S if self._is_rolling else self._gathering.idle_step_s
        is_due = abs(now - self._stepped_at) >= due_s
        has_moved = self._is_rolling and self._has_moved and self._inbox.is_empty
        if is_due or self._inbox.was_woken or has_moved:
            self._stepped_at = now
            self._step(now)
        if self._inbox.reconnected.is_set():
            self._inbox.reconnected.clear()
            self._metadata.tell_again()
            with self._leading() as session:
                publications = devices.all_unsettled(session)
            self._publish(publications)

    def _step(self, now: float) -> None:
        """Advance rollouts and publish the resulting orders.

        1. The connections work; the leader's connection is opened only after the leadership is
           verified. The image repository's metadata is fresh and published.
        2. Rollouts move on.
        3. Changes that users made at any controller are published.
        """
        # 1.
        self._broker.look_after()
        if not self._broker.can_publish:
            with self._leading():
                pass
            self._broker.lead()
        self._metadata.turn(time.monotonic())
        # 2.
        with self._leading() as session:
            publications, running = steps.step(session, now, self._is_released)
            left = unsent.read(session)
            if now - self._forgot_at >= FORGET_S:
                self._forgot_at = now
                records.forget_old(session, now)
                latency.forget_old(session, now)
                audit.forget_old(session, now)
                samples.forget_old(session, now)
                device_logs.forget_old(session, now)
        self._is_rolling, self._has_moved = running > 0, bool(publications)
        self._publish(publications)
        # 3.
        if left.publications:
            self._publish(left.publications)
            with self._leading() as session:
                unsent.note_sent(session, left.up_to)
            self._inbox.wake()

    @contextmanager
    def _leading(self) -> Iterator[Session]:
        """Yield a transaction of the leader; raise as `Lead.check` does."""
        with self._store.transaction() as session:
            self._verifier.begin_term(self._lead.check(session))
            yield session

    def _leave_to_the_leader(self) -> None:
        kept = [message for message in self._batch if message.kind in HELPED]
        if dropped := len(self._batch) - len(kept):
            self._inbox.counters["left_to_the_leader"] += dropped
        self._batch = kept

    def _publish(self, publications: Iterable[Publication]) -> None:
        """Publish orders to devices, after the orders are durable."""
        for publication in publications:
            topic = topics.desired(self._tenant, publication.device)
            payload = publication.payload
            try:
                payload = self._sign(publication.device, payload)
            except EdgepackError as error:
                # Devices without a root still obey; the others wait until it can be signed.
                log.warning(
                    "device=%s order=unsigned because=%s", publication.device, error.problem
                )
            self._broker.publish_retained(topic, payload)

    def _take(self) -> list[Incoming]:
        if self._is_rolling and self._lead.is_held:
            return self._inbox.take(STEP_S, self._gathering.rolling_s)
        return self._inbox.take(self._gathering.idle_step_s, self._gathering.idle_s)

    def _handle_all(self) -> None:
        try:
            self._handle(self._batch)
        except (DatabaseAwayError, LeadLostError):
            raise
        except Exception:  # one message broke the batch: find it, and drop it alone
            log.exception("a batch of %d messages is taken one by one", len(self._batch))
            while self._batch:
                self._handle_alone(self._batch[0])
                del self._batch[0]
        self._batch = []

    def _handle_alone(self, message: Incoming) -> None:
        try:
            self._handle([message])
        except (DatabaseAwayError, LeadLostError):
            raise
        except Exception:  # whatever a device sent, the controller goes on
            self._inbox.counters["broken"] += 1
            log.exception("device=%s %s dropped", message.device, message.kind)

    def _handle(self, messages: list[Incoming]) -> None:
        if not messages:
            return
        counters: Counter[str] = Counter()
        helps = all(message.kind in HELPED for message in messages)
        with self._store.transaction() if helps else self._leading() as session:
            batch = self._intake.begin(session, messages, self._store.now())
            for message in messages:
                try:
                    counters[self._intake.take(batch, message)] += 1
                except RefusalError as error:
                    counters[error.reason.replace(" ", "_")] += 1
                    if error.is_forged:
                        self._inbox.quotas.note_forged(message.device, message.at)
                        if message.is_charged:
                            self._inbox.quotas.give_back(message.device, message.kind)
                    reason = f"{message.kind} {error.reason}"
                    self._inbox.quotas.note_dropped(message.device, reason, error.problem)
                except TransferError as error:
                    counters["malformed"] += 1
                    reason = f"malformed {message.kind}"
                    self._inbox.quotas.note_dropped(message.device, reason, error.problem)
            has_moved = finish(batch)
            renewed = self._renewals.answer(session, batch.renewing, batch.now)
        self._has_moved = self._has_moved or has_moved
        self._inbox.counters.update(counters)
        self._inbox.totals.add(batch.added, batch.dropped, batch.now)
        self._publish(batch.publications)
        for device, trusted in batch.trusting.items():
            self._metadata.answer(device, trusted, time.monotonic())
        for device, session_offer in batch.seals.sessions.items():
            self._broker.publish(topics.session(self._tenant, device), session_offer)
        for device, received in batch.seals.received.items():
            self._broker.acknowledge(topics.received(self._tenant, device), received)
        for device, taken in batch.samples_taken.items():
            for because in taken.refused.values():
                self._inbox.counters["samples_refused"] += 1
                self._inbox.quotas.note_dropped(device, "sample refused", because)
            self._broker.publish(topics.samples_taken(self._tenant, device), encode(taken))
        for device, certificate in renewed.items():
            self._broker.publish(topics.certificate(self._tenant, device), certificate)
        for message, need in batch.needs:
            self._depot.take(message.device, need, message.at)
