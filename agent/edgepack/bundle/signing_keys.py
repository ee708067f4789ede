"""What signs: a private key in a file, or one that never leaves a token (PKCS #11).

Both are a `SigningKey`; nobody who signs has to know which it is.
"""

from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.bundle.keys import PublicKey, load_private_key
from edgepack.bundle.pkcs11_uri import is_uri, parse_uri


class SigningKey(Protocol):
    """An elliptic-curve key that signs; keys of `cryptography` are such."""

    def public_key(self) -> PublicKey:
        """The public half."""
        ...

    def sign(self, data: bytes, algorithm: ec.EllipticCurveSignatureAlgorithm, /) -> bytes:
        """Signs data with the algorithm of `signature_algorithm`; gives the DER signature."""
        ...


def load_signing_key(where: str | Path) -> SigningKey:
    """Opens the key that a person named.

    Args:
        where: Path of a PEM file, or a PKCS #11 URI (`pkcs11:token=…;object=…`).

    Raises:
        SignatureError: There is none, it does not open, or it is of another kind.
    """
    if not is_uri(where):
        return load_private_key(Path(where))
    from edgepack.bundle.pkcs11_keys import open_token_key

    return open_token_key(parse_uri(str(where)))
