"""Issue and revocation of certificates of devices.

A certificate's key is made once and stays: a renewed certificate has the same key, so an
eavesdropper gains nothing from the certificate. A device that shall have another key enrols again.
"""

import logging
import secrets
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import audit, certificates
from edgepack.fleet.database.access import digest_of
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.schema import CertificateRow, DeviceRow, EnrolmentTokenRow
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.enrolment.certificates import is_due, read_certificate
from edgepack.wire.reports import Renewal

log = logging.getLogger(__name__)

MAX_TOKEN_S = 30 * 24 * 3600.0
MAX_TOKEN = 200


class NoTokenError(FleetError):
    """Error of a request without an enrolment token."""

    def __init__(self) -> None:
        super().__init__(
            "this is not a token to enrol with, or not any more",
            remedy="edgepack fleet enroll ID --replace makes another package",
        )


class Issued(NamedTuple):
    """A certificate (PEM), and whether the certificate was signed just now."""

    pem: str
    is_new: bool


def issue(
    session: Session, authority: Authority, row: DeviceRow, request: str, now: float
) -> Issued:
    """Return a certificate for the key of a signing request: the current certificate, unless a
    renewal is due.

    Args:
        session: The transaction.
        authority: Signs.
        row: The device.
        request: PEM of the signing request.
        now: Seconds since the epoch.

    Raises:
        FleetError: The request is invalid, or its key is not P-256.
    """
    key_id = authority.key_id_of(request)
    for known in certificates.of_device(session, row.id):
        if known.key_id == key_id and not is_due(known.pem, now):
            return Issued(known.pem, is_new=False)
    pem = authority.sign_client(request, row.id)
    _keep(session, row.id, pem, now)
    row.certificate = read_certificate(pem).serial
    return Issued(pem, is_new=True)


def give_token(session: Session, device: str, valid_s: float, now: float) -> tuple[str, float]:
    """Return a new token for a device, and its expiry; an earlier token of the device ends.

    Raises:
        FleetError: The time makes no sense.
    """
    if not 0 < valid_s <= MAX_TOKEN_S:
        raise FleetError(
            f"a token to enrol with is good for up to {MAX_TOKEN_S / 3600:.0f} hours",
            remedy="--valid 24",
        )
    secret, expires_at = secrets.token_urlsafe(32), now + valid_s
    row = EnrolmentTokenRow(hash=digest_of(secret), device=device, expires_at=expires_at)
    certificates.keep_token(session, row, now)
    return secret, expires_at


def is_token(session: Session, token: str, now: float) -> bool:
    """Return True if the token is valid for enrolment; called before any write."""
    return len(token) <= MAX_TOKEN and (
        certificates.find_token(session, digest_of(token), now) is not None
    )


def use_token(session: Session, authority: Authority, token: str, request: str, now: float) -> str:
    """Return a device's first certificate (PEM), for a token.

    1. The token is valid, and its device is enrolled.
    2. The token was not used for another key: for the same key, a lost answer is sent again.

    Args:
        session: The transaction.
        authority: Signs.
        token: The device's token.
        request: PEM of its signing request.
        now: Seconds since the epoch.

    Raises:
        FleetError: The token is invalid or was used, or the request is invalid.
    """
    # 1.
    row = certificates.find_token(session, digest_of(token), now)
    device = session.get(DeviceRow, row.device) if row is not None else None
    if row is None or device is None:
        raise NoTokenError
    # 2.
    key_id = authority.key_id_of(request)
    if row.key_id not in ("", key_id):
        log.warning("device=%s refused because=its token was used for another key", device.id)
        raise FleetError(
            "this token was used already, for another key",
            found_in=f"device {device.id}",
            remedy=f"if that was not you, somebody else is {device.id} now: edgepack fleet enroll "
            f"{device.id} --replace ends that",
        )
    row.key_id = key_id
    pem, is_new = issue(session, authority, device, request, now)
    if is_new:
        because = f"by its token, until {read_certificate(pem).ends_on}"
        entry = Entry(action="certificate.issue", device=device.id, because=because)
        audit.note(session, now, entry)
    return pem


def renew(session: Session, authority: Authority, device: str, asked: Renewal, now: float) -> str:
    """Return the next certificate (PEM) of a device; the same certificate for a repeated request.

    The old certificate stays valid until its expiry: both have the same key.

    Args:
        session: The transaction.
        authority: Signs.
        device: Id of the device, from its topic.
        asked: Its certificate, and a request of the same key.
        now: Seconds since the epoch.

    Raises:
        FleetError: The certificate is not that device's, is revoked, has ended or is not due, or
            the request is of another key.
    """
    row = session.get(DeviceRow, device)
    if row is None:
        raise FleetError(f"device {device} is not enrolled")
    authority.check_renewal(asked, device, now)
    _keep(session, device, asked.certificate, now)  # So that it ends when the device is removed.
    session.flush()
    pem, is_new = issue(session, authority, row, asked.signing_request, now)
    if is_new:
        before, after = read_certificate(asked.certificate), read_certificate(pem)
        because = f"from {before.ends_on} to {after.ends_on}"
        audit.note(session, now, Entry(action="certificate.renew", device=device, because=because))
    return pem


def revoke_all(session: Session, open_authority: Callable[[], Authority], row: DeviceRow) -> None:
    """Revoke a device's certificates and delete its enrolment token.

    Args:
        session: The transaction.
        open_authority: Opens the authority with the list of revoked certificates; not called for a
            device without certificates.
        row: The device.
    """
    serials = {known.serial for known in certificates.of_device(session, row.id)}
    if serials := {*serials, row.certificate} - {""}:
        authority = open_authority()
        for serial in sorted(serials):
            authority.revoke(serial)
    certificates.forget(session, row.id)
    row.certificate = ""


def _keep(session: Session, device: str, pem: str, now: float) -> None:
    found = read_certificate(pem)
    row = CertificateRow(
        serial=found.serial,
        device=device,
        key_id=found.key_id,
        expires_at=found.expires_at,
        pem=pem,
    )
    certificates.keep(session, row, now)
