"""Queries of a running fleet: bounded reads that change nothing."""

import time
from typing import get_args

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgepack.bundle.manifest import Manifest, Variant
from edgepack.fleet.database import inventory, latency_views, overview, records, samples
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.database.devices import last_report
from edgepack.fleet.database.schema import DeviceModelRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents.audit import AuditEntry
from edgepack.fleet.documents.devices import DeviceFilter, DeviceView
from edgepack.fleet.documents.fleet import EventView
from edgepack.fleet.documents.models import ModelSummary, ReleaseDetails, VariantView
from edgepack.fleet.documents.overview import Overview, ReleaseShare
from edgepack.fleet.documents.previews import RolloutPreview
from edgepack.fleet.documents.releases import ReleaseView
from edgepack.fleet.documents.rollouts import (
    AssignmentView,
    LatencySpan,
    LatencyView,
    RolloutSettings,
    RolloutView,
    Selector,
)
from edgepack.fleet.documents.samples import CaptureView
from edgepack.fleet.releases.contents import has_report, read_manifest, read_report
from edgepack.fleet.releases.find import find_release
from edgepack.fleet.rollouts import execution, membership, status
from edgepack.fleet.rollouts.decision import show_gates
from edgepack.fleet.rollouts.rules import RolloutState
from edgepack.fleet.server.fleet import Fleet
from edgepack.wire.orders import BundleRef

MAX_ROLLOUTS = 10
"""That the first page shows, stopped and running ones each."""
MAX_EVENTS = 8
MAX_RELEASES, MAX_MODELS = 50, 200
MAX_REPORTS = 50
"""Devices that are asked what their probe found, of each variant."""
SPANS = ((60, 2 * 3600), (3600, 7 * 24 * 3600), (24 * 3600, 400 * 24 * 3600))
"""Lengths of the spans of a plot, and how far back it reaches, seconds: the first that has two."""


