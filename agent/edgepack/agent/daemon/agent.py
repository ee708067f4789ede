"""The agent's loop: a thread that handles messages, continues updates, and reports."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.agent.broker.inbox import Acknowledged, Arrived, Connected, Inbox, Item
from edgepack.agent.broker.link import Publisher
from edgepack.agent.broker.logs import LogSender
from edgepack.agent.broker.samples import LOOK_S, SampleUploader
from edgepack.agent.broker.silence import SilenceWatch
from edgepack.agent.config import AgentConfig
from edgepack.agent.daemon.application_socket import ApplicationSocket
from edgepack.agent.daemon.local_orders import LocalOrders
from edgepack.agent.daemon.metrics import DeviceMetrics
from edgepack.agent.daemon.reporter import ReportedParts, Reporter
from edgepack.agent.daemon.service_manager import ServiceManager
from edgepack.agent.enrolment.renewal import CertificateKeeper
from edgepack.agent.self_update.agent_installer import AgentInstaller
from edgepack.agent.state.disk import DiskWatch
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.transfer.chunk_status import ChunkOutcome
from edgepack.agent.update.dependencies import Clock
from edgepack.agent.update.models import Models
from edgepack.agent.update.transitions import MAX_TEXT
from edgepack.agent.update.updater import DISK_RETRY_S
from edgepack.bundle.metadata import MAX_CHUNK_BYTES
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import DeviceError, TransferError, TrustError
from edgepack.text import counted
from edgepack.wire import topics
from edgepack.wire.batches import Received, Session
from edgepack.wire.coded import read_coded
from edgepack.wire.messages import decode
from edgepack.wire.orders import Certificate, Desired
from edgepack.wire.reports import CaptureReport
from edgepack.wire.router import Router
from edgepack.wire.signed import group_messages
from edgepack.wire.telemetry import Event
from edgepack.wire.transfers import Taken

if TYPE_CHECKING:
    from edgepack.agent.update.device_trust import DeviceTrust

log = logging.getLogger(__name__)

FAULT_PAUSE_S = 1.0
"""Until the loop goes on after the disk failed in it."""
IDLE_S = 5.0
BATCH = 16
"""Messages taken before the updates go on: a device says how far it is between two batches."""
LINGER_S = 0.001
"""So long a batch waits for its next message. Going on costs as much as taking two chunks, so it is
not done for each one that comes when they come fast."""
FAULT = "fault in edgepack"
"""Why a message was dropped that edgepack failed to handle."""
GATHER_S = 5.0
"""How often the spool is read."""
SESSION_S = 1.0
"""A new session is accepted so often at most, so that no broker makes a device flood it."""
_INDEX_BYTES = 4


class Agent:
    """Ties the models to the broker.

    Args:
        config: The agent's settings.
        inbox: Received messages.
        publisher: Where messages go.
        telemetry: Latency reports to send.
        make_models: Makes the models; its argument is a function to call after every transition.
        trust: Verifies the fleet's metadata and orders; None without a root.
        keeper: Renews this device's certificate; None without a certificate.
        metrics: Metrics of the device, for others than the fleet.
        applications: The socket of applications with their own runtime.
        manager: The service manager, which gets signs of life from the loop.
        read_again: Returns the settings in effect after a reload, with the accepted signers; None
            to keep all. Without the function nothing is reloaded.
        local_orders: Orders of commands on this device; None takes none.
        installer: The slots of the agent itself; None if no launcher started this process.
        recent_log: Returns that many of the last lines of the log, without secrets.
        clock: The time.
    """

    def __init__(
        self,
        config: AgentConfig,
        inbox: Inbox,
        publisher: Publisher,
        telemetry: TelemetryBuffer,
        make_models: Callable[[Callable[[], None]], Models],
        *,
        boot: str,
        trust: "DeviceTrust | None" = None,
        keeper: CertificateKeeper | None = None,
        metrics: DeviceMetrics | None = None,
        applications: ApplicationSocket | None = None,
        manager: ServiceManager | None = None,
        read_again: Callable[[AgentConfig], tuple[AgentConfig, TrustPolicy] | None] | None = None,
        local_orders: LocalOrders | None = None,
        installer: AgentInstaller | None = None,
        recent_log: Callable[[int], tuple[str, ...]] = lambda _: (),
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        tenant, device = config.tenant, config.device
        self._router: Router[Callable[[str, bytes], None]] = Router(
            {
                topics.desired(tenant, device): self._take_offer,
                topics.broadcast(tenant, topics.FILE): self._take_chunk,
                topics.repair(tenant, device, topics.FILE): self._take_chunk,
                topics.coded(tenant, topics.FILE): self._take_coded,
                topics.certificate(tenant, device): self._take_certificate,
                topics.session(tenant, device): self._take_session,
                topics.received(tenant, device): self._take_received,
                topics.samples_taken(tenant, device): self._take_samples_taken,
                topics.metadata(tenant, topics.METADATA): self._take_metadata,
                topics.device_metadata(tenant, device, topics.METADATA): self._take_metadata,
            }
        )
        self._trust, self._keeper, self._metrics = trust, keeper, metrics
        self._applications = applications
        self._manager, self._read_again = manager or ServiceManager(), read_again
        self._local_orders = local_orders
        self._inbox = inbox
        self._publisher = publisher
        self._telemetry = telemetry
        self._clock = clock or Clock()
        self._unkept: tuple[Desired, Mapping[str, str]] | None = None
        self._retry_at = 0.0
        self._gathered_at = self._clock.monotonic()
        self._session_at = -SESSION_S
        self._silence = SilenceWatch(config.tenant, config.device)
        self._disk = DiskWatch(Path(config.state_dir))
        self._samples = SampleUploader(
            config, wall=self._clock.wall, monotonic=self._clock.monotonic
        )
        self._log = LogSender(
            config, recent_log, wall=self._clock.wall, monotonic=self._clock.monotonic
        )
        self._reported_captures: Mapping[str, CaptureReport] = {}
        self._models = make_models(lambda: self._reporter.report())
        troubled = (publisher, telemetry, trust, keeper, metrics, applications, installer)
        self._reporter = Reporter(
            config,
            self._models,
            publisher,
            telemetry,
            ReportedParts(
                samples=self._samples,
                disk=self._disk,
                trust=trust,
                keeper=keeper,
                troubled=tuple(part for part in troubled if part is not None),
            ),
            self._silence,
            boot=boot,
            clock=self._clock,
        )
        self.dropped: Counter[str] = Counter()
        self.reload = threading.Event()
        self._is_stale = False

    def start(self) -> None:
        """Continue at the states of the journals."""
        self._models.start()

    def run(self, stop: threading.Event) -> None:
        """Run the loop until `stop` is set."""
        self.start()
        self._manager.report(self._status())
        self._manager.ready()
        while not stop.is_set():
            self._manager.sign()
            try:
                self._reload_when_asked()
                self.turn()
                self._disk.works("agent")
            except OSError as error:
                # A disk that does not work never ends the agent: what serves serves on.
                self._disk.failed("agent", error)
                stop.wait(FAULT_PAUSE_S)
        self._manager.stopping()
        self._models.suspend()
        with contextlib.suppress(OSError):  # What is not stored stays in the spool.
            self._telemetry.commit(seals=False)

    def _reload_when_asked(self) -> None:
        """Read the settings again if a signal has asked for that.

        Raises:
            OSError: The disk does not work, so that serving processes have not got all settings.
        """
        if self._read_again is None or not self.reload.is_set():
            return
        self.reload.clear()
        self._manager.reloading()
        try:
            found = self._read_again(self._config)
            self._is_stale = found is None
            if found is not None:
                self._config, trust = found
                self._models.apply(self._config, trust)
                self._samples.apply(self._config)
                self._log.apply(self._config)
                self._reporter.apply(self._config)
        finally:
            self._manager.report(self._status())
            self._manager.ready()

    def count_fault(self) -> None:
        """Count a fault that ends the agent against the updates that are under way."""
        self._models.count_fault()

    def turn(self) -> None:
        """Run one turn of the loop: continue updates, wait for messages, handle a batch of
        messages.
        """
        self._publisher.look_after()
        self._judge()
        self._carry_out_again()
        if self._local_orders is not None:
            self._local_orders.turn(self._models)
        wait_s = self._models.advance()
        self._send_samples()
        self._send_log()
        now = self._clock.monotonic()
        self._gather_when_due(now)
        if self._reporter.report_when_due(now):
            self._update_metrics()
        if self._publisher.is_connected and (finding := self._silence.finding(now)):
            log.warning("%s", finding)
        until_window_s = self._reporter.until_window_s(now)
        idle_s = LOOK_S if self._samples.is_active else IDLE_S
        item = self._inbox.get(min(IDLE_S if wait_s is None else wait_s, until_window_s, idle_s))
        for _ in range(BATCH):
            if item is None:
                return
            self._take(item)
            item = self._inbox.get(LINGER_S)
        if item is not None:
            self._take(item)

    def _take(self, item: Item) -> None:
        """Handle a received item; no content from a peer may end the agent or an update."""
        try:
            self._handle(item)
        except Exception as error:  # the outermost loop of what peers can cause
            self._drop(FAULT, repr(error))
            log.exception("fault %d caused by a received message", self.dropped[FAULT])

    def _handle(self, item: Item) -> None:
        match item:
            case Connected():
                self._silence.connected(self._clock.monotonic())
                self._reporter.begin_connection()
                self._models.note_connected()
            case Acknowledged(message_id=message_id, code=code, reason=reason):
                self._silence.acknowledged(message_id, code, reason)
                self._reporter.note_acknowledged(message_id)
            case Arrived(topic=topic, payload=payload):
                self._take_message(topic, payload)

    def _take_message(self, topic: str, payload: bytes) -> None:
        if (found := self._router.find(topic)) is None:
            self._drop("unknown topic", topic)
        else:
            take, open_level = found
            take(open_level, payload)

    def _take_offer(self, _: str, payload: bytes) -> None:
        self._silence.answered()
        if not payload:
            return  # What was retained was taken away: there is nothing to want.
        if self._trust is not None:
            self._trust.put_orders(payload)
            return
        try:
            self._carry_out(decode(payload, Desired), {})
        except TransferError as error:
            self._refuse(error)

    def _take_metadata(self, name: str, payload: bytes) -> None:
        if self._trust is None or not payload:
            return
        try:
            if not self._trust.put_metadata(name, payload):
                self._drop("unknown metadata", name)
        except OSError as error:
            self._drop("metadata not compared with what is kept", str(error))

    def _take_certificate(self, _: str, payload: bytes) -> None:
        if self._keeper is None or not payload:
            return
        try:
            said = decode(payload, Certificate)
            is_new = self._keeper.accept(said.certificate)
            if said.authority and self._keeper.accept_authority(said.authority):
                is_new = True
            if is_new:
                self._publisher.renew_certificate()
                self._reporter.report()
        except (DeviceError, TransferError) as error:
            self._drop("certificate not accepted", error.problem)

    def _take_session(self, _: str, payload: bytes) -> None:
        """Continue in the session that the controller gave, and report at once."""
        now = self._clock.monotonic()
        if not payload or now - self._session_at < SESSION_S:
            return
        try:
            is_new = self._publisher.accept_session(decode(payload, Session))
        except TransferError as error:
            self._drop("malformed session", error.problem)
            return
        if is_new:
            self._session_at = now
            self._silence.answered()
            self._reporter.begin_session()
            self._samples.resend()

    def _take_received(self, _: str, payload: bytes) -> None:
        """Forget telemetry that the fleet has, and send the next."""
        if not payload:
            return
        try:
            said = decode(payload, Received)
        except TransferError as error:
            self._drop("malformed acknowledgement", error.problem)
            return
        journal = self._telemetry.journal
        journal.acknowledge(said.journal, said.until, said.newest)
        if journal.is_waiting:
            self._reporter.publish_telemetry()

    def _take_samples_taken(self, _: str, payload: bytes) -> None:
        """Delete samples that the fleet has, and send the next."""
        if not payload:
            return
        try:
            said = decode(payload, Taken)
        except TransferError as error:
            self._drop("malformed acknowledgement", error.problem)
            return
        try:
            self._samples.note_taken(said)
        except OSError as error:
            self._disk.failed("samples", error)

    def _send_samples(self) -> None:
        """Send due pieces of requested samples."""
        if not (self._publisher.is_connected and self._publisher.has_session):
            return
        try:
            pieces = self._samples.turn()
        except OSError as error:
            self._disk.failed("samples", error)
            return
        self._disk.works("samples")
        for group in group_messages(pieces):
            self._publisher.publish("sample", *group)
        if self._samples.reports != self._reported_captures:
            self._reported_captures = self._samples.reports
            self._reporter.report()

    def _send_log(self) -> None:
        """Send requested lines of the log."""
        is_heard = self._publisher.is_connected and self._publisher.has_session
        if is_heard and (answer := self._log.turn()) is not None:
            self._publisher.publish("log", answer)

    def _judge(self) -> None:
        """Verify received metadata and orders, then apply new orders."""
        if self._trust is None:
            return
        try:
            decision = self._trust.turn()
            if decision is not None:
                self._carry_out(decision.desired, decision.refusals)
        except TrustError as error:
            self._drop("word not accepted", error.problem)
        except TransferError as error:
            self._refuse(error)
        except OSError as error:
            self._reporter.heard_sequence = 0
            self._drop("word not kept", str(error))
        except Exception as error:  # the outermost loop of what peers can cause
            self._drop(FAULT, repr(error))
            log.exception("fault %d because of metadata or an order", self.dropped[FAULT])
        if self._trust.is_waiting:
            self._reporter.is_news = True  # What it waits for may be lost: the fleet hears of it.

    def _carry_out(self, desired: Desired, refusals: Mapping[str, str]) -> None:
        """Apply the fleet's orders, except rejected orders.

        Raises:
            TransferError: An order makes no sense.
        """
        try:
            self._reporter.heard_sequence = desired.sequence
            heard = self._models.take(desired, refusals)
            self._log.take(desired.log, is_signed=self._trust is not None)
            self._samples.take(desired.captures, is_signed=self._trust is not None)
        except OSError as error:
            # Tried again here; the controller, too, answers a report with this sequence.
            self._reporter.heard_sequence = 0
            self._unkept = (desired, refusals)
            self._retry_at = self._clock.monotonic() + DISK_RETRY_S
            self._drop("offer not kept", str(error))
        else:
            self._unkept = None
            log.debug("desired sequence=%d %s", desired.sequence, heard)
            if set(heard.values()) <= {"known"}:
                self._reporter.report()

    def _carry_out_again(self) -> None:
        """Retry orders that the disk did not allow before."""
        if self._unkept is None or self._clock.monotonic() < self._retry_at:
            return
        try:
            self._carry_out(*self._unkept)
        except TransferError as error:
            self._unkept = None
            self._refuse(error)

    def _refuse(self, error: TransferError) -> None:
        self._drop("malformed offer", error.problem)
        because, at = error.problem[:MAX_TEXT], self._clock.wall()
        self._reporter.add_event(Event(at=at, kind="refused", bundle="none", because=because))

    def _take_chunk(self, sha256: str, payload: bytes) -> None:
        content = memoryview(payload)[_INDEX_BYTES:]
        if not content:
            self._drop("chunk without content", sha256)
        elif len(content) > MAX_CHUNK_BYTES:
            self._drop("chunk too long", sha256)
        else:
            index = int.from_bytes(payload[:_INDEX_BYTES], "big")
            self._judge_chunk(self._models.accept_chunk(sha256, index, content), sha256, index)

    def _take_coded(self, sha256: str, payload: bytes) -> None:
        try:
            coded = read_coded(payload)
        except TransferError as error:
            self._drop("malformed coded chunk", f"{sha256} {error.problem}")
        else:
            self._judge_chunk(self._models.accept_coded(sha256, coded), sha256, coded.members[0])

    def _judge_chunk(self, received: ChunkOutcome, sha256: str, index: int) -> None:
        if received == "bad":
            self._drop("bad chunk", f"{sha256} chunk {index}")
        elif received == "unwanted":
            self.dropped["unwanted chunk"] += 1

    def _drop(self, reason: str, detail: str) -> None:
        """Count a dropped message, and log the first, the tenth, the hundredth …"""
        self.dropped[reason] += 1
        count = self.dropped[reason]
        if count == 10 ** (len(str(count)) - 1):
            log.warning("dropped=%s count=%d detail=%s", reason, count, ascii(detail)[:300])

    def _gather_when_due(self, now: float) -> None:
        """Read the spool, and tell those on this device, at times."""
        if now - self._gathered_at >= GATHER_S:
            self._gathered_at = now
            self._telemetry.gather()
            self._update_metrics()
            self._manager.report(self._status())

    def _status(self) -> str:
        """Return a line for the service manager: models, updates, broker."""
        updaters = tuple(self._models)
        serving = counted(sum(one.active is not None for one in updaters), "model")
        moving = [one.name for one in updaters if not one.journal.is_at_rest]
        parts = [f"{serving} served"]
        if moving:
            parts.append(f"updating {', '.join(sorted(moving))}")
        if self._config.broker is None:
            parts.append("without a fleet")
        elif not self._publisher.is_connected:
            parts.append("broker not reached")
        if self._is_stale:
            parts.append("the settings file has an error: see the log")
        return "; ".join((*parts, *self._models.troubles[:1]))

    def _update_metrics(self) -> None:
        if self._metrics is not None:
            is_connected = self._publisher.is_connected
            others = self._applications.dropped if self._applications else {}
            dropped = {**self.dropped, **others}
            self._metrics.update(self._models, dropped, is_connected=is_connected)
