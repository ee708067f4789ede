"""Report to the fleet: the device's state, events and telemetry, each when it is due."""

from collections import deque
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from edgepack.agent.broker.link import Publisher
from edgepack.agent.broker.report import Recent, failing_releases, make_report, report_due_s
from edgepack.agent.broker.samples import SampleUploader
from edgepack.agent.broker.silence import SilenceWatch
from edgepack.agent.config import AgentConfig
from edgepack.agent.enrolment.renewal import CertificateKeeper
from edgepack.agent.state.disk import DiskWatch
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.failing import FailingNote
from edgepack.agent.telemetry.journal import Numbered
from edgepack.agent.update.dependencies import Clock
from edgepack.agent.update.models import Models
from edgepack.wire.changes import find_changes
from edgepack.wire.reports import Reported
from edgepack.wire.signed import group_messages
from edgepack.wire.telemetry import Event

if TYPE_CHECKING:
    from edgepack.agent.update.device_trust import DeviceTrust

PROGRESS_STEP = 0.1
MAX_OWN_EVENTS = 16
"""Events that are about no model and wait for the broker; the oldest go first."""
TROUBLE_PAUSE_S = 5.0
"""Between reports of problems that come and go: a fleet rejects reports above a device's quota."""
RESEND_S = 10.0
"""Telemetry that the fleet does not acknowledge is sent again after this time, at least."""


class Troubled(Protocol):
    """Part of the agent that may have a problem."""

    @property
    def trouble(self) -> str:
        """The problem as a sentence; "" without a problem."""


