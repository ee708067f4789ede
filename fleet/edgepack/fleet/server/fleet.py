"""Methods of a running fleet; the API and the dashboard call these."""

from functools import partial

from sqlalchemy import select

from edgepack.bundle.feedback import Feedback
from edgepack.errors import FleetError
from edgepack.fleet.database import (
    audit,
    devices,
    latency_report,
    lease,
    records,
)
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.database.feedback import gather
from edgepack.fleet.documents.audit import AuditEntry
from edgepack.fleet.documents.fleet import EventView, FleetInfo
from edgepack.fleet.documents.latency import LatencyQuestion, LatencyReport
from edgepack.fleet.releases.budgets import with_budgets
from edgepack.fleet.rollouts.statistics import ALPHA, lower_bet
from edgepack.fleet.server.devices import DeviceMethods
from edgepack.fleet.server.releases import ReleaseMethods
from edgepack.fleet.server.rollouts import RolloutMethods
from edgepack.fleet.server.samples import SampleMethods
from edgepack.fleet.server.webhooks import WebhookMethods


class Fleet(
    RolloutMethods,
    ReleaseMethods,
    DeviceMethods,
    SampleMethods,
    WebhookMethods,
    frozen=True,
    kw_only=True,
):
    """A running fleet: its parts and operations."""

    def info(self) -> FleetInfo:
        """Return the fleet at a glance."""
        with self.store.reading() as session:
            enrolled, online = devices.count_devices(session)
            leader = lease.leader(session)
        return FleetInfo(
            tenant=self.tenant,
            broker=self.broker_url,
            broker_is_tls=self.broker_is_tls,
            controller=self.name,
            leader=leader or self.name,
            is_connected=self.link.is_connected,
            devices=enrolled,
            online=online,
            counters=dict(self.inbox.counters + self.depot.counters),
            sent_bytes=dict(self.depot.sent_bytes),
            pace_bytes_per_s=self.depot.bytes_per_s,
            dropped=self.inbox.quotas.most_dropped(),
            warnings=tuple(said for one in self.warners for said in one.warnings()),
            inferences=self.inbox.totals.inferences,
            energy=self.inbox.totals.energy,
        )

    def is_healthy(self) -> bool:
        """Return True if the database answers and the broker is connected."""
        try:
            with self.store.reading() as session:
                session.execute(select(1))
        except FleetError:
            return False
        return self.link.is_connected

    def events(self, after: int, limit: int) -> tuple[EventView, ...]:
        """Return events newer than `after`, oldest first."""
        with self.store.reading() as session:
            return records.events_after(session, after, limit)

    def latency(self, question: LatencyQuestion) -> LatencyReport:
        """Return latency of real inferences.

        Raises:
            FleetError: See `edgepack.fleet.database.latency_report.report`.
        """
        with self.store.reading() as session:
            return latency_report.report(session, question, self.store.now())

    def feedback(self, model: str) -> Feedback:
        """Return the measurements of a model's variants.

        Raises:
            FleetError: The fleet has no release of that name.
        """
        with self.store.reading() as session:
            found = gather(session, model, self.store.now(), partial(lower_bet, alpha=ALPHA))
        return with_budgets(found, self.releases)

    def audit_log(self, wanted: Wanted, limit: int) -> tuple[AuditEntry, ...]:
        """Return entries of the audit log, the newest first."""
        with self.store.reading() as session:
            return audit.entries(session, wanted, limit)
