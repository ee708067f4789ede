"""Recipients of an encrypted bundle, and the recipient's access to the content key.

The content key is sealed for each recipient's elliptic-curve key by HPKE (RFC 9180, base mode,
HKDF-SHA256, AES-256-GCM). The sealed keys stand in the manifest, under the signature. A fleet may
share a single key, or each device has a key: its certificate's.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.bundle.certificates import UNREADABLE
from edgepack.bundle.encrypted_files import KEY_BYTES
from edgepack.bundle.keys import PrivateKey, PublicKey, curve_name, key_id, load_public_key
from edgepack.bundle.manifest import Encryption, SealedKey
from edgepack.errors import BundleError, DeviceError, SignatureError

_INFO = b"edgepack content key 1"
_CERTIFICATES = (".pem", ".crt")
_MAX_CERTIFICATE_BYTES = 64 * 1024
_SHORT = 12


def load_recipients(path: Path) -> tuple[PublicKey, ...]:
    """Read the recipients of an encryption.

    Args:
        path: See `load_recipient`; or a folder, of which every certificate (`.pem`, `.crt`) counts.

    Raises:
        SignatureError: See `load_recipient`; or the folder has no certificate.
    """
    if not path.is_dir():
        return (load_recipient(path),)
    files = sorted(file for file in path.iterdir() if file.suffix in _CERTIFICATES)
    if not files:
        raise SignatureError(
            "the folder has no certificate",
            found_in=str(path),
            remedy=f"name files, or a folder with files that end in {' or '.join(_CERTIFICATES)}",
        )
    return tuple(map(load_recipient, files))


def load_recipient(path: Path) -> PublicKey:
    """Read a recipient of an encryption.

    Args:
        path: An X.509 certificate, or a public key; PEM.

    Raises:
        SignatureError: The file has neither key nor certificate, the key is not an elliptic-curve
            key on P-256, P-384 or P-521, or the certificate is an authority's.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CERTIFICATE_BYTES)
    except OSError as error:
        raise SignatureError(
            f"cannot read the certificate: {error.strerror}", found_in=str(path)
        ) from error
    if b"-----BEGIN CERTIFICATE-----" not in content:
        return load_public_key(path)
    try:
        certificate = x509.load_pem_x509_certificate(content)
        key, is_authority = certificate.public_key(), _is_authority(certificate)
    except UNREADABLE as error:
        raise SignatureError("the file holds no certificate", found_in=str(path)) from error
    if is_authority:
        raise SignatureError(
            "the certificate is an authority's: no device has its key",
            found_in=str(path),
            remedy="name the certificates of devices, or the public key of the fleet",
        )
    if not isinstance(key, ec.EllipticCurvePublicKey) or curve_name(key) not in _kems():
        raise SignatureError(
            "the certificate's key is not an elliptic-curve key on P-256, P-384 or P-521",
            found_in=str(path),
        )
    return key


def seal_content_key(content_key: bytes, recipients: Iterable[PublicKey]) -> Encryption:
    """Encrypt a content key for each recipient.

    Args:
        content_key: 32 bytes.
        recipients: At least one; duplicates count once.
    """
    by_id = {key_id(key): key for key in recipients}
    return Encryption(
        keys=tuple(
            SealedKey(recipient=name, sealed=_suite(key).encrypt(content_key, key, info=_INFO))
            for name, key in sorted(by_id.items())
        )
    )


def open_content_key(encryption: Encryption, key: PrivateKey) -> bytes:
    """Return the content key, 32 bytes, with the private key of a recipient.

    Raises:
        DeviceError: The bundle is encrypted to other recipients.
        BundleError: The sealed key of this device cannot be opened.
    """
    own = key_id(key.public_key())
    sealed = next((each.sealed for each in encryption.keys if each.recipient == own), None)
    if sealed is None:
        count = len(encryption.keys)
        raise DeviceError(
            f"the bundle is encrypted to others: this device's key {own[:_SHORT]} is not among its "
            f"{count} recipient{'s' if count != 1 else ''}",
            remedy="edgepack build … --encrypt-to CERTIFICATE of this device",
        )
    try:
        content_key = bytes(_suite(key.public_key()).decrypt(sealed, key, info=_INFO))
    except (InvalidTag, ValueError) as error:
        raise BundleError("the sealed key of this device does not open") from error
    if len(content_key) != KEY_BYTES:
        raise BundleError("the sealed key of this device is not a content key")
    return content_key


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _suite(key: PublicKey) -> Any:
    from cryptography.hazmat.primitives import hpke

    kem = _kems()[curve_name(key)]
    return hpke.Suite(kem, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)


def _kems() -> dict[str, Any]:
    try:
        from cryptography.hazmat.primitives.hpke import KEM

        return {"P-256": KEM.P256, "P-384": KEM.P384, "P-521": KEM.P521}
    except (ImportError, AttributeError) as error:
        raise DeviceError(
            "encrypted bundles need a newer release of the package cryptography",
            remedy="pip install --upgrade cryptography",
        ) from error
