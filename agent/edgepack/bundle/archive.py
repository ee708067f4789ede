"""The single-file form of a bundle, `.edgepack`: a plain POSIX tar with exactly one byte string.

The manifest comes first and the signature second, so that a reader knows the content and its length
before the first write. The archive has only regular files, with fixed times, owners and modes;
every file below `hooks/` is executable, nothing else is. In a pipeline, a file with the content of
an earlier one is a hard link to that file: weights that stages share are stored once.

Reading does not check the signature: the manifest states the required files, and
`edgepack.bundle.verify` decides whether the manifest is trusted.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import msgspec

from edgepack.bundle.chunks import open_regular
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.links import find_links
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    SIGNATURE_FILE,
    FileEntry,
    Manifest,
    decode_manifest,
)
from edgepack.bundle.paths import sort_key
from edgepack.bundle.shared_files import is_executable
from edgepack.bundle.tar_entries import TarEntry, check_end, read_entry
from edgepack.bundle.tree import list_files
from edgepack.durable import flush_folder, replacing
from edgepack.errors import BundleError

_COPY_BYTES = 1024 * 1024


class ArchiveHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first two files of an archive, unverified.

    Attributes:
        manifest_bytes: Bytes of `manifest.json`.
        manifest: The same, read.
        signature: Bytes of `model.sig`.
    """

    manifest_bytes: bytes
    manifest: Manifest
    signature: bytes


def pack(folder: Path, archive_path: Path) -> None:
    """Write a signed bundle's folder as a file; the same folder gives the same bytes.

    Args:
        folder: The bundle, with its signature.
        archive_path: The archive; an existing file is replaced in a single step.

    Raises:
        BundleError: Files and manifest do not agree, or the archive cannot be written.
    """
    paths = list_files(folder)
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        if name not in paths:
            raise BundleError(f"the bundle has no '{name}'", found_in=str(folder))
    manifest = decode_manifest((folder / MANIFEST_FILE).read_bytes())
    listed = {entry.path: entry.size_bytes for entry in manifest.files}
    for path in paths[:]:
        if path not in listed and path not in (MANIFEST_FILE, SIGNATURE_FILE):
            raise BundleError(f"'{path}' is not in the manifest", found_in=str(folder / path))
    order = _order(listed)
    links = find_links(manifest)
    try:
        with replacing(archive_path) as target:
            for path in order:
                _append(target, folder, path, listed.get(path), links.get(path, ""))
            target.write(bytes(2 * tarfile.BLOCKSIZE))
            target.write(bytes(-target.tell() % tarfile.RECORDSIZE))
    except OSError as error:
        raise BundleError(
            f"cannot write the archive: {error.strerror}", found_in=str(archive_path)
        ) from error


def unpack(
    archive_path: Path,
    folder: Path,
    *,
    expected: ArchiveHead | None = None,
    archive: BinaryIO | None = None,
) -> Manifest:
    """Turn an archive into a folder: all files or nothing.

    1. The manifest is read first, then the signature; both are bounded.
    2. Every further entry is a regular file of the manifest, at its size, and stands once; or a
       link to the earlier file of the same content.
    3. Every byte fits the manifest's digests, and no file of the manifest is missing.
    4. Nothing follows the end.

    Everything is written next to `folder` and takes its name at the end.

    Args:
        archive_path: The archive.
        folder: Where the bundle shall lie; must not exist.
        expected: The head that was verified, which the archive must still have.
        archive: The opened archive, if this process may not open the file; it stays open.

    Returns:
        The manifest, which no signature vouches for unless `expected` was verified.

    Raises:
        BundleError: The archive is hostile, damaged, or no archive; or `folder` exists or cannot be
            written.
    """
    if os.path.lexists(folder):
        raise BundleError(
            f"'{folder}' exists already", found_in=str(folder), remedy="choose another with -o"
        )
    opened = open_regular(archive_path) if archive is None else nullcontext(archive)
    with opened as source:
        try:
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            try:
                temporary.chmod(0o755)
                manifest = _unpack_into(source, temporary, expected, found_in=archive_path.name)
                temporary.rename(folder)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            flush_folder(folder.parent)
        except OSError as error:
            raise BundleError(
                f"cannot unpack: {error.strerror}",
                found_in=str(folder.parent),
                remedy="name a folder in an existing, writable folder with free space",
            ) from error
    return manifest


def read_head(archive_path: Path) -> ArchiveHead:
    """Read the manifest and the signature of an archive, and nothing else.

    Raises:
        BundleError: The two files are not the first entries, or are malformed.
    """
    with open_regular(archive_path) as source:
        return _read_head(source, archive_path.name)


def read_files(archive_path: Path, names: Collection[str], limit_bytes: int) -> dict[str, bytes]:
    """Read single files of an archive and skip all others; verify nothing.

    Args:
        archive_path: The archive.
        names: Paths of files; missing files are left out.
        limit_bytes: Maximum length of each file.

    Raises:
        BundleError: The archive is malformed up to the last of these files, or a file is too long.
    """
    found: dict[str, bytes] = {}
    found_in = archive_path.name
    with open_regular(archive_path) as source:
        links = find_links(_read_head(source, found_in).manifest)
        source.seek(0)
        while len(found) < len(names):
            entry = read_entry(source, links, found_in=found_in)
            if entry is None:
                break
            if entry.path not in names or entry.path in links:
                source.seek(entry.size_bytes + -entry.size_bytes % tarfile.BLOCKSIZE, os.SEEK_CUR)
                continue
            if entry.size_bytes > limit_bytes:
                raise BundleError(
                    f"'{entry.path}' has {entry.size_bytes} bytes, at most {limit_bytes} are read",
                    found_in=found_in,
                )
            found[entry.path] = b"".join(entry.content(source, found_in=found_in))
    return found


