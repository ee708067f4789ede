"""Signing keys: elliptic curves on P-256 (the default), P-384 and P-521, as PEM files.

The OMS signature format allows these three for bare keys; RSA and Ed25519 are excluded.
"""

import hashlib
import os
from pathlib import Path

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.durable import write_file
from edgepack.errors import SignatureError

PASSPHRASE_VARIABLE = "EDGEPACK_KEY_PASSPHRASE"
DEFAULT_CURVE = "P-256"

PublicKey = ec.EllipticCurvePublicKey
PrivateKey = ec.EllipticCurvePrivateKey

_CURVES: dict[str, ec.EllipticCurve] = {
    "P-256": ec.SECP256R1(),
    "P-384": ec.SECP384R1(),
    "P-521": ec.SECP521R1(),
}
CURVES = tuple(_CURVES)

# The pairing of curve and hash is the one of the sigstore protobuf specifications.
_HASHES: dict[str, hashes.HashAlgorithm] = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}
_MAX_KEY_FILE_BYTES = 64 * 1024


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A new key, as two PEM files.

    Attributes:
        private_pem: PKCS #8, encrypted when a passphrase was given.
        public_pem: SubjectPublicKeyInfo.
        id: See `key_id`.
    """

    private_pem: bytes
    public_pem: bytes
    id: str


def generate_key(curve: str = DEFAULT_CURVE, *, passphrase: bytes | None = None) -> KeyPair:
    """Make a new signing key.

    Args:
        curve: `P-256`, `P-384` or `P-521`.
        passphrase: Encrypts the private key; None or empty leaves the key unencrypted.

    Raises:
        ValueError: The curve is unknown.
    """
    if curve not in _CURVES:
        raise ValueError(f"unknown curve {curve!r}, known are {', '.join(CURVES)}")
    key = ec.generate_private_key(_CURVES[curve])
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase)
        if passphrase
        else serialization.NoEncryption()
    )
    private_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    public = key.public_key()
    return KeyPair(private_pem=private_pem, public_pem=public_pem(public), id=key_id(public))


def passphrase() -> bytes | None:
    """Return the passphrase of private keys from `EDGEPACK_KEY_PASSPHRASE`, or None."""
    return os.environ.get(PASSPHRASE_VARIABLE, "").encode() or None


def write_key_pair(pair: KeyPair, prefix: Path) -> tuple[Path, Path]:
    """Write `<prefix>.key` (readable by its owner only) and `<prefix>.pub`.

    Returns:
        The two paths, private first.

    Raises:
        SignatureError: A file exists (a key is never overwritten) or cannot be written.
    """
    private, public = Path(f"{prefix}.key"), Path(f"{prefix}.pub")
    for path in (private, public):
        refuse_existing(path)
    _write(private, pair.private_pem, mode=0o600)
    _write(public, pair.public_pem)
    return private, public


def write_token_key(uri: str, key: PublicKey, prefix: Path) -> None:
    """Write the reference to a key in a token: `<prefix>.key` with its URI, and `<prefix>.pub`.

    Raises:
        SignatureError: A file cannot be written.
    """
    _write(Path(f"{prefix}.key"), f"{uri}\n".encode(), mode=0o600)
    _write(Path(f"{prefix}.pub"), public_pem(key))


def refuse_existing(path: Path) -> None:
    """Reject to write a key where something is.

    Raises:
        SignatureError: Something is.
    """
    if path.exists():
        raise SignatureError(
            f"'{path}' exists and a key is never overwritten",
            found_in=str(path),
            remedy="choose another name with -o",
        )


def load_private_key(path: Path) -> PrivateKey:
    """Read a private key; `EDGEPACK_KEY_PASSPHRASE` opens an encrypted key.

    Raises:
        SignatureError: The file is missing, no private key, of another kind, or encrypted and the
            passphrase is missing or wrong.
    """
    content = _read(path)
    if b"-----BEGIN PUBLIC KEY-----" in content:
        raise SignatureError(
            "the file holds a public key, and a private key is needed",
            found_in=str(path),
            remedy="name the private key, most often the file that ends in .key",
        )
    secret = passphrase()
    is_encrypted = b"ENCRYPTED" in content
    if is_encrypted and secret is None:
        raise SignatureError(
            "the private key is encrypted and there is no passphrase",
            found_in=str(path),
            remedy=f"set {PASSPHRASE_VARIABLE} in the environment",
        )
    try:
        key = serialization.load_pem_private_key(content, secret if is_encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if is_encrypted:
            raise SignatureError(
                "the passphrase does not open the private key",
                found_in=str(path),
                remedy=f"set {PASSPHRASE_VARIABLE} to the one that it was encrypted with",
            ) from error
        raise SignatureError(
            "the file holds no PEM private key",
            found_in=str(path),
            remedy="edgepack keys generate -o release",
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _wrong_kind(path)
    _check_curve(key.public_key(), path)
    return key


def is_open_to_others(path: Path) -> bool:
    """Return True if other users of this machine may read a private key that nothing encrypts."""
    try:
        if not path.stat().st_mode & 0o077:
            return False
        content = path.read_bytes()
    except OSError:
        return False
    return b"PRIVATE KEY-----" in content and b"ENCRYPTED" not in content


def load_public_key(path: Path) -> PublicKey:
    """Read a public key.

    Raises:
        SignatureError: The file is missing, no public key, or of another kind.
    """
    return parse_public_key(_read(path), path)


def parse_public_key(content: bytes, path: Path) -> PublicKey:
    """Return the public key of a PEM text; raise as `load_public_key` does.

    Args:
        content: The text.
        path: Place of the text, for errors.
    """
    if b"PRIVATE KEY-----" in content:
        raise SignatureError(
            "this is a private key, which does not belong where signatures are checked",
            found_in=str(path),
            remedy="name the public key, most often the file that ends in .pub",
        )
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SignatureError(
            "the file holds no PEM public key",
            found_in=str(path),
            remedy="edgepack keys generate -o release",
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise _wrong_kind(path)
    _check_curve(key, path)
    return key


def public_pem(key: PublicKey) -> bytes:
    """Return the PEM text of a public key (SubjectPublicKeyInfo)."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def key_id(key: PublicKey) -> str:
    """Return the key's name in signatures: SHA-256 of the public PEM, lower-case hex."""
    return hashlib.sha256(public_pem(key)).hexdigest()


