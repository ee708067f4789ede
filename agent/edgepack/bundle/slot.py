"""Completeness of a slot: every file that a variant needs is there, is a regular file, and is
unchanged.

A pointer may only name a complete slot. So every writer of a pointer, reader of a slot and scrubber
uses these checks. Nothing is followed: a link, pipe, device or folder in a file's place is damage.
A disk that cannot be read now (EIO) is not damage: its `OSError` is raised unchanged.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from edgepack.bundle.chunks import digest_file, raise_disk_fault, read_bounded
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.generation import is_asset
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    SIGNATURE_FILE,
    FileEntry,
    Manifest,
    decode_manifest,
)
from edgepack.bundle.shared_files import is_needed
from edgepack.bundle.signature import root_digest, signed_digest
from edgepack.errors import BundleError

_FETCH_AGAIN = "fetch the bundle again: edgepack-agent install BUNDLE, or wait for the agent"
_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_presence(folder: Path, digest: str, variant: str) -> Manifest:
    """Check that every file is there, is a regular file and has its size.

    Only the manifest is read, so this is cheap enough to run every few seconds.

    Args:
        folder: The slot.
        digest: Root digest of the bundle, from a trusted place.
        variant: The variant that serves.

    Returns:
        The manifest.

    Raises:
        BundleError: The slot is incomplete; `problem` names the file.
        OSError: The disk cannot be read now.
    """
    manifest = _read_manifest(folder, digest)
    _check_entries(folder, _files_of_slot(folder, manifest, variant))
    _check_signature(folder, digest)
    return manifest


def verify_variant(
    folder: Path,
    digest: str,
    variant: str,
    *,
    checkpoint: Callable[[], None] = lambda: None,
) -> Manifest:
    """Check presence, type and digest of the files that a process needs to serve a variant.

    Args:
        folder: The slot.
        digest: Root digest of the bundle, from a trusted place.
        variant: The variant.
        checkpoint: Called often; its exception ends the check.

    Returns:
        The manifest.

    Raises:
        BundleError: The slot lacks something, or a file changed; `problem` names the file.
        OSError: The disk cannot be read now.
    """
    manifest = _read_manifest(folder, digest)
    files = _files_to_serve(folder, manifest, variant)
    _check_entries(folder, files)
    _check_digests(folder, files, checkpoint)
    return manifest


def verify_slot(
    folder: Path,
    digest: str,
    variant: str,
    *,
    checkpoint: Callable[[], None] = lambda: None,
) -> Manifest:
    """Check presence, type and digest of all that a slot must hold for a variant.

    The checks are the checks of `verify_variant`, plus the signature, the hooks, and every other
    stored file: another fetched variant is present as a whole or not at all.

    Args:
        folder: The slot.
        digest: Root digest of the bundle, from a trusted place.
        variant: The variant that serves.
        checkpoint: Called often; its exception ends the check.

    Returns:
        The manifest.

    Raises:
        BundleError: The slot is incomplete, or a file changed; `problem` names the file.
        OSError: The disk cannot be read now.
    """
    manifest = check_presence(folder, digest, variant)
    _check_digests(folder, _files_of_slot(folder, manifest, variant), checkpoint)
    return manifest


def _files_to_serve(folder: Path, manifest: Manifest, variant: str) -> tuple[FileEntry, ...]:
    try:
        own = manifest.variant(variant).facts.files
    except KeyError as error:
        raise BundleError(f"the bundle has no variant '{variant}'", found_in=str(folder)) from error
    shared = manifest.facts.files
    return (*own, *(file for file in shared if file.path == GOLDEN_FILE or is_asset(file.path)))


def _files_of_slot(folder: Path, manifest: Manifest, variant: str) -> tuple[FileEntry, ...]:
    files = {entry.path: entry for entry in _files_to_serve(folder, manifest, variant)}
    for other in manifest.graphs:
        if any(os.path.lexists(folder / entry.path) for entry in other.facts.files):
            files |= {entry.path: entry for entry in other.facts.files}
    for entry in manifest.facts.files:
        if is_needed(entry.path) or os.path.lexists(folder / entry.path):
            files[entry.path] = entry
    return tuple(files.values())


def _read_manifest(folder: Path, digest: str) -> Manifest:
    content = _read_small(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES)
    manifest = decode_manifest(content)
    listed = {entry.path: entry.sha256 for entry in manifest.files}
    if root_digest(listed | {MANIFEST_FILE: hashlib.sha256(content).hexdigest()}) != digest:
        raise BundleError(
            f"'{MANIFEST_FILE}' is not that of the bundle {digest[:12]}",
            found_in=str(folder),
            remedy=_FETCH_AGAIN,
        )
    return manifest


def _check_signature(folder: Path, digest: str) -> None:
    """Check that the signature belongs to the bundle.

    A trusted key verified the signature before the slot was used. The key may have been replaced
    since, and the bundle serves on. So only the signed content is compared.
    """
    content = _read_small(folder, SIGNATURE_FILE, MAX_SIGNATURE_BYTES)
    if signed_digest(content) != digest:
        raise BundleError(
            f"'{SIGNATURE_FILE}' is not that of the bundle {digest[:12]}",
            found_in=str(folder),
            remedy=_FETCH_AGAIN,
        )


def _check_entries(folder: Path, files: Iterable[FileEntry]) -> None:
    for entry in files:
        size_bytes = _size_of_regular(folder, entry.path)
        if size_bytes != entry.size_bytes:
            raise BundleError(
                f"'{entry.path}' has {size_bytes} bytes, {entry.size_bytes} were installed",
                found_in=str(folder),
                remedy=_FETCH_AGAIN,
            )


def _check_digests(
    folder: Path, files: Iterable[FileEntry], checkpoint: Callable[[], None]
) -> None:
    for entry in files:
        try:
            found = digest_file(folder / entry.path, checkpoint)
        except BundleError as error:
            raise_disk_fault(error)
            raise
        if found != entry.sha256:
            raise BundleError(
                f"'{entry.path}' is not what was installed: its bytes have changed",
                found_in=str(folder),
                remedy=_FETCH_AGAIN,
            )


def _read_small(folder: Path, path: str, limit_bytes: int) -> bytes:
    _size_of_regular(folder, path)
    try:
        return read_bounded(folder / path, limit_bytes)
    except BundleError as error:
        raise_disk_fault(error)
        raise


def _size_of_regular(folder: Path, path: str) -> int:
    """Return a file's size; each folder on the way must be a folder, and no link."""
    parts = path.split("/")
    places = ["", *("/".join(parts[:depth]) for depth in range(1, len(parts)))]
    for place in places:
        found = _lstat(folder, place)
        if not stat.S_ISDIR(found.st_mode):
            raise _odd(folder, place, found, "a folder")
    found = _lstat(folder, path)
    if not stat.S_ISREG(found.st_mode):
        raise _odd(folder, path, found, "a file")
    return found.st_size


def _lstat(folder: Path, path: str) -> os.stat_result:
    try:
        return (folder / path).lstat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BundleError(
            f"'{path}' is missing" if path else "the slot is missing",
            found_in=str(folder),
            remedy=_FETCH_AGAIN,
        ) from error


def _odd(folder: Path, path: str, found: os.stat_result, wanted: str) -> BundleError:
    kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "something else")
    return BundleError(
        f"'{path or folder.name}' is {kind}, and must be {wanted}",
        found_in=str(folder),
        remedy=_FETCH_AGAIN,
    )