def content_starts(manifest: Manifest, manifest_bytes: int, signature_bytes: int) -> dict[str, int]:
    """Return the byte offset of each file's content in an archive written by `pack`.

    Args:
        manifest: Of the bundle.
        manifest_bytes, signature_bytes: Lengths of the two files that no manifest lists.
    """
    sizes = {entry.path: entry.size_bytes for entry in manifest.files}
    own = {MANIFEST_FILE: manifest_bytes, SIGNATURE_FILE: signature_bytes}
    links = find_links(manifest)
    starts: dict[str, int] = {}
    at = 0
    for path in _order(sizes):
        if path in links:
            starts[path] = starts[links[path]]
            at += tarfile.BLOCKSIZE
            continue
        size_bytes = own[path] if path in own else sizes[path]
        starts[path] = at + tarfile.BLOCKSIZE
        at = starts[path] + size_bytes + -size_bytes % tarfile.BLOCKSIZE
    return starts


def _order(listed: Collection[str]) -> list[str]:
    return [MANIFEST_FILE, SIGNATURE_FILE, *sorted(listed, key=sort_key)]


def _append(target: BinaryIO, folder: Path, path: str, size_bytes: int | None, linked: str) -> None:
    with open_regular(folder / path) as source:
        found_bytes = os.fstat(source.fileno()).st_size
        if size_bytes is not None and found_bytes != size_bytes:
            raise BundleError(
                f"'{path}' has {found_bytes} bytes, the manifest says {size_bytes}",
                found_in=str(folder / path),
            )
        header = tarfile.TarInfo(path)
        header.size = 0 if linked else found_bytes
        if linked:
            header.type, header.linkname = tarfile.LNKTYPE, linked
        header.mode = 0o755 if is_executable(path) else 0o644
        try:
            target.write(header.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict"))
        except ValueError as error:
            raise BundleError(
                f"'{path}' does not fit into an archive: {error}", found_in=str(folder / path)
            ) from error
        if linked:
            return
        shutil.copyfileobj(source, target, _COPY_BYTES)
        target.write(bytes(-found_bytes % tarfile.BLOCKSIZE))


def _unpack_into(
    source: BinaryIO, folder: Path, expected: ArchiveHead | None, *, found_in: str
) -> Manifest:
    # 1
    head = _read_head(source, found_in)
    if expected is not None and head != expected:
        raise BundleError("the archive changed while it was read", found_in=found_in)
    _write(folder / MANIFEST_FILE, [head.manifest_bytes])
    _write(folder / SIGNATURE_FILE, [head.signature])
    # 2
    awaited = {entry.path: entry for entry in head.manifest.files}
    missing = dict(awaited)
    links = find_links(head.manifest)
    while (found := read_entry(source, links, found_in=found_in)) is not None:
        if found.path in links and found.path in missing and links[found.path] not in missing:
            missing.pop(found.path)
            _link(folder / links[found.path], folder / found.path)
        elif found.path in missing:
            _extract(source, found, missing.pop(found.path), folder, found_in=found_in)
        else:
            is_second = found.path in awaited or found.path in (MANIFEST_FILE, SIGNATURE_FILE)
            raise BundleError(
                f"'{found.path}' "
                + ("is twice in the archive" if is_second else "is not in the manifest"),
                found_in=found_in,
            )
    # 3
    for path in sorted(missing):
        raise BundleError(f"the archive lacks '{path}'", found_in=found_in)
    # 4
    check_end(source, found_in=found_in)
    return head.manifest


def _link(original: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.hardlink_to(original)
    except OSError:  # A file system without links.
        shutil.copy(original, path)


def _extract(
    source: BinaryIO, found: TarEntry, entry: FileEntry, folder: Path, *, found_in: str
) -> None:
    if found.size_bytes != entry.size_bytes:
        raise BundleError(
            f"'{found.path}' has {found.size_bytes} bytes, the manifest says {entry.size_bytes}",
            found_in=found_in,
        )
    path = folder / found.path
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for piece in found.content(source, found_in=found_in):
            digest.update(piece)
            yield piece

    _write(path, pieces(), mode=0o755 if is_executable(found.path) else 0o644)
    # 3
    if digest.hexdigest() != entry.sha256:
        raise BundleError(
            f"'{found.path}' is damaged: its digest is not the one in the manifest",
            found_in=found_in,
            remedy="fetch the bundle again",
        )


def _read_head(source: BinaryIO, found_in: str) -> ArchiveHead:
    contents: list[bytes] = []
    for name, limit_bytes in (
        (MANIFEST_FILE, MAX_MANIFEST_BYTES),
        (SIGNATURE_FILE, MAX_SIGNATURE_BYTES),
    ):
        entry = read_entry(source, found_in=found_in)
        if entry is None or entry.path != name:
            place = "second" if contents else "first"
            raise BundleError(f"the {place} file of the archive is not '{name}'", found_in=found_in)
        if entry.size_bytes > limit_bytes:
            raise BundleError(
                f"'{name}' has {entry.size_bytes} bytes, at most {limit_bytes} are read",
                found_in=found_in,
            )
        contents.append(b"".join(entry.content(source, found_in=found_in)))
    return ArchiveHead(
        manifest_bytes=contents[0], manifest=decode_manifest(contents[0]), signature=contents[1]
    )


def _write(path: Path, pieces: Iterator[bytes] | list[bytes], *, mode: int = 0o644) -> None:
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(mode)
