"""Signing keys: a private key in a file, or a key in a token (PKCS #11).

Both are a `SigningKey`; a signer need not distinguish them. A file may also hold the URI of a key
in a token: so a key that a program looks for by its file's name can be in a token too.
"""

from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.bundle.keys import PublicKey, load_private_key
from edgepack.bundle.pkcs11_uri import MAX_LETTERS, is_uri, parse_uri


class SigningKey(Protocol):
    """An elliptic-curve key that signs; keys of `cryptography` fit."""

    def public_key(self) -> PublicKey:
        """Return the public half."""
        ...

    def sign(self, data: bytes, algorithm: ec.EllipticCurveSignatureAlgorithm, /) -> bytes:
        """Sign data with the algorithm of `signature_algorithm`; give the DER signature."""
        ...


def load_signing_key(where: str | Path) -> SigningKey:
    """Open the key that a person named.

    Args:
        where: Path of a PEM file or of a file with a PKCS #11 URI, or that URI itself
            (`pkcs11:token=…;object=…`).

    Raises:
        SignatureError: The key is missing, does not open, or is of another kind.
    """
    uri = str(where) if is_uri(where) else _uri_in(Path(where))
    if not uri:
        return load_private_key(Path(where))
    from edgepack.bundle.pkcs11_keys import open_token_key

    return open_token_key(parse_uri(uri))


def names_token(path: Path) -> bool:
    """Return True if a key's file only says in which token the key is."""
    return bool(_uri_in(path))


def _uri_in(path: Path) -> str:
    """Return the URI that a file holds in place of a key; "" for any other content."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_LETTERS + 2).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""  # What is wrong with it, `load_private_key` says.
    return text if is_uri(text) else ""