class ReportedParts(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the agent, besides the models, that a report tells of.

    Attributes:
        samples: Sends requested samples.
        disk: Knows which parts the disk fails.
        trust: Verifies the fleet's orders; None without a root.
        keeper: Renews this device's certificate; None without a certificate.
        troubled: Parts that may have a problem.
    """

    samples: SampleUploader
    disk: DiskWatch
    trust: "DeviceTrust | None"
    keeper: CertificateKeeper | None
    troubled: tuple[Troubled, ...]


class Reporter:
    """Sends reports, events and telemetry, and sends them again until they are acknowledged.

    Args:
        config: The agent's settings.
        models: The models.
        publisher: Where messages go.
        telemetry: Latency reports to send.
        parts: Other parts to report.
        silence: Learns which reports are sent.
        boot: Identifier of this process.
        clock: The time.
    """

    def __init__(
        self,
        config: AgentConfig,
        models: Models,
        publisher: Publisher,
        telemetry: TelemetryBuffer,
        parts: ReportedParts,
        silence: SilenceWatch,
        *,
        boot: str,
        clock: Clock,
    ) -> None:
        self._config = config
        self._models = models
        self._publisher = publisher
        self._telemetry = telemetry
        self._parts = parts
        self._silence = silence
        self._boot = boot
        self._clock = clock
        self._failing = FailingNote(Path(config.state_dir), clock.wall)
        self._told: Reported | None = None
        self._reported_at = 0.0
        self._reported_progress = 0.0
        self._reported_troubles: tuple[str, ...] = ()
        self._sent: Numbered | None = None
        self._resend_at = 0.0
        self._window_at = clock.monotonic()
        self._moved_at = -config.telemetry.interval_s
        self._own_events: deque[Event] = deque(maxlen=MAX_OWN_EVENTS)
        self._in_flight: dict[int, tuple[Event, ...]] = {}
        self.heard_sequence = 0
        self.is_news = True

    def apply(self, config: AgentConfig) -> None:
        """Take new settings."""
        self._config = config
        self.is_news = True

    def begin_connection(self) -> None:
        """Send the whole report, since a connection began."""
        self._told = None
        self.report()

    def begin_session(self) -> None:
        """Send the whole report and the unacknowledged telemetry, since a session began."""
        self.begin_connection()
        self._sent = None
        self.publish_telemetry()

    def add_event(self, event: Event) -> None:
        """Send an event that is about no model."""
        self._own_events.append(event)
        self.report()

    def note_acknowledged(self, message_id: int) -> None:
        """Note that the broker has acknowledged a message."""
        for event in self._in_flight.pop(message_id, ()):
            if event.model in self._models:
                self._models[event.model].note_sent(event)
            elif event in self._own_events:
                self._own_events.remove(event)

    def report_when_due(self, now: float) -> bool:
        """Send due reports: after download progress, at a heartbeat, and latencies.

        Returns:
            Whether a window of telemetry ended.
        """
        progress = self._progress()
        troubles, has_paused = self._models.troubles, now - self._reported_at >= TROUBLE_PAUSE_S
        if troubles != self._reported_troubles and has_paused:
            self._reported_troubles = troubles
            self.report()
        has_moved = abs(progress - self._reported_progress) >= PROGRESS_STEP
        due_s = report_due_s(
            self._config.device, self._config.telemetry.heartbeat_s, is_news=self.is_news
        )
        has_failures_news = self._failing.note(failing_releases(self._models, self._recent))
        if has_moved or has_failures_news or now - self._reported_at >= due_s:
            self.report()
            self.is_news = has_moved
        if self.until_window_s(now) > 0:
            return False
        self._window_at = now
        self.publish_telemetry()
        self._failing.write()
        return True

    def until_window_s(self, now: float) -> float:
        """Return the time until a window of telemetry ends: short in an update and soon after."""
        settings = self._config.telemetry
        if not all(updater.journal.is_at_rest for updater in self._models):
            self._moved_at = now
        is_moving = now - self._moved_at < settings.interval_s
        shortest_s = min(settings.interval_s, settings.update_interval_s)
        window_s = shortest_s if is_moving else settings.interval_s
        return max(0.0, self._window_at + window_s - now)

    def report(self) -> None:
        """Send the report, and the events that the broker has not acknowledged.

        The whole report is sent after a connection and in a new session, otherwise the changes.
        """
        self._reported_at = self._clock.monotonic()
        self.is_news = True
        self._reported_progress = self._progress()
        if not self._publisher.is_connected:
            return
        parts = self._parts
        report = make_report(
            self._models,
            (*(part.trouble for part in parts.troubled), *parts.disk.troubles),
            sequence=self.heard_sequence,
            boot=self._boot,
            at=self._clock.wall(),
            trust=parts.trust.reported if parts.trust else None,
            renewal=parts.keeper.renewal if parts.keeper else None,
            recent=self._recent,
            captures=parts.samples.reports,
        )
        message = report if self._told is None else find_changes(self._told, report)
        sent = self._publisher.publish("reported", message, retain=self._told is None)
        has_session = self._publisher.has_session
        self._told = report if has_session and sent is not None else None
        self._silence.sent_report(sent)
        if has_session:  # No controller takes events before; the broker would acknowledge them.
            self._publish_events()

    def _publish_events(self) -> None:
        waiting = {id(event) for events in self._in_flight.values() for event in events}
        outboxes = (updater.journal.outbox for updater in self._models)
        unsent = [it for it in chain(*outboxes, self._own_events) if id(it) not in waiting]
        for events in group_messages(unsent):
            message_id = self._publisher.publish("event", *events)
            if message_id is not None:
                self._in_flight[message_id] = events

    def publish_telemetry(self) -> None:
        """Store the windows of telemetry, and send those that the fleet did not acknowledge."""
        has_session = self._publisher.is_connected and self._publisher.has_session
        try:
            self._telemetry.commit(seals=has_session)
        except OSError as error:
            self._parts.disk.failed("telemetry", error)
            return
        self._parts.disk.works("telemetry")
        now = self._clock.monotonic()
        batch = self._telemetry.journal.under_way
        if has_session and batch is not None and (batch != self._sent or now >= self._resend_at):
            self._sent, self._resend_at = batch, now + RESEND_S
            place = (batch.journal, batch.first)
            self._publisher.publish("telemetry", *batch.windows, place=place)

    def _recent(self, digest: str) -> Recent:
        """Return the most recent inferences of a release."""
        return Recent(
            outcomes=self._telemetry.outcomes.recent(digest, self._clock.monotonic()),
            drift=self._telemetry.drift.recent(digest),
        )

    def _progress(self) -> float:
        """Return the progress of all downloads; any download changes this number."""
        return sum(updater.progress for updater in self._models)
