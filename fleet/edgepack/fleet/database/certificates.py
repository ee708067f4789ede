"""Certificates of devices, and digests of the enrolment tokens for the first certificates."""

from collections.abc import Collection
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import CertificateRow, EnrolmentTokenRow

REMEMBERED = 20_000
"""Certificates of which the key was read."""


def keep(session: Session, row: CertificateRow, now: float) -> None:
    """Store an issued certificate; delete the device's expired certificates.

    Args:
        session: The transaction.
        row: The certificate.
        now: Seconds since the epoch.
    """
    session.execute(
        delete(CertificateRow).where(
            CertificateRow.device == row.device, CertificateRow.expires_at <= now
        )
    )
    session.merge(row)


def of_device(session: Session, device: str) -> tuple[CertificateRow, ...]:
    """Return a device's certificates, that which ends last first."""
    query = select(CertificateRow).where(CertificateRow.device == device)
    return tuple(session.scalars(query.order_by(CertificateRow.expires_at.desc())))


def ending_before(session: Session, moment: float) -> tuple[tuple[str, float], ...]:
    """Return the devices whose newest certificate expires before a moment, with the expiry."""
    newest = func.max(CertificateRow.expires_at)
    query = select(CertificateRow.device, newest).group_by(CertificateRow.device)
    found = session.execute(query.having(newest < moment).order_by(newest)).tuples()
    return tuple(found)


def public_keys(
    session: Session, devices: Collection[str], now: float
) -> dict[str, tuple[ec.EllipticCurvePublicKey, ...]]:
    """Return the keys of certificates that have not expired, by device.

    Revoked certificates are deleted, and successive certificates share a key.
    """
    if not devices:
        return {}
    query = select(CertificateRow.device, CertificateRow.key_id, CertificateRow.pem).where(
        CertificateRow.device.in_(devices), CertificateRow.expires_at > now
    )
    found: dict[str, dict[str, ec.EllipticCurvePublicKey]] = {}
    for device, key_id, pem in session.execute(query):
        found.setdefault(device, {})[key_id] = _key_of(pem)
    return {device: tuple(keys.values()) for device, keys in found.items()}


@lru_cache(REMEMBERED)
def _key_of(pem: str) -> ec.EllipticCurvePublicKey:
    key = x509.load_pem_x509_certificate(pem.encode()).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("a certificate of a device is of an elliptic curve key")
    return key


def awaits_first(session: Session, device: str) -> bool:
    """Return True if a device has a token that is still unused."""
    query = select(EnrolmentTokenRow).where(EnrolmentTokenRow.device == device)
    token = session.scalars(query).one_or_none()
    return token is not None and not token.key_id


def forget_one(session: Session, serial: str) -> None:
    """Forget a certificate that was revoked."""
    session.execute(delete(CertificateRow).where(CertificateRow.serial == serial))


def forget(session: Session, device: str) -> None:
    """Forget a device's certificates and tokens."""
    for table in (CertificateRow, EnrolmentTokenRow):
        session.execute(delete(table).where(table.device == device))


def keep_token(session: Session, row: EnrolmentTokenRow, now: float) -> None:
    """Store a device's only token; delete expired tokens."""
    session.execute(
        delete(EnrolmentTokenRow).where(
            (EnrolmentTokenRow.device == row.device) | (EnrolmentTokenRow.expires_at <= now)
        )
    )
    session.add(row)


def find_token(session: Session, token_hash: str, now: float) -> EnrolmentTokenRow | None:
    """Return the token with that digest, unless expired."""
    row = session.get(EnrolmentTokenRow, token_hash)
    return row if row is not None and row.expires_at > now else None
