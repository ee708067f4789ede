"""Facts of an issued certificate that the fleet stores."""

import hashlib
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent.enrolment.identity import ends_on, is_renewal_due


class CertificateFacts(NamedTuple):
    """Facts of a certificate.

    Attributes:
        serial: Its number, hex.
        key_id: SHA-256 of its public key (SubjectPublicKeyInfo, DER), hex.
        expires_at: Expiry, seconds since the epoch.
        ends_on: The same as a day.
    """

    serial: str
    key_id: str
    expires_at: float
    ends_on: str


def read_certificate(pem: str) -> CertificateFacts:
    """Return the facts of a verified certificate."""
    certificate = x509.load_pem_x509_certificate(pem.encode())
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("no certificate of a device")
    return CertificateFacts(
        serial=f"{certificate.serial_number:x}",
        key_id=key_id_of(key),
        expires_at=certificate.not_valid_after_utc.timestamp(),
        ends_on=ends_on(certificate),
    )


def is_due(pem: str, now: float) -> bool:
    """Return True if a certificate should be renewed."""
    return is_renewal_due(x509.load_pem_x509_certificate(pem.encode()), now)


def key_id_of(key: ec.EllipticCurvePublicKey) -> str:
    """Name a key; see `CertificateFacts`."""
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()
