"""Deciding whether a folder is a bundle that a trusted key signed, whole and unchanged."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from edgepack.bundle.chunks import digest_file, read_bounded
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    SIGNATURE_FILE,
    Manifest,
    decode_manifest,
)
from edgepack.bundle.shared_files import is_needed
from edgepack.bundle.signature import SignedList, verify_envelope
from edgepack.bundle.tree import list_files
from edgepack.errors import BundleError, SignatureError

_FETCH_AGAIN = "fetch the bundle again, or build it again"


class VerifiedBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that was checked.

    Attributes:
        manifest: Its manifest.
        signed: The signed list.
        digest: Root digest, lower-case hex: the bundle's identity.
        folder: Folder of the bundle.
    """

    manifest: Manifest
    signed: SignedList
    digest: str
    folder: Path


def verify_folder(
    folder: Path,
    keys: Sequence[PublicKey],
    *,
    complete: bool = True,
    checkpoint: Callable[[], None] = lambda: None,
) -> VerifiedBundle:
    """Check a bundle's folder from the signature down to every byte.

    1. `model.sig` is an OMS signature by a given key.
    2. The manifest is the signed manifest and well-formed, and its files are the signed files: same
       names, same digests.
    3. The files on disk are the signed files: none extra, none missing, no link.
    4. Every file on disk has the signed digest, and the manifest's size.

    That every variant's model file is among its files is part of reading the manifest.

    Args:
        folder: The bundle.
        keys: The trusted keys; the signature of any key suffices.
        complete: False for a device, which fetches only needed files: a variant may then be absent
            as a whole, and so may the reports. Present files are checked all the same.
        checkpoint: Called often; its exception ends the check.

    Raises:
        SignatureError: The signature is invalid, or a file does not match the signature.
        BundleError: The folder or the manifest is malformed.
    """
    # 1
    signed = verify_envelope(_read(folder, SIGNATURE_FILE, MAX_SIGNATURE_BYTES), keys)
    # 2
    manifest = verify_manifest(_read(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES), signed)
    # 3
    present = set(list_files(folder)) - {SIGNATURE_FILE}
    for path in sorted(present - set(signed.files)):
        raise SignatureError(
            f"'{path}' is not in the signed list",
            found_in=str(folder / path),
            remedy="remove it, or sign the bundle again",
        )
    absent = set(signed.files) - present
    if not complete:
        absent -= _may_be_absent(manifest, present)
    for path in sorted(absent):
        raise SignatureError(
            f"'{path}' is signed but missing", found_in=str(folder), remedy=_FETCH_AGAIN
        )
    # 4
    sizes = {entry.path: entry.size_bytes for entry in manifest.files}
    for path in sorted(present):
        size_bytes = (folder / path).stat().st_size
        if size_bytes != sizes.get(path, size_bytes):
            raise SignatureError(
                f"'{path}' has {size_bytes} bytes, {sizes[path]} were signed",
                found_in=str(folder / path),
                remedy=_FETCH_AGAIN,
            )
        _check_digest(
            path, digest_file(folder / path, checkpoint), signed, found_in=str(folder / path)
        )
    return VerifiedBundle(manifest=manifest, signed=signed, digest=signed.digest, folder=folder)


def verify_archive(archive_path: Path, keys: Sequence[PublicKey], folder: Path) -> VerifiedBundle:
    """Unpack an archive into `folder`, but only if a given key signed the archive.

    The signature and the manifest, which come first, are checked before anything is written;
    unpacking then holds every byte against that manifest.

    Args:
        archive_path: The archive.
        keys: The keys that are trusted.
        folder: Where the bundle shall lie; must not exist.

    Raises:
        BundleError: The bundle is not signed so, changed, hostile, or cannot be unpacked.
    """
    # Loaded where archives are: the agent of a device gets files.
    from edgepack.bundle.archive import read_head, unpack

    head = read_head(archive_path)
    signed = verify_envelope(head.signature, keys)
    verify_manifest(head.manifest_bytes, signed)
    manifest = unpack(archive_path, folder, expected=head)
    return VerifiedBundle(manifest=manifest, signed=signed, digest=signed.digest, folder=folder)


def verify_manifest(content: bytes, signed: SignedList) -> Manifest:
    """Read a manifest that must be on a signed list; needs no other file.

    A device has only this content before its decision to fetch.

    Args:
        content: Bytes of `manifest.json`.
        signed: Result of `verify_envelope`.

    Raises:
        SignatureError: The manifest is not the signed manifest, or lists other files or digests.
        BundleError: The manifest is malformed.
    """
    if MANIFEST_FILE not in signed.files:
        raise SignatureError(
            f"'{MANIFEST_FILE}' is not in the signed list, so this is not an edgepack bundle",
            found_in=SIGNATURE_FILE,
        )
    _check_digest(
        MANIFEST_FILE, hashlib.sha256(content).hexdigest(), signed, found_in=MANIFEST_FILE
    )
    manifest = decode_manifest(content)
    listed = {entry.path: entry.sha256 for entry in manifest.files}
    for path in sorted(listed.keys() ^ (signed.files.keys() - {MANIFEST_FILE})):
        one, other = ("manifest", "signature") if path in listed else ("signature", "manifest")
        raise SignatureError(
            f"'{path}' is in the {one} but not in the {other}", found_in=MANIFEST_FILE
        )
    for path, sha256 in listed.items():
        if signed.files[path] != sha256:
            raise SignatureError(
                f"manifest and signature have different digests of '{path}'",
                found_in=MANIFEST_FILE,
            )
    return manifest


def _may_be_absent(manifest: Manifest, present: set[str]) -> set[str]:
    optional = {entry.path for entry in manifest.facts.files if not is_needed(entry.path)}
    for variant in manifest.graphs:
        paths = {entry.path for entry in variant.facts.files}
        if not paths & present:
            optional |= paths
    return optional


def _check_digest(path: str, found: str, signed: SignedList, *, found_in: str) -> None:
    if found != signed.files[path]:
        raise SignatureError(
            f"'{path}' is not what was signed: its SHA-256 is {found[:16]}…, "
            f"{signed.files[path][:16]}… was signed",
            found_in=found_in,
            remedy=_FETCH_AGAIN,
        )


def _read(folder: Path, name: str, limit_bytes: int) -> bytes:
    path = folder / name
    if not folder.is_dir():
        raise BundleError("this is not a bundle: there is no such folder", found_in=str(folder))
    if not path.exists() and not path.is_symlink():
        kind = SignatureError if name == SIGNATURE_FILE else BundleError
        raise kind(
            f"the bundle has no '{name}'",
            found_in=str(folder),
            remedy="edgepack build … --key release.key writes a signed bundle",
        )
    return read_bounded(path, limit_bytes)
