"""Keys in tokens: smart cards, hardware security modules, SoftHSM. The tokens sign with keys that
never leave them.

A session lasts for a single operation: a build takes long, and a token may be unplugged meanwhile.
Only the digest of the signed content goes into the token, by the mechanism CKM_ECDSA, which all
tokens have.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pkcs11
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pkcs11.util.ec import (
    encode_ec_public_key,
    encode_ecdsa_signature,
    encode_named_curve_parameters,
)

from edgepack.bundle.keys import CURVES, PublicKey, curve_name, hash_of
from edgepack.bundle.pkcs11_uri import EXAMPLE, PIN_VARIABLE, KeyUri, find_module, read_pin
from edgepack.errors import SignatureError

_ID_BYTES = 20
_TURN = threading.Lock()
"""A process is logged in to a token once, whichever of its threads it was."""
_CURVE_NAMES = {"P-256": "secp256r1", "P-384": "secp384r1", "P-521": "secp521r1"}


class TokenKey:
    """A private key in a token; see `SigningKey`."""

    def __init__(self, uri: KeyUri, public: PublicKey) -> None:
        """Store the result of `open_token_key`.

        Args:
            uri: Names the key.
            public: The public half.
        """
        self._uri = uri
        self._public = public

    def public_key(self) -> PublicKey:
        """Return the public half, as read from the token at `open_token_key`."""
        return self._public

    def sign(self, data: bytes, algorithm: ec.EllipticCurveSignatureAlgorithm, /) -> bytes:
        """Sign data inside the token.

        Returns:
            The DER signature, which fits the public half.

        Raises:
            SignatureError: The token is gone, refuses, or signs with another key.
        """
        digest = hashes.Hash(hash_of(self._public))
        digest.update(data)
        with _session(self._uri) as session:
            key = _private_key(session, self._uri)
            raw = key.sign(digest.finalize(), mechanism=pkcs11.Mechanism.ECDSA)
        signature = bytes(encode_ecdsa_signature(raw))
        try:
            self._public.verify(signature, data, algorithm)
        except InvalidSignature as error:
            raise SignatureError(
                "the token's public key does not belong to its private key",
                found_in=self._uri.text,
                remedy="give both objects of a pair the same label and id",
            ) from error
        return signature


def open_token_key(uri: KeyUri) -> TokenKey:
    """Open a key, so that errors of token, PIN or key are reported at once.

    Args:
        uri: URI of the key.

    Raises:
        SignatureError: There is no such library, token, PIN or key, or the key is of another kind.
    """
    with _session(uri) as session:
        private = _private_key(session, uri)
        public = _public_key(session, uri, private)
    return TokenKey(uri, public)


def generate_token_key(uri: KeyUri, curve: str) -> TokenKey:
    """Make a key pair in a token; the private key can never be read from the token.

    Args:
        uri: Names the token, and the label of the new key; `id` too, or a random id.
        curve: `P-256`, `P-384` or `P-521`.

    Raises:
        SignatureError: The token has a key of this name already, or cannot make keys.
    """
    if not uri.object:
        raise SignatureError("a new key needs a label", found_in=uri.text, remedy=EXAMPLE)
    with _session(uri, writable=True) as session:
        template = _template(uri) | {pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PRIVATE_KEY}
        if next(iter(session.get_objects(template)), None) is not None:
            raise SignatureError(
                f"the token has a key '{uri.object}' already, and a key is never overwritten",
                found_in=uri.text,
                remedy="choose another label: object=…",
            )
        parameters = session.create_domain_parameters(
            pkcs11.KeyType.EC,
            {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters(_CURVE_NAMES[curve])},
            local=True,
        )
        parameters.generate_keypair(
            store=True,
            label=uri.object,
            id=uri.id or os.urandom(_ID_BYTES),
            private_template={
                pkcs11.Attribute.SENSITIVE: True,
                pkcs11.Attribute.EXTRACTABLE: False,
            },
        )
    return open_token_key(uri)


@contextmanager
def _session(uri: KeyUri, *, writable: bool = False) -> Iterator[pkcs11.Session]:
    """Log in to the token for the block; translate the token's errors for a person."""
    library = _load(find_module(uri))
    with _TURN, _in_words(uri):
        token = library.get_token(
            **{
                name: value
                for name, value in (
                    ("token_label", uri.token),
                    ("token_serial", uri.serial.encode()),
                )
                if value
            }
        )
        with token.open(user_pin=read_pin(uri), rw=writable) as session:
            yield session