def curve_name(key: PublicKey) -> str:
    """Return `P-256`, `P-384` or `P-521`."""
    return f"P-{key.curve.key_size}"


def hash_of(key: PublicKey) -> hashes.HashAlgorithm:
    """Return the hash that belongs to the key's curve."""
    return _HASHES[key.curve.name]


def signature_algorithm(key: PublicKey) -> ec.ECDSA:
    """Return ECDSA with the hash that belongs to the key's curve."""
    return ec.ECDSA(hash_of(key))


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    try:
        write_file(path, content, mode=mode)
    except OSError as error:
        raise SignatureError(
            f"cannot write the key: {error.strerror}", found_in=str(path.parent)
        ) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise SignatureError(
            f"cannot read the key: {error.strerror}",
            found_in=str(path),
            remedy="edgepack keys generate -o release",
        ) from error
    if len(content) > _MAX_KEY_FILE_BYTES:
        raise SignatureError(
            "the file is too long for a key",
            found_in=str(path),
            remedy="name a key file (PEM); edgepack keys generate -o release makes a pair",
        )
    return content


def _check_curve(key: PublicKey, path: Path) -> None:
    if key.curve.name not in _HASHES:
        raise _wrong_kind(path)


def _wrong_kind(path: Path) -> SignatureError:
    return SignatureError(
        "the key is of a kind that the OMS signature format does not have",
        found_in=str(path),
        remedy=f"edgepack keys generate --curve {DEFAULT_CURVE} (usable are {', '.join(CURVES)})",
    )
