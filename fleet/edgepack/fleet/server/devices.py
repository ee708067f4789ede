"""Methods of a running fleet for devices and their certificates."""

import msgspec

from edgepack.agent.enrolment.asking import CertificateRequest, IssuedCertificate
from edgepack.bundle.keys import public_pem
from edgepack.errors import FleetError
from edgepack.fleet.database import (
    audit,
    certificates,
    device_logs,
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
from edgepack.fleet.documents.logs import LogRequest, LogView
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.enrolment.certificates import read_certificate
from edgepack.fleet.identity.issue import (
    NoTokenError,
    give_token,
    is_token,
    issue,
    revoke_all,
    use_token,
)
from edgepack.fleet.rollouts import membership
from edgepack.fleet.server.parts import Parts

DEVICE = "a device"
"""Who acts, in the audit log, where a device asks for its certificate."""


class DeviceMethods(Parts, frozen=True, kw_only=True):
    """Methods for devices and their certificates."""

    def devices(self, wanted: DeviceFilter, after: str, limit: int) -> tuple[DeviceView, ...]:
        """Return a page of all devices, or of some.

        Raises:
            FleetError: The expression makes no sense.
        """
        with self.store.reading() as session:
            return inventory.list_devices(session, wanted, after=after, limit=limit)

    def groups(self) -> tuple[GroupView, ...]:
        """Return all groups."""
        with self.store.reading() as session:
            return inventory.list_groups(session)

    def change_devices(self, change: DeviceChange) -> tuple[DeviceView, ...]:
        """Move devices and change their labels; the devices get the same releases as new devices of
        the group.

        Raises:
            FleetError: A device is not enrolled, or a group or label is invalid.
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
        """Take devices out of the fleet and revoke their certificates.

        Raises:
            FleetError: A device is not enrolled.
        """
        names = tuple(dict.fromkeys(removal.devices))
        with self.store.transaction(self.by) as session:
            rows = devices.find_devices(session, names)
            removed = tuple(
                RemovedDevice(
                    device=row.id,
                    certificate=row.certificate,
                    had_none=certificates.awaits_first(session, row.id),
                )
                for row in rows
            )
            for row in rows:
                revoke_all(session, self._authority, row)
            unsent.add(session, enrolment.remove(session, rows, self.store.now()))
        self.inbox.wake()
        return removed

    def revocations(self) -> Revocations:
        """Return the list of revoked certificates."""
        return Authority(self.folder.pki).revocations()

    def revoke(self, request: RevocationRequest) -> Revocations:
        """Revoke a certificate of any device.

        Raises:
            FleetError: The fleet's CA did not issue the certificate.
        """
        authority = Authority(self.folder.pki)
        with self.store.transaction(self.by) as session:
            authority.revoke_certificate(request.certificate)
            serial = read_certificate(request.certificate).serial
            certificates.forget_one(session, serial)  # Its key signs no report any more.
            said = f"certificate {serial}"
            audit.note(session, self.store.now(), Entry(action="certificate.revoke", because=said))
        return authority.revocations()

    def _authority(self) -> Authority:
        return Authority(self.folder.pki, certificate_days=self.certificate_days)

    def device(self, device: str) -> DeviceDetails:
        """Return a device.

        Raises:
            FleetError: No device of that id is enrolled.
        """
        with self.store.reading() as session:
            found = inventory.show_device(session, device)
        return msgspec.structs.replace(found, dropped=self.inbox.quotas.dropped(device))

    def request_log(self, device: str, request: LogRequest) -> LogView:
        """Ask a device for the last lines of its agent's log.

        Raises:
            FleetError: No device of that id is enrolled.
        """
        now = self.store.now()
        with self.store.transaction(self.by) as session:
            (row,) = devices.find_devices(session, (device,))
            unsent.add(session, (device_logs.begin(session, row, request, now),))
            view = device_logs.show(session, device, now)
        self.inbox.wake()
        return view

    def device_log(self, device: str) -> LogView:
        """Return the log lines of a device, by the last request.

        Raises:
            FleetError: No device of that id is enrolled.
        """
        with self.store.reading() as session:
            devices.find_devices(session, (device,))
            return device_logs.show(session, device, self.store.now())

    def enroll(self, request: EnrollRequest) -> Enrollment:
        """Enrol a device and return its setup.

        Raises:
            FleetError: A name is impossible, the id is enrolled already and shall not be replaced,
                there is no trusted key to hand out, or the request for a certificate is missing or
                wrong.
        """
        if not self.trust.keys:
            raise FleetError(
                "this fleet trusts no key, so a device would accept no bundle",
                remedy="edgepack fleet serve --trust release.pub",
            )
        certificate = token = ""
        expires_at = None
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
            ca = self._authority()
            if request.token_valid_s is None:
                ca.key_id_of(request.signing_request)  # A bad request ends nothing.
            revoke_all(session, self._authority, row)
            if request.token_valid_s is not None:
                token, expires_at = give_token(session, row.id, request.token_valid_s, now)
            else:
                certificate = issue(session, ca, row, request.signing_request, now).pem
            if publications := membership.join(session, row, now):
                unsent.add(session, publications)
        if publications:
            self.inbox.wake()
        return Enrollment(
            device=request.device,
            tenant=self.tenant,
            broker=self.broker_url,
            trusted_keys=tuple(public_pem(key).decode() for key in self.trust.keys),
            sources=self.device_sources,
            certificate=certificate,
            authority=ca.pem,
            root=self.repository.state.root.to_bytes().decode(),
            token=token,
            expires_at=expires_at,
        )

    def issue_certificate(self, request: CertificateRequest, token: str) -> IssuedCertificate:
        """Return a device's first certificate, for the token in its package.

        Raises:
            FleetError: The token is invalid or was used, or the request is invalid.
        """
        now = self.store.now()
        with self.store.reading() as session:
            if not is_token(session, token, now):
                raise NoTokenError
        with self.store.transaction(DEVICE) as session:
            pem = use_token(session, self._authority(), token, request.signing_request, now)
        return IssuedCertificate(certificate=pem)
