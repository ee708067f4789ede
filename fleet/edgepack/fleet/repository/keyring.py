"""Signing keys of metadata: the private keys within reach, by key id."""

from collections.abc import Iterable
from pathlib import Path

from securesystemslib.signer import Key, SecretsHandler, Signature, Signer, SSlibKey

from edgepack.bundle.keys import (
    PublicKey,
    generate_key,
    load_public_key,
    passphrase,
    signature_algorithm,
    write_key_pair,
    write_token_key,
)
from edgepack.bundle.pkcs11_uri import EXAMPLE, is_uri
from edgepack.bundle.signing_keys import SigningKey, load_signing_key, names_token
from edgepack.errors import FleetError

KEY_SUFFIX, PUBLIC_SUFFIX = ".key", ".pub"


def tuf_key(key: PublicKey) -> SSlibKey:
    """Return a public key in metadata format."""
    return SSlibKey.from_crypto(key)


class KeySigner(Signer):
    """Signs metadata with a key in a file, or in a token (PKCS #11).

    Args:
        key: The key.
    """

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._public_key = tuf_key(key.public_key())

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: SecretsHandler | None = None
    ) -> "KeySigner":
        """Return the signer of a key that a path or a PKCS #11 URI names.

        Raises:
            SignatureError: The key cannot be opened.
            ValueError: The URI leads to another key.
        """
        signer = cls(load_signing_key(priv_key_uri))
        if signer.public_key != public_key:
            raise ValueError("the private key does not belong to the public key")
        return signer

    @property
    def public_key(self) -> SSlibKey:
        """The public half in metadata format."""
        return self._public_key

    def sign(self, payload: bytes) -> Signature:
        """Sign.

        Raises:
            SignatureError: The token is gone, or refuses.
        """
        signed = self._key.sign(payload, signature_algorithm(self._key.public_key()))
        return Signature(self._public_key.keyid, signed.hex())


class KeyRing:
    """Private keys in folders, `NAME.key` with `NAME.pub` next to each.

    A `NAME.key` may hold the PKCS #11 URI of a key in a token instead of a key.

    A private key is read at its first signature, so that a passphrase is requested only when
    needed.

    Args:
        folders: Folders of keys; a missing folder holds no key.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._signers: dict[str, KeySigner] = {}

    def paths(self) -> dict[str, Path]:
        """Return the private keys that are there, by key id."""
        found = {}
        for folder in self._folders:
            for public in sorted(folder.glob(f"*{PUBLIC_SUFFIX}")):
                private = public.with_suffix(KEY_SUFFIX)
                if private.is_file():
                    found[tuf_key(load_public_key(public)).keyid] = private
        return found

    def files(self) -> dict[str, Path]:
        """Return the keys in files, without the keys in tokens."""
        return {key_id: path for key_id, path in self.paths().items() if not names_token(path)}

    def signers(self, key_ids: Iterable[str]) -> tuple[KeySigner, ...]:
        """Return the keys, among the given keys, that can sign here.

        Raises:
            SignatureError: A key cannot be read.
        """
        wanted = tuple(key_ids)
        unread = [key_id for key_id in wanted if key_id not in self._signers]
        paths = self.paths() if unread else {}
        for key_id in unread:
            if key_id in paths:
                self._signers[key_id] = KeySigner(load_signing_key(paths[key_id]))
        return tuple(self._signers[key_id] for key_id in wanted if key_id in self._signers)


def make_key(folder: Path, name: str, *, is_offline: bool) -> SSlibKey:
    """Make a key; `EDGEPACK_KEY_PASSPHRASE` encrypts an offline key.

    Args:
        folder: Created when missing, for its owner only.
        name: The file's name; a number is added if taken.
        is_offline: Whether a person can enter the passphrase at each use.

    Raises:
        FleetError: The folder cannot be made.
        SignatureError: The key cannot be written.
    """
    prefix = _free_prefix(folder, name)
    pair = generate_key(passphrase=passphrase() if is_offline else None)
    _, public = write_key_pair(pair, prefix)
    return tuf_key(load_public_key(public))


def adopt_key(folder: Path, name: str, uri: str) -> SSlibKey:
    """Adopt a key in a token for a role: write a reference next to the other keys.

    Args:
        folder, name: As for `make_key`.
        uri: Of the key; `edgepack keys generate --token` makes a key.

    Raises:
        FleetError: The URI is invalid, or the folder cannot be made.
        SignatureError: The token, PIN or key does not exist.
    """
    if not is_uri(uri):
        raise FleetError(
            f"{uri[:80]!a} names no key in a token",
            remedy=f"{EXAMPLE}; keys in files are made by themselves",
        )
    public = load_signing_key(uri).public_key()
    write_token_key(uri, public, _free_prefix(folder, name))
    return tuf_key(public)


def _free_prefix(folder: Path, name: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise FleetError(
            f"cannot make the folder of keys: {error.strerror}", found_in=str(folder)
        ) from error
    number, prefix = 1, folder / name
    while prefix.with_name(f"{prefix.name}{KEY_SUFFIX}").exists():
        number += 1
        prefix = folder / f"{name}-{number}"
    return prefix
