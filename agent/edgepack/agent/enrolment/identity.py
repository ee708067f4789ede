"""A device's key and certificate: signing requests, and verification of certificates."""

import datetime
from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.bundle.certificates import UNREADABLE
from edgepack.errors import DeviceError

RENEWED_AT = 1 / 3
"""A certificate is renewed when so much of its life is left."""
MAX_PEM = 8192
"""Letters of a certificate or a request; those of a P-256 key have fewer than 1,000."""


def make_key() -> ec.EllipticCurvePrivateKey:
    """Return a new ECDSA P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM (PKCS #8, in the clear: its file is for its owner only)."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def make_signing_request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """Return the PEM of a certificate signing request; the key stays on the device."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def load_key(content: bytes, found_in: str) -> ec.EllipticCurvePrivateKey:
    """Read a device's private key.

    Raises:
        DeviceError: The content is not an elliptic-curve key, or is encrypted.
    """
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError) as error:
        raise DeviceError(f"the device's key cannot be read: {error}", found_in=found_in) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeviceError("the device's key is not an ECDSA key", found_in=found_in)
    return key


def name_of(certificate: x509.Certificate) -> str:
    """Return the common name, the device's id; "" unless there is exactly a single name."""
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def is_issued_by(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    """Return True if any of these authorities signed the certificate; an authority's own
    certificate does not count.
    """
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (*UNREADABLE, TypeError, InvalidSignature):
            continue
        return certificate != authority
    return False


def is_renewal_due(certificate: x509.Certificate, now: float) -> bool:
    """Return True if the last third of a certificate's life has begun, or has passed.

    Args:
        certificate: The device's certificate.
        now: Seconds since the epoch.
    """
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return left_s(certificate, now) < RENEWED_AT * (ends - begins).total_seconds()


def renewed_authority(pem: str, known: bytes) -> bytes | None:
    """Return the trusted authorities (PEM), with a renewed certificate in place of the old.

    1. The certificate has the name and the key of a trusted authority, and is signed by that key:
       the certificate adds no authority, and only lasts longer.
    2. The certificate ends later than the device's copy; otherwise the result is None.

    Args:
        pem: Received certificate.
        known: PEM of the authorities that the device trusts.

    Raises:
        DeviceError: The certificate does not belong to a trusted authority.
    """
    try:
        found = x509.load_pem_x509_certificate(pem[:MAX_PEM].encode())
        trusted = x509.load_pem_x509_certificates(known)
        # 1.
        found.verify_directly_issued_by(found)
    except (*UNREADABLE, TypeError, InvalidSignature) as error:
        raise DeviceError(f"the received authority cannot be read: {error}") from error
    same = [
        one
        for one in trusted
        if (one.subject, one.public_key()) == (found.subject, found.public_key())
    ]
    if not same:
        raise DeviceError("this device does not trust the received authority")
    # 2.
    if any(one.not_valid_after_utc >= found.not_valid_after_utc for one in same):
        return None
    kept = [found, *(one for one in trusted if one not in same)]
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in kept)


def left_s(certificate: x509.Certificate, now: float) -> float:
    """Return seconds until a certificate ends; below 0 after the end."""
    return certificate.not_valid_after_utc.timestamp() - now


def ends_on(certificate: x509.Certificate) -> str:
    """Return the day of a certificate's end, as people write dates."""
    return certificate.not_valid_after_utc.astimezone(datetime.UTC).strftime("%Y-%m-%d")


def judge_certificate(
    pem: str, *, key: ec.EllipticCurvePublicKey, device: str, authority: bytes, now: float
) -> x509.Certificate:
    """Return a received certificate, if the certificate belongs to this device.

    1. An authority that this device knows has issued the certificate.
    2. The certificate is of this device's id and key.
    3. The certificate has not ended. The begin is not checked: a board without a battery starts
       with an old clock.

    Args:
        pem: Received certificate.
        key: The public half of the device's key.
        device: Its id.
        authority: PEM of the trusted authorities' certificates.
        now: Seconds since the epoch.

    Raises:
        DeviceError: The certificate does not belong to this device.
    """
    if len(pem) > MAX_PEM:
        raise DeviceError("the received certificate is too long")
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        authorities = x509.load_pem_x509_certificates(authority)
    except UNREADABLE as error:
        raise DeviceError(f"the received certificate cannot be read: {error}") from error
    # 1.
    if not is_issued_by(certificate, authorities):
        raise DeviceError("the fleet's authority did not issue the received certificate")
    # 2.
    if (name := name_of(certificate)) != device:
        raise DeviceError(f"the certificate that came is of {name[:64]!a}, and this is '{device}'")
    if certificate.public_key() != key:
        raise DeviceError("the certificate that came is of another key")
    # 3.
    if left_s(certificate, now) <= 0:
        raise DeviceError(f"the certificate that came has ended on {ends_on(certificate)}")
    return certificate
