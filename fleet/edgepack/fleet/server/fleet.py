"""What people can ask of a running fleet; the API and nothing else calls this."""

import shutil
import tempfile
from pathlib import Path

import msgspec
from sqlalchemy import select

from edgepack.bundle.feedback import Feedback
from edgepack.bundle.keys import public_pem
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import FleetError
from edgepack.fleet.broker.link import Link
from edgepack.fleet.controller.controller import Controller
from edgepack.fleet.controller.inbox import Inbox
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.database import (
    audit,
    devices,
    enrolment,
    inventory,
    latency_report,
    lease,
    records,
    unsent,
)
from edgepack.fleet.database.audit import Entry, Wanted
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.feedback import gather
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.database.store import Store
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.documents.audit import AuditEntry
from edgepack.fleet.documents.devices import (
    DeviceChange,
    DeviceDetails,
    DeviceFilter,
    DeviceRemoval,
    DeviceView,
    Enrollment,
    EnrollRequest,
    GroupView,
    RemovedDevice,
    RevocationRequest,
    Revocations,
)
from edgepack.fleet.documents.fleet import EventView, FleetInfo
from edgepack.fleet.documents.latency import LatencyQuestion, LatencyReport
from edgepack.fleet.documents.previews import PreviewRequest, RollbackPreview, RolloutPreview
from edgepack.fleet.documents.releases import (
    MetadataBundle,
    PublishedMetadata,
    PublishingView,
    ReleaseView,
    SignedMetadata,
    full_title,
)
from edgepack.fleet.documents.rollouts import (
    AssignmentView,
    RollbackRequest,
    RolloutRequest,
    RolloutView,
)
from edgepack.fleet.enrolment.authority import Authority, serial_of
from edgepack.fleet.releases.find import find_release
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.fleet.releases.listing import (
    check_listed,
    list_row,
    read_target,
    show_publishing,
    take_metadata,
)
from edgepack.fleet.releases.publish import keep_release, read_head, verify_upload
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.fleet.rollouts import execution, membership, status
from edgepack.fleet.rollouts.release_use import delete_release
from edgepack.fleet.rollouts.retry import retry
from edgepack.fleet.rollouts.rollback import rollback, show_rollback

