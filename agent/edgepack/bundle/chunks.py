"""Division of files into chunks along tensors, so that an unchanged tensor keeps its chunks."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO

from edgepack.bundle.manifest import ChunkIndex, FileEntry
from edgepack.bundle.metadata import MAX_CHUNK_BYTES
from edgepack.durable import disk_remedy, is_disk_fault
from edgepack.errors import BundleError

CHUNK_BYTES = 64 * 1024
_DIGEST_BYTES = 32
_READ_BYTES = 1024 * 1024


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; never through a link, never a device or pipe.

    Raises:
        BundleError: The path is not a regular file, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BundleError(
            f"cannot read '{path.name}': {error.strerror}",
            found_in=str(path),
            remedy=disk_remedy(error) if is_disk_fault(error) else None,
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BundleError(f"'{path.name}' is not a regular file", found_in=str(path))
    return os.fdopen(descriptor, "rb")


def raise_disk_fault(error: BundleError) -> None:
    """Raise the disk's own error, where that is why a file could not be opened.

    Raises:
        OSError: The disk is full, read-only or fails: the file need not be damaged.
    """
    if isinstance(error.__cause__, OSError) and is_disk_fault(error.__cause__):
        raise error.__cause__


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Read a file that must not be longer than a limit.

    Raises:
        BundleError: The file is longer, not regular, or cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise BundleError(f"'{path.name}' exceeds {limit_bytes} bytes", found_in=str(path))
    return content


def digest_file(path: Path, checkpoint: Callable[[], None] = lambda: None) -> str:
    """Return SHA-256 of a file's bytes, lower-case hex, read piece by piece.

    Args:
        path: The file.
        checkpoint: Called before each piece; its exception ends the reading.

    Raises:
        BundleError: The path is not a regular file, or cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(_READ_BYTES):
            checkpoint()
            digest.update(piece)
    return digest.hexdigest()


def entry(root: Path, relative: str, boundaries: Sequence[int] = ()) -> FileEntry:
    """Return the manifest's entry of a file.

    Args:
        root: The bundle's folder.
        relative: POSIX path below `root`.
        boundaries: See `index_file`.

    Raises:
        BundleError: The path is not a regular file, or cannot be read.
    """
    path = root / relative
    return FileEntry(
        path=relative,
        size_bytes=path.stat().st_size if path.exists() else 0,
        sha256=digest_file(path),
        chunks=index_file(path, boundaries),
    )


def index_file(path: Path, boundaries: Sequence[int] = ()) -> ChunkIndex:
    """Cut a file into chunks of about 64 KiB and take the digest of each.

    A tensor of 64 KiB or more starts a new chunk; smaller tensors share a chunk. So an unchanged
    tensor gives the same chunks at any place in the file.

    Args:
        path: The file.
        boundaries: Bytes at which tensors start, in any order.

    Returns:
        Chunks of 1 byte to 120 KiB; none for an empty file.

    Raises:
        BundleError: The path is not a regular file, or cannot be read.
    """
    with open_regular(path) as file:
        sizes = tuple(_chunk_sizes(os.fstat(file.fileno()).st_size, boundaries))
        digests = b"".join(hashlib.sha256(file.read(size)).digest() for size in sizes)
    return ChunkIndex(sizes=sizes, sha256=digests)


def chunk_digests(index: ChunkIndex) -> tuple[bytes, ...]:
    """Return the SHA-256 digest (32 bytes) of each chunk, in file order."""
    return tuple(
        index.sha256[start : start + _DIGEST_BYTES]
        for start in range(0, len(index.sha256), _DIGEST_BYTES)
    )


def offsets(index: ChunkIndex) -> tuple[int, ...]:
    """Return the byte offset of each chunk in its file."""
    return tuple(accumulate(index.sizes[:-1], initial=0)) if index.sizes else ()


def fixed_chunks(size_bytes: int) -> tuple[int, ...]:
    """Return the chunk offsets of a file without index (manifest, signature): every 64 KiB."""
    return tuple(range(0, size_bytes, CHUNK_BYTES))


def _chunk_sizes(size_bytes: int, boundaries: Sequence[int]) -> Iterator[int]:
    inner = sorted({at for at in boundaries if 0 < at < size_bytes})
    gathered = 0
    for start, end in pairwise([0, *inner, size_bytes]):
        length = end - start
        if gathered and gathered + length > CHUNK_BYTES:
            yield gathered
            gathered = 0
        if length >= CHUNK_BYTES:
            yield from _cut(length)
        else:
            gathered += length
    if gathered:
        yield gathered


def _cut(length: int) -> Iterator[int]:
    """Cut a long segment; the last chunk takes the rest, so that no tiny chunk is left."""
    while length > MAX_CHUNK_BYTES:
        yield CHUNK_BYTES
        length -= CHUNK_BYTES
    yield length