@contextmanager
def _in_words(uri: KeyUri) -> Iterator[None]:
    try:
        yield
    except pkcs11.PinLocked as error:
        raise SignatureError(
            "the token is locked: its PIN was wrong too often", found_in=uri.text
        ) from error
    except (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinLenRange) as error:
        raise SignatureError(
            "the PIN does not open the token",
            found_in=uri.pin_source or PIN_VARIABLE,
            remedy="correct it: after a few wrong ones a token locks itself",
        ) from error
    except (pkcs11.NoSuchToken, pkcs11.TokenNotPresent) as error:
        raise SignatureError(
            "there is no such token", found_in=uri.text, remedy="is it plugged in? Labels: p11tool"
        ) from error
    except pkcs11.MultipleTokensReturned as error:
        raise SignatureError(
            "several tokens are there", found_in=uri.text, remedy="name one: token=LABEL"
        ) from error
    except pkcs11.PKCS11Error as error:
        told = str(error) or type(error).__name__
        raise SignatureError(f"the token refused: {told}", found_in=uri.text) from error


def _load(module: str) -> Any:
    try:
        return pkcs11.lib(module)
    except RuntimeError as error:  # what pkcs11 raises, its own errors too
        raise SignatureError(
            f"the token's PKCS #11 library cannot be loaded: {error}", found_in=module
        ) from error


def _template(uri: KeyUri) -> dict[pkcs11.Attribute, object]:
    template: dict[pkcs11.Attribute, object] = {}
    if uri.object:
        template[pkcs11.Attribute.LABEL] = uri.object
    if uri.id:
        template[pkcs11.Attribute.ID] = uri.id
    return template


class _Signs(pkcs11.PrivateKey, pkcs11.SignMixin):
    """Type of a private key that may sign, for the type checker: the library mixes both."""


def _private_key(session: pkcs11.Session, uri: KeyUri) -> _Signs:
    wanted = _template(uri) | {pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PRIVATE_KEY}
    keys = list(session.get_objects(wanted))
    if len(keys) != 1:
        problem = "several keys" if keys else "no private key"
        raise SignatureError(
            f"the token has {problem} of that name",
            found_in=uri.text,
            remedy="tell it by id=%XX…" if keys else f"edgepack keys generate --token '{uri.text}'",
        )
    key = keys[0]
    if not isinstance(key, pkcs11.PrivateKey) or key.key_type != pkcs11.KeyType.EC:
        raise _wrong_kind(uri)
    if not isinstance(key, pkcs11.SignMixin):
        raise SignatureError("the token does not let this key sign", found_in=uri.text)
    return cast(_Signs, key)


def _public_key(session: pkcs11.Session, uri: KeyUri, private: pkcs11.PrivateKey) -> PublicKey:
    wanted = {
        pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PUBLIC_KEY,
        pkcs11.Attribute.ID: private.id,
    }
    found = next(iter(session.get_objects(wanted)), None)
    if not isinstance(found, pkcs11.PublicKey):
        raise SignatureError(
            "the token has no public key with the id of its private key",
            found_in=uri.text,
            remedy="write the public key into the token too",
        )
    key = serialization.load_der_public_key(encode_ec_public_key(found))
    if not isinstance(key, ec.EllipticCurvePublicKey) or curve_name(key) not in CURVES:
        raise _wrong_kind(uri)
    return key


def _wrong_kind(uri: KeyUri) -> SignatureError:
    return SignatureError(
        "the key is of a kind that the OMS signature format does not have",
        found_in=uri.text,
        remedy=f"edgepack keys generate --token … (usable are {', '.join(CURVES)})",
    )
