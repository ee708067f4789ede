"""What people can ask of a running fleet about devices and their certificates."""

import msgspec

from edgepack.bundle.keys import public_pem
from edgepack.errors import FleetError
from edgepack.fleet.database import (
    audit,
    devices,
    enrolment,
    inventory,
    unsent,
)
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.devices import Publication
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
from edgepack.fleet.enrolment.authority import Authority, serial_of
from edgepack.fleet.rollouts import membership
from edgepack.fleet.server.parts import Parts


class DeviceMethods(Parts, frozen=True, kw_only=True):
    """What can be asked about devices and their certificates."""

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