UPLOAD_RESERVE_BYTES = 256 * 1024 * 1024


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A running fleet: its parts, and what can be asked of it.

    Attributes:
        by: Who asks, as the audit log names them; `msgspec.structs.replace` gives the fleet as
            somebody else sees it.
    """

    by: str = "token"
    name: str
    tenant: str
    broker_url: str
    broker_is_tls: bool
    folder: DataFolder
    trust: TrustPolicy
    store: Store
    releases: ReleaseFolder
    repository: ImageRepository
    inbox: Inbox
    link: Link
    depot: Depot
    controller: Controller

    def info(self) -> FleetInfo:
        """The fleet at a glance."""
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
            pace_bytes_per_s=self.depot.pace.bytes_per_s(1),
            dropped=self.inbox.quotas.most_dropped(),
        )

    def is_healthy(self) -> bool:
        """Whether the database answers and the broker is connected."""
        try:
            with self.store.reading() as session:
                session.execute(select(1))
        except FleetError:
            return False
        return self.link.is_connected

    def devices(self, wanted: DeviceFilter, after: str, limit: int) -> tuple[DeviceView, ...]:
        """A page of all devices, or of some.

        Raises:
            FleetError: The expression makes no sense.
        """
        with self.store.reading() as session:
            return inventory.list_devices(session, wanted, after=after, limit=limit)

    def groups(self) -> tuple[GroupView, ...]:
        """All groups."""
        with self.store.reading() as session:
            return inventory.list_groups(session)

    def change_devices(self, change: DeviceChange) -> tuple[DeviceView, ...]:
        """Moves devices and changes their labels; they get what devices that join get.

        Raises:
            FleetError: One is not enrolled, or a group or label cannot be such a name.
        """
        now = self.store.now()
        publications: list[Publication] = []
        with self.store.transaction(self.by) as session:
            for row in devices.find_devices(session, change.devices):
                if change.group:
                    enrolment.move(session, row, change.group, now)
                enrolment.label(session, row, change.labels, now)
                publications += membership.join(session, row, now)
            session.flush()
            views = tuple(inventory.show_device(session, name) for name in change.devices)
            unsent.add(session, publications)
        self.inbox.wake()
        return views

    def remove_devices(self, removal: DeviceRemoval) -> tuple[RemovedDevice, ...]:
        """Takes devices out of the fleet and revokes their certificates.

        Raises:
            FleetError: One is not enrolled.
        """
        names = tuple(dict.fromkeys(removal.devices))
        with self.store.transaction(self.by) as session:
            rows = devices.find_devices(session, names)
            removed = tuple(
                RemovedDevice(device=row.id, certificate=row.certificate) for row in rows
            )
            for row in rows:
                self._revoke(row.certificate)
            unsent.add(session, enrolment.remove(session, rows, self.store.now()))
        self.inbox.wake()
        return removed

    def revocations(self) -> Revocations:
        """The list of revoked certificates."""
        return Authority(self.folder.pki).revocations()

    def revoke(self, request: RevocationRequest) -> Revocations:
        """Revokes a certificate, whatever device it is of.

        Raises:
            FleetError: The fleet's CA did not issue it.
        """
        authority = Authority(self.folder.pki)
        with self.store.transaction(self.by) as session:
            authority.revoke_certificate(request.certificate)
            said = f"certificate {serial_of(request.certificate)}"
            audit.note(session, self.store.now(), Entry(action="certificate.revoke", because=said))
        return authority.revocations()

    def _revoke(self, certificate: str) -> None:
        if certificate:
            Authority(self.folder.pki).revoke(certificate)

    def device(self, device: str) -> DeviceDetails:
        """One device.

        Raises:
            FleetError: No device of that id is enrolled.
        """
        with self.store.reading() as session:
            found = inventory.show_device(session, device)
        return msgspec.structs.replace(found, dropped=self.inbox.quotas.dropped(device))

    def enroll(self, request: EnrollRequest) -> Enrollment:
        """Takes a device in and says what it needs to know.

        Raises:
            FleetError: A name is impossible, the id is enrolled already and shall not be
                replaced, there is no trusted key to hand out, or a certificate is needed and the
                request for it is missing or wrong.
        """
        if not self.trust.keys:
            raise FleetError(
                "this fleet trusts no key, so a device would accept no bundle",
                remedy="edgepack fleet serve --trust release.pub",
            )
        certificate = authority = ""
        now = self.store.now()
        with self.store.transaction(self.by) as session:
            row = enrolment.enroll(
                session,
                device=request.device,
                group=request.group,
                called=request.labels,
                replace=request.replace,
                now=now,
            )
            if self.broker_is_tls:
                ca = Authority(self.folder.pki)
                certificate = ca.sign_client(request.signing_request, request.device)
                authority = ca.pem
            self._revoke(row.certificate)
            row.certificate = serial_of(certificate) if certificate else ""
            if publications := membership.join(session, row, now):
                unsent.add(session, publications)
        if publications:
            self.inbox.wake()
        return Enrollment(
            device=request.device,
            tenant=self.tenant,
            broker=self.broker_url,
            trusted_keys=tuple(public_pem(key).decode() for key in self.trust.keys),
            certificate=certificate,
            authority=authority,
            root=self.repository.state.root.to_bytes().decode(),
        )

    def room_for_upload(self, size_bytes: int) -> Path:
        """A new folder to receive an upload of about that size.

        Raises:
            FleetError: The disk has no room for it, archive and unpacked.
        """
        free = shutil.disk_usage(self.folder.root).free
        if 2 * size_bytes + UPLOAD_RESERVE_BYTES > free:
            raise FleetError(
                f"no room for a bundle of {size_bytes / 1e6:.1f} MB: {free / 1e6:.1f} MB are free",
                found_in=str(self.folder.root),
            )
        return Path(tempfile.mkdtemp(dir=self.folder.incoming))

    def add_release(self, archive: Path) -> ReleaseView:
        """Checks an uploaded archive and keeps it.

        Raises:
            EdgepackError: It is no bundle, or not one that a trusted key signed, or another
                content has its name and version or its release counter.
        """
        bundle = verify_upload(archive, self.trust)
        with self.store.transaction(self.by) as session:
            row = keep_release(session, self.releases, bundle, self.store.now())
        list_row(row, self.releases, self.repository)
        self.inbox.wake()
        return self._release_view(row)

    def withdraw_release(self, words: str) -> ReleaseView:
        """Lists a release no more, so that no device takes it from now on; its files stay.

        Raises:
            FleetError: There is no such release, or its publisher must sign that elsewhere.
        """
        with self.store.transaction(self.by) as session:
            row = find_release(session, words)
            entry = Entry(action="release.withdraw", model=row.name, digest=row.digest)
            audit.note(session, self.store.now(), entry)
            if not self.repository.withdraw(row.bundle):
                raise FleetError(
                    f"the publisher of {full_title(row.bundle)} must sign that",
                    remedy=f"edgepack withdraw {row.name}@{row.version} --key PUBLISHER.key",
                )
        self.inbox.wake()
        return self._release_view(row)

    def publishing(self, words: str) -> PublishingView:
        """What a publisher needs to sign a release, or its end.

        Raises:
            FleetError: There is no such release, or nobody may release its model.
        """
        with self.store.reading() as session:
            row = find_release(session, words)
        return show_publishing(self.repository, row.bundle)

    def take_metadata(self, signed: SignedMetadata) -> PublishedMetadata:
        """Takes in what a publisher signed.

        Raises:
            FleetError: It cannot be the next metadata of that publisher.
        """
        with self.store.transaction(self.by) as session:
            taken = take_metadata(self.repository, signed)
            because = f"{taken.role}, version {taken.version}"
            numbers = {"signatures": taken.signatures, "threshold": taken.threshold}
            entry = Entry(action="release.sign", because=because, numbers=numbers)
            audit.note(session, self.store.now(), entry)
        self.inbox.wake()
        return taken

    def metadata(self) -> MetadataBundle:
        """All metadata that a device may lack."""
        return MetadataBundle(files=self.repository.messages())

    def target(self, digest: str) -> bytes | None:
        """The target of a release, for stock TUF clients."""
        return read_target(self.releases, digest)

    def list_releases(self) -> tuple[ReleaseView, ...]:
        """All releases, the newest first."""
        with self.store.reading() as session:
            query = select(ReleaseRow).where(ReleaseRow.deleted_at.is_(None))
            rows = session.scalars(query.order_by(ReleaseRow.added_at.desc()))
            return tuple(self._release_view(row) for row in rows)

    def remove_release(self, words: str) -> ReleaseView:
        """Deletes a release that nothing points to.

        Raises:
            FleetError: There is no such release, or it is in use.
        """
        with self.store.transaction(self.by) as session:
            release = find_release(session, words)
            delete_release(session, release, self.store.now())
            view = self._release_view(release)
        self.repository.withdraw(view.bundle)
        self.releases.forget(view.bundle.digest)
        return view

    def preview_rollout(self, request: PreviewRequest) -> RolloutPreview:
        """What a rollout would mean.

        Raises:
            EdgepackError: No trusted key signed the bundle, or see
                `edgepack.fleet.rollouts.membership.show_preview`.
        """
        bundle, manifest = read_head(request.head, self.trust)
        with self.store.reading() as session:
            return membership.show_preview(session, bundle, request.selector, request, manifest)

    def start_rollout(self, request: RolloutRequest) -> RolloutView:
        """Starts a rollout.

        Raises:
            FleetError: See `edgepack.fleet.rollouts.membership.start`.
        """
        with self.store.transaction(self.by) as session:
            started = membership.start(session, request, self.store.now())
            check_listed(self.repository, session.get_one(ReleaseRow, started.digest).bundle)
            view = status.show_rollout(session, started)
            unsent.add(session, ())
        self.inbox.wake()
        return view

    def list_rollouts(self) -> tuple[RolloutView, ...]:
        """All rollouts, the newest first."""
        with self.store.reading() as session:
            return status.list_rollouts(session)

    def rollout(self, name: str) -> RolloutView:
        """One rollout, with its devices."""
        with self.store.reading() as session:
            return status.show_rollout(session, execution.find(session, name))

    def rollout_devices(
        self, name: str, state: str, after: str, limit: int
    ) -> tuple[AssignmentView, ...]:
        """A page of a rollout's devices, or of those whose part is in a state."""
        with self.store.reading() as session:
            rollout = execution.find(session, name)
            return status.list_parts(session, rollout, state=state, after=after, limit=limit)

    def pause(self, name: str) -> RolloutView:
        """Stops offering."""
        with self.store.transaction(self.by) as session:
            rollout = execution.find(session, name)
            execution.pause(session, rollout, self.store.now())
            return status.show_rollout(session, rollout)

    def resume(self, name: str) -> RolloutView:
        """Goes on after a pause."""
        with self.store.transaction(self.by) as session:
            rollout = execution.find(session, name)
            execution.resume(session, rollout, self.store.now())
            view = status.show_rollout(session, rollout)
            unsent.add(session, ())
        self.inbox.wake()
        return view

    def approve(self, name: str) -> RolloutView:
        """Lets the next wave begin."""
        with self.store.transaction(self.by) as session:
            rollout = execution.find(session, name)
            execution.approve(session, rollout, self.store.now())
            view = status.show_rollout(session, rollout)
            unsent.add(session, ())
        self.inbox.wake()
        return view

    def retry(self, name: str) -> RolloutView:
        """Offers it once more to those that failed."""
        with self.store.transaction(self.by) as session:
            rollout = execution.find(session, name)
            retry(session, rollout, self.store.now())
            view = status.show_rollout(session, rollout)
            unsent.add(session, ())
        self.inbox.wake()
        return view

    def preview_rollback(self, request: RollbackRequest) -> RollbackPreview:
        """What a rollback would mean.

        Raises:
            FleetError: See `edgepack.fleet.rollouts.rollback.show_rollback`.
        """
        with self.store.reading() as session:
            return show_rollback(session, request)

    def rollback(self, request: RollbackRequest) -> tuple[RolloutView, ...]:
        """Takes a release back.

        Raises:
            FleetError: See `edgepack.fleet.rollouts.rollback.rollback`.
        """
        with self.store.transaction(self.by) as session:
            started, publications = rollback(session, request, self.store.now())
            views = tuple(status.show_rollout(session, rollout) for rollout in started)
            unsent.add(session, publications)
        self.inbox.wake()
        return views

    def abort(self, name: str) -> RolloutView:
        """Ends a rollout."""
        with self.store.transaction(self.by) as session:
            rollout = execution.find(session, name)
            publications = execution.abort(
                session, rollout, because="aborted by a person", now=self.store.now()
            )
            view = status.show_rollout(session, rollout)
            unsent.add(session, publications)
        self.inbox.wake()
        return view

    def events(self, after: int, limit: int) -> tuple[EventView, ...]:
        """Events newer than `after`, oldest first."""
        with self.store.reading() as session:
            return records.events_after(session, after, limit)

    def latency(self, question: LatencyQuestion) -> LatencyReport:
        """Latency of real inferences.

        Raises:
            FleetError: See `edgepack.fleet.database.latency_report.report`.
        """
        with self.store.reading() as session:
            return latency_report.report(session, question, self.store.now())

    def feedback(self, model: str) -> Feedback:
        """What devices measured of a model's variants.

        Raises:
            FleetError: The fleet has no release of that name.
        """
        with self.store.reading() as session:
            return gather(session, model, self.store.now())

    def audit_log(self, wanted: Wanted, limit: int) -> tuple[AuditEntry, ...]:
        """Entries of the audit log, the newest first."""
        with self.store.reading() as session:
            return audit.entries(session, wanted, limit)

    def _release_view(self, row: ReleaseRow) -> ReleaseView:
        return ReleaseView(
            bundle=row.bundle,
            size_bytes=row.size_bytes,
            added_at=row.added_at,
            is_listed=self.repository.is_listed(row.bundle),
        )
