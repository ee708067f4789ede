"""Keys that sign metadata: the private ones that can be reached, by key id."""

from collections.abc import Iterable
from pathlib import Path

from securesystemslib.signer import CryptoSigner, SSlibKey

from edgepack.bundle.keys import (
    PrivateKey,
    PublicKey,
    generate_key,
    load_private_key,
    load_public_key,
    passphrase,
    write_key_pair,
)
from edgepack.errors import FleetError

KEY_SUFFIX, PUBLIC_SUFFIX = ".key", ".pub"


def tuf_key(key: PublicKey) -> SSlibKey:
    """A public key as metadata names it."""
    return SSlibKey.from_crypto(key)


def signer_of(key: PrivateKey) -> CryptoSigner:
    """What signs metadata with a private key."""
    return CryptoSigner(key, tuf_key(key.public_key()))


class KeyRing:
    """Private keys in folders, `NAME.key` with `NAME.pub` beside each.

    A private key is read when something is to be signed with it, so that one that needs a
    passphrase is only asked for when it is needed.

    Args:
        folders: Where keys lie; one that is missing holds none.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._signers: dict[str, CryptoSigner] = {}

    def paths(self) -> dict[str, Path]:
        """The private keys that are there, by key id."""
        found = {}
        for folder in self._folders:
            for public in sorted(folder.glob(f"*{PUBLIC_SUFFIX}")):
                private = public.with_suffix(KEY_SUFFIX)
                if private.is_file():
                    found[tuf_key(load_public_key(public)).keyid] = private
        return found

    def signers(self, key_ids: Iterable[str]) -> tuple[CryptoSigner, ...]:
        """Those of some keys that can sign here.

        Raises:
            SignatureError: A key cannot be read.
        """
        wanted = tuple(key_ids)
        unread = [key_id for key_id in wanted if key_id not in self._signers]
        paths = self.paths() if unread else {}
        for key_id in unread:
            if key_id in paths:
                self._signers[key_id] = signer_of(load_private_key(paths[key_id]))
        return tuple(self._signers[key_id] for key_id in wanted if key_id in self._signers)


def make_key(folder: Path, name: str, *, is_offline: bool) -> SSlibKey:
    """Makes a key; `EDGEPACK_KEY_PASSPHRASE` encrypts one that is kept offline.

    Args:
        folder: Made when it is missing, for its owner only.
        name: The file's; a number is added where it is taken.
        is_offline: Whether a person is there to say the passphrase when it is used.

    Raises:
        FleetError: The folder cannot be made.
        SignatureError: The key cannot be written.
    """
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
    pair = generate_key(passphrase=passphrase() if is_offline else None)
    _, public = write_key_pair(pair, prefix)
    return tuf_key(load_public_key(public))
