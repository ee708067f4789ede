"""Archives of the agent's environment: a plain tar whose files are compressed one by one.

A file that two releases share has the same bytes in both archives, so a device fetches the changed
files alone. An archive has regular files below `lib/python3.X/site-packages/` and nothing else.
"""

import hashlib
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edgepack.bundle.chunks import open_regular
from edgepack.bundle.tar_entries import check_end, read_entry
from edgepack.errors import BundleError
from edgepack.halt import NEVER, Halt

MAX_FILES = 20_000
MAX_BYTES = 1 << 30
"""Files and bytes of an environment, at most; ours has 3,000 files and 150 MB."""
_PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 4096
"""A file takes whole blocks of the disk."""
_NAME = re.compile(r"[A-Za-z0-9._+@=,()/ -]+", re.ASCII)
"""Names of files: those that `sha256sum --check` reads unchanged."""


def pack_environment(files: dict[str, Path], archive: BinaryIO) -> list[int]:
    """Write an archive; the same files give the same bytes.

    Files of edgepack itself, which change with each release, come last.

    Args:
        files: Path below the environment -> file on this host.
        archive: Is written, from its begin.

    Returns:
        The byte at which each entry begins.

    Raises:
        OSError: A file cannot be read, or the archive cannot be written.
        BundleError: A path is not one of an environment.
    """
    starts = []
    for path in sorted(files, key=lambda one: ("/edgepack" in one, one)):
        _check_path(path, _folder_of(path))
        content = zlib.compress(files[path].read_bytes(), 9)
        header = tarfile.TarInfo(path)
        header.size, header.mode = len(content), 0o644
        starts.append(archive.tell())
        archive.write(header.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict"))
        archive.write(content)
        archive.write(bytes(-len(content) % tarfile.BLOCKSIZE))
    archive.write(bytes(2 * tarfile.BLOCKSIZE))
    archive.write(bytes(-archive.tell() % tarfile.RECORDSIZE))
    return starts


def unpack_environment(archive: Path, folder: Path, halt: Halt = NEVER) -> dict[str, str]:
    """Unpack an archive into a folder.

    1. Each entry is a regular file with a safe path below this Python's folder of packages.
    2. Number and sizes of files have limits, whatever the compressed bytes say.
    3. No path stands twice, and no file is another file's folder.
    4. Nothing follows the end.

    Args:
        archive: The archive.
        folder: New folder; after an error, the caller removes the folder.
        halt: Ends the work early.

    Returns:
        Path -> SHA-256 of the content, hex.

    Raises:
        BundleError: The archive is hostile or damaged.
        OSError: The disk is full or broken.
        HaltedError: Because of `halt`.
    """
    digests: dict[str, str] = {}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages, left, found_in = f"lib/python{version}/site-packages", MAX_BYTES, archive.name
    with open_regular(archive) as source:
        while (entry := read_entry(source, found_in=found_in)) is not None:
            halt.check()
            _check_path(entry.path, packages)  # 1
            if len(digests) >= MAX_FILES:  # 2
                raise BundleError(f"it has more than {MAX_FILES} files", found_in=found_in)
            target, digest = folder / entry.path, hashlib.sha256()
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    pieces = entry.content(source, found_in=found_in)
                    for piece in _inflate(pieces, left, f"{found_in}, {entry.path}"):
                        left -= len(piece)
                        digest.update(piece)
                        file.write(piece)
            except (FileExistsError, NotADirectoryError) as error:  # 3
                raise BundleError(f"'{entry.path}' stands twice", found_in=found_in) from error
            digests[entry.path] = digest.hexdigest()
        check_end(source, found_in=found_in)  # 4
    if not digests:
        raise BundleError("the archive has no files", found_in=found_in)
    return digests


def measure_environment(archive: Path, halt: Halt = NEVER) -> int:
    """Return the bytes that an unpacked archive takes on a disk; the archive is not checked.

    Args:
        archive: The archive.
        halt: Ends the work early.

    Raises:
        BundleError: The archive is damaged.
        OSError: The archive cannot be read.
        HaltedError: Because of `halt`.
    """
    total, left, found_in = 0, MAX_BYTES, archive.name
    with open_regular(archive) as source:
        while (entry := read_entry(source, found_in=found_in)) is not None:
            halt.check()
            pieces = entry.content(source, found_in=found_in)
            size = sum(map(len, _inflate(pieces, left, f"{found_in}, {entry.path}")))
            left -= size
            total += -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
    return total


def _inflate(pieces: Iterator[bytes], limit_bytes: int, found_in: str) -> Iterator[bytes]:
    """Yield the content of a zlib stream, at most 1 MiB at a time."""
    stream = zlib.decompressobj()
    try:
        for piece in pieces:
            waiting = piece
            while waiting or not stream.eof:
                if stream.eof:
                    raise BundleError("something follows the compressed content", found_in=found_in)
                content = stream.decompress(waiting, _PIECE_BYTES)
                waiting = stream.unconsumed_tail or stream.unused_data
                limit_bytes -= len(content)
                if limit_bytes < 0:
                    raise BundleError(f"it exceeds {MAX_BYTES} bytes", found_in=found_in)
                if not content and not waiting:
                    break
                yield content
    except zlib.error as error:
        raise BundleError(f"it cannot be decompressed: {error}", found_in=found_in) from error
    if not stream.eof:
        raise BundleError("the compressed content is truncated", found_in=found_in)


def _folder_of(path: str) -> str:
    return "/".join(path.split("/")[:3])


def _check_path(path: str, packages: str) -> None:
    is_ours = re.fullmatch(r"lib/python3\.\d{1,2}/site-packages", packages)
    if not is_ours or not path.startswith(f"{packages}/") or not _NAME.fullmatch(path):
        raise BundleError(
            f"{path!a:.200} is not a file of an environment of Python {packages[10:14]}",
            found_in="the archive of the agent",
            remedy="build the release for this minor version of Python",
        )