class FleetQueries(msgspec.Struct, frozen=True):
    """Looks at a running fleet."""

    fleet: Fleet

    def overview(self) -> Overview:
        """Return the first page."""
        with self.fleet.store.reading() as session:
            return Overview(
                counts=overview.count_standing(session),
                trouble=overview.list_trouble(session),
                releases=overview.share_releases(session),
                stopped=status.list_needing_a_person(session, time.time(), MAX_ROLLOUTS),
                running=status.list_rollouts(session, state="RUNNING", limit=MAX_ROLLOUTS),
                events=records.latest_events(session, limit=MAX_EVENTS),
            )

    def devices(
        self, wanted: DeviceFilter, after: str, limit: int
    ) -> tuple[tuple[DeviceView, ...], int | None]:
        """Return a page of devices, and how many there are in all where that is known.

        Raises:
            FleetError: The expression makes no sense.
        """
        with self.fleet.store.reading() as session:
            found = inventory.list_devices(session, wanted, after=after, limit=limit)
            return found, inventory.count_devices(session, wanted)

    def events(
        self, *, device: str = "", rollout: str = "", before: int = 0, limit: int = 50
    ) -> tuple[EventView, ...]:
        """Return the newest events of a device or a rollout, the newest first."""
        with self.fleet.store.reading() as session:
            return records.latest_events(
                session, device=device, rollout=rollout, before=before, limit=limit
            )

    def audit(
        self, *, rollout: str = "", device: str = "", limit: int = 50
    ) -> tuple[AuditEntry, ...]:
        """Return the last actions on a rollout or a device, newest first."""
        return self.fleet.audit_log(Wanted(rollout=rollout, device=device), limit)

    def captures(self, model: str) -> tuple[CaptureView, ...]:
        """Return a model's last requests for samples, the newest first."""
        with self.fleet.store.reading() as session:
            return samples.list_captures(session, model, self.fleet.store.now())

    def rollouts(
        self, *, state: str = "", model: str = "", before: int = 0, limit: int = 50
    ) -> tuple[RolloutView, ...]:
        """Return a page of rollouts, the newest first."""
        with self.fleet.store.reading() as session:
            return status.list_rollouts(
                session, state=state, model=model, before=before, limit=limit
            )

    def stopped_releases(self) -> dict[str, str]:
        """Return the releases that were rolled back, or that a gate stopped: reasons by digest."""
        with self.fleet.store.reading() as session:
            return status.list_stopped_releases(session)

    def count_rollouts(self) -> dict[str, int]:
        """Return rollouts by their state."""
        counting = select(RolloutRow.state, func.count()).group_by(RolloutRow.state)
        with self.fleet.store.reading() as session:
            found = dict(session.execute(counting).tuples().all())
        return {state: found.get(state, 0) for state in get_args(RolloutState)}

    def open_rollouts(self) -> tuple[RolloutView, ...]:
        """Return the newest rollouts that are not over."""
        return (
            *self.rollouts(state="RUNNING", limit=MAX_ROLLOUTS),
            *self.rollouts(state="PAUSED", limit=MAX_ROLLOUTS),
        )

    def rollout(self, name: str) -> RolloutView:
        """Return a rollout with its waves and gate results, without its devices.

        Raises:
            FleetError: There is none of that name.
        """
        with self.fleet.store.reading() as session:
            found = execution.find(session, name)
            gates, at = show_gates(session, found)
            head = status.show_head(session, found)
            return self.fleet.with_problem(msgspec.structs.replace(head, gates=gates, gates_at=at))

    def rollout_latency(self, name: str) -> tuple[LatencyView, ...]:
        """Return the latency of a rollout's release on its devices."""
        with self.fleet.store.reading() as session:
            return latency_views.latency_of(session, execution.find(session, name))

    def rollout_assignments(
        self, name: str, *, state: str, wave: int, after: str, limit: int
    ) -> tuple[AssignmentView, ...]:
        """Return a page of a rollout's devices."""
        with self.fleet.store.reading() as session:
            rollout = execution.find(session, name)
            return status.list_assignments(
                session, rollout, state=state, wave=wave, after=after, limit=limit
            )

    def assignments_to_show(self, name: str, limit: int) -> tuple[AssignmentView, ...]:
        """Return some of a rollout's devices: failed devices first, waiting devices last."""
        with self.fleet.store.reading() as session:
            return status.first_assignments(session, execution.find(session, name), limit)

    def latency(self, digest: str, hardware_class: str) -> tuple[LatencyView, ...]:
        """Return the latency of a release on a hardware class."""
        with self.fleet.store.reading() as session:
            return latency_views.latency_of_release(session, digest, hardware_class)

    def latency_over_time(
        self, digest: str, hardware_class: str = ""
    ) -> tuple[int, tuple[LatencySpan, ...]]:
        """Return the length of the spans, seconds, and latencies of a release's inferences by span.

        Empty where there are no two spans to draw a line between.
        """
        now = time.time()
        with self.fleet.store.reading() as session:
            for length_s, reach_s in SPANS:
                found = latency_views.latency_over_time(
                    session,
                    digest,
                    length_s=length_s,
                    since=now - reach_s,
                    hardware_class=hardware_class,
                )
                if len({span.start for span in found}) > 1:
                    return length_s, found
        return 0, ()

    def models(self) -> tuple[ModelSummary, ...]:
        """Return the models that the fleet holds releases of, by name."""
        counting = (
            select(ReleaseRow.name, func.count(), func.max(ReleaseRow.added_at))
            .where(ReleaseRow.deleted_at.is_(None))
            .group_by(ReleaseRow.name)
        )
        with self.fleet.store.reading() as session:
            found = []
            for name, count, newest in session.execute(
                counting.order_by(ReleaseRow.name).limit(MAX_MODELS)
            ):
                row = session.scalars(
                    select(ReleaseRow).where(ReleaseRow.name == name, ReleaseRow.added_at == newest)
                ).first()
                devices = session.scalar(
                    select(func.count())
                    .select_from(DeviceModelRow)
                    .where(DeviceModelRow.name == name, DeviceModelRow.state != "REMOVED")
                )
                if row is not None:
                    found.append(
                        ModelSummary(
                            name=name,
                            releases=count,
                            newest=self.fleet.release_view(row),
                            devices=devices or 0,
                        )
                    )
        return tuple(found)

    def releases(self, model: str = "") -> tuple[ReleaseView, ...]:
        """Return the releases of a model, or of all, the newest first."""
        query = select(ReleaseRow).where(ReleaseRow.deleted_at.is_(None))
        if model:
            query = query.where(ReleaseRow.name == model)
        with self.fleet.store.reading() as session:
            rows = session.scalars(query.order_by(ReleaseRow.added_at.desc()).limit(MAX_RELEASES))
            return tuple(self.fleet.release_view(row) for row in rows)

    def shares(self, model: str) -> tuple[ReleaseShare, ...]:
        """Return the serving releases of a model's devices."""
        with self.fleet.store.reading() as session:
            return overview.share_releases(session, model)

    def release(self, words: str) -> ReleaseDetails:
        """Return a release in full.

        Raises:
            FleetError: There is none of that name.
        """
        with self.fleet.store.reading() as session:
            row = find_release(session, words)
            manifest = self._manifest(row.digest)
            variants = tuple(
                _variant(session, row.bundle, variant) for variant in manifest.variants
            )
            return ReleaseDetails(
                release=self.fleet.release_view(row),
                variants=variants,
                devices=sum(variant.devices for variant in variants),
                latency=latency_views.latency_of_release(session, row.digest),
                has_report=has_report(manifest),
            )

    def report(self, words: str) -> bytes:
        """Return the report of a release's build: HTML that is not to be trusted.

        Raises:
            FleetError: The release does not exist, or has no report.
        """
        with self.fleet.store.reading() as session:
            digest = find_release(session, words).digest
        return read_report(self.fleet.releases.find(digest))

    def preview(self, digest: str, selector: Selector, settings: RolloutSettings) -> RolloutPreview:
        """Return the preview of a rollout of a stored release.

        Raises:
            FleetError: See `edgepack.fleet.rollouts.membership.show_preview`.
        """
        with self.fleet.store.reading() as session:
            row = find_release(session, digest)
            manifest = self._manifest(row.digest)
            return membership.show_preview(session, row.bundle, selector, settings, manifest)

    def _manifest(self, digest: str) -> Manifest:
        return read_manifest(self.fleet.releases.find(digest))


def _variant(session: Session, bundle: BundleRef, variant: Variant) -> VariantView:
    facts = variant.facts
    row, digest = DeviceModelRow, bundle.digest
    is_it = (row.name == bundle.name, row.digest == digest, row.variant == variant.name)
    devices = session.scalar(select(func.count()).select_from(row).where(*is_it)) or 0
    some = select(row.device).where(*is_it).limit(MAX_REPORTS)
    reports = session.scalars(select(DeviceRow).where(DeviceRow.id.in_(some)))
    errors = [
        probe.worst_nrmse
        for reported in map(last_report, reports)
        for model in (reported.models.values() if reported else ())
        if model.active and model.active.bundle.digest == digest
        for probe in model.active.choice.probes
        if probe.variant == variant.name and probe.worst_nrmse is not None
    ]
    return VariantView(
        name=variant.name,
        provider=variant.provider,
        device=variant.device,
        precision=facts.precision,
        size_bytes=sum(entry.size_bytes for entry in facts.files),
        accuracy=facts.accuracy,
        placement=facts.placement,
        degraded=facts.degraded,
        devices=devices,
        looked_at=len(errors),
        golden_error=max(errors, default=None),
    )
