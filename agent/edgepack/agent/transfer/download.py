"""Fetching a bundle's files chunk by chunk, in any order, from any source, into its slot.

Every chunk is checked against the signed manifest before its write into the file, which has its
full size from the start. The present chunks are noted from time to time, after a flush to the disk,
so a restart continues from the note.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Container, Iterable
from itertools import groupby
from pathlib import Path

import msgspec

from edgepack.agent.state.slots import Slots, StoredChunk
from edgepack.agent.transfer.chunk_status import ChunkOutcome, Content, MissingChunks
from edgepack.agent.transfer.solving import Solved, solve
from edgepack.bitmap import pack_bits, read_bits
from edgepack.bundle.chunks import chunk_digests, offsets
from edgepack.bundle.deltas import DELTA_FOLDER
from edgepack.bundle.manifest import FileEntry
from edgepack.bundle.shared_files import is_executable
from edgepack.durable import flush_folder
from edgepack.halt import NEVER, Halt
from edgepack.wire.coded import CodedChunk

NOTE_EVERY_BYTES = 8 * 1024 * 1024
NOTE_EVERY_S = 5.0
"""The note is written anew when so much came and so long went by: what a power cut costs to fetch
again at most. A disk that is flushed more often is slower than a network."""


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a chunk in a file."""

    file: int
    index: int


class Download:
    """The files of a bundle on their way into its slot.

    Args:
        slots: The slots.
        digest: The bundle.
        files: The files that are wanted.
        linked: Paths of files that may be links to a file of the same content.
    """

    def __init__(
        self,
        slots: Slots,
        digest: str,
        files: Iterable[FileEntry],
        linked: Container[str] = (),
    ) -> None:
        self._slots = slots
        self._digest = digest
        self._linked = linked
        # Files with the same content are fetched once; the others are made at the end.
        by_content = sorted(files, key=lambda entry: entry.sha256)
        groups = [list(group) for _, group in groupby(by_content, key=lambda entry: entry.sha256)]
        self._files = [group[0] for group in groups]
        self._copies = [(group[0], other) for group in groups for other in group[1:]]
        self._by_sha256 = {entry.sha256: i for i, entry in enumerate(self._files)}
        self._digests = [chunk_digests(entry.chunks) for entry in self._files]
        self._offsets = [offsets(entry.chunks) for entry in self._files]
        self._lacking = [set(range(len(digests))) for digests in self._digests]
        self._places: dict[bytes, list[_Place]] = {}
        for file, digests in enumerate(self._digests):
            for index, sha256 in enumerate(digests):
                self._places.setdefault(sha256, []).append(_Place(file=file, index=index))
        self._lacking_bytes = sum(entry.size_bytes for entry in self._files)
        self._deltas: list[int] = []
        self._is_patched = False
        self._descriptors: dict[int, int] = {}
        self._made: set[int] = set()
        self._unread: set[int] = set()
        self._unflushed: set[int] = set()
        self._unnoted_bytes = 0
        self._note_at = time.monotonic() + NOTE_EVERY_S

    @property
    def size_bytes(self) -> int:
        """Length of all wanted files."""
        wanted = (entry for file, entry in enumerate(self._files) if file not in self._deltas)
        return sum(entry.size_bytes for entry in wanted) + sum(
            other.size_bytes for _, other in self._copies
        )

    @property
    def progress(self) -> float:
        """Share of the bytes that are there, 0..1."""
        total = sum(entry.size_bytes for entry in self._files)
        return 1.0 if total == 0 else 1.0 - self._lacking_bytes / total

    @property
    def lacking_bytes(self) -> int:
        """Bytes that are missing."""
        return self._lacking_bytes

    @property
    def has_unread(self) -> bool:
        """True if the disk failed to read chunks that are missing now: they may be there."""
        return any(self._lacking[file] for file in self._unread)

    def allocated_bytes(self) -> int:
        """Return disk that the wanted files take already."""
        found = 0
        for entry in (*self._files, *(other for _, other in self._copies)):
            with contextlib.suppress(OSError):
                found += (self._path(entry).stat()).st_blocks * 512
        return found

    def reserve(self) -> None:
        """Create every file at its full size, with disk space.

        Raises:
            OSError: The disk is full.
        """
        for file in range(len(self._files)):
            self._reserve(file)

    def _reserve(self, file: int) -> None:
        entry = self._files[file]
        path = self._path(entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._descriptors[file] = descriptor
        if is_executable(entry.path):
            os.fchmod(descriptor, 0o755)
        found_bytes = os.fstat(descriptor).st_size
        if not found_bytes:
            self._made.add(file)
        if found_bytes > entry.size_bytes:
            os.ftruncate(descriptor, entry.size_bytes)
        if entry.size_bytes:
            os.posix_fallocate(descriptor, 0, entry.size_bytes)
        os.fsync(descriptor)

    def begin_with(self, deltas: Iterable[FileEntry]) -> None:
        """Download deltas before all other files; the deltas are deleted with the finished
        download.

        Raises:
            OSError: The disk is full.
        """
        for entry in deltas:
            if entry.sha256 in self._by_sha256:
                continue
            file, digests = len(self._files), chunk_digests(entry.chunks)
            self._files.append(entry)
            self._deltas.append(file)
            self._by_sha256[entry.sha256] = file
            self._digests.append(digests)
            self._offsets.append(offsets(entry.chunks))
            self._lacking.append(set(range(len(digests))))
            self._lacking_bytes += entry.size_bytes
            self._reserve(file)
            for index, sha256 in enumerate(digests):
                self._places.setdefault(sha256, []).append(_Place(file=file, index=index))
                if file not in self._made and self._is_there(file, index):
                    self._lacking[file].discard(index)
                    self._lacking_bytes -= entry.chunks.sizes[index]

    @property
    def can_patch(self) -> bool:
        """True if the download's deltas are present and unused."""
        is_lacking = any(self._lacking[file] for file in self._deltas)
        return bool(self._deltas) and not self._is_patched and not is_lacking

    def delta_files(self) -> tuple[Path, ...]:
        """Return the paths of the deltas."""
        return tuple(self._path(self._files[file]) for file in self._deltas)

    def end_deltas(self) -> None:
        """End the use of deltas."""
        self._is_patched = True

    def resume(self, *, check: bool, halt: Halt = NEVER) -> None:
        """Find out which chunks are there already; in a file that was just made there is none.

        Args:
            check: Read every chunk and trust no note; otherwise the note is trusted, and only a
                slot without a note is read.
            halt: Ends the work early.

        Raises:
            HaltedError: The work was halted.
        """
        held = self._slots.read_held(self._digest)
        for file, entry in enumerate(self._files):
            if file in self._made:
                continue
            noted = held.get(entry.sha256)
            if noted is not None and not check:
                self._lacking[file] -= _noted(noted, len(self._digests[file]))
                continue
            lacking = set()
            for index in range(len(self._digests[file])):
                halt.check()
                if not self._is_there(file, index):
                    lacking.add(index)
            self._lacking[file] = lacking
        self._lacking_bytes = sum(
            self._files[file].chunks.sizes[index]
            for file, lacking in enumerate(self._lacking)
            for index in lacking
        )

    def take_stored(self, stored: dict[bytes, StoredChunk], *, halt: Halt = NEVER) -> int:
        """Copy the chunks that the device has elsewhere.

        Returns:
            Bytes that need not be sent.

        Raises:
            OSError: The disk is full.
            HaltedError: The work was halted.
        """
        copied = 0
        for file, lacking in enumerate(self._lacking):
            for index in sorted(lacking):
                halt.check()
                sha256 = self._digests[file][index]
                if index not in lacking or sha256 not in stored:
                    continue
                content = stored[sha256].read()
                if hashlib.sha256(content).digest() == sha256:
                    copied += self._put(sha256, content)
        return copied

    def accept(self, sha256: str, index: int, content: Content) -> ChunkOutcome:
        """Take a chunk that came from outside.

        Args:
            sha256: The file.
            index: Index of the chunk.
            content: Its bytes, trusted for nothing.

        Raises:
            OSError: The disk is full.
        """
        file = self._by_sha256.get(sha256)
        if file is None or index >= len(self._digests[file]):
            return "unwanted"
        if index not in self._lacking[file]:
            return "duplicate"
        digest = self._digests[file][index]
        if hashlib.sha256(content).digest() != digest:
            return "bad"
        self._put(digest, content)
        if self._unnoted_bytes >= NOTE_EVERY_BYTES and time.monotonic() >= self._note_at:
            self.note()
        return "new"

    def accept_coded(self, sha256: str, coded: CodedChunk) -> ChunkOutcome:
        """Recover, verify and store the only missing chunk of a coded message.

        Raises:
            OSError: The disk is full, or a chunk that is there cannot be read.
        """
        file = self._by_sha256.get(sha256)
        if file is None:
            return "unwanted"
        solved = solve(
            coded,
            sizes=self._files[file].chunks.sizes,
            lacking=self._lacking[file],
            read=lambda index: self._read(file, index),
        )
        if isinstance(solved, Solved):
            return self.accept(sha256, solved.index, solved.content)
        return solved

    def chunk_count(self, sha256: str) -> int:
        """Return chunks of a wanted file."""
        return len(self._digests[self._by_sha256[sha256]])

    def wants(self, sha256: bytes) -> bool:
        """Return True if a chunk is missing somewhere."""
        return any(it.index in self._lacking[it.file] for it in self._places.get(sha256, ()))

    def take(self, sha256: bytes, content: bytes) -> int:
        """Verify and store a chunk that was made on this device.

        Returns:
            Bytes that were written.

        Raises:
            OSError: The disk is full.
        """
        is_right = hashlib.sha256(content).digest() == sha256
        return self._put(sha256, content) if is_right else 0

    def lacks(self, sha256: str) -> bool:
        """Return True if chunks of that file are missing."""
        return bool(self._lacking[self._by_sha256[sha256]])

    @property
    def is_complete(self) -> bool:
        """True if nothing is missing."""
        return self._lacking_bytes == 0

    def missing(self) -> tuple[MissingChunks, ...]:
        """Return the chunks to request next, deltas first; empty if complete."""
        first = [file for file in self._deltas if self._lacking[file]]
        return tuple(
            MissingChunks(
                sha256=entry.sha256,
                chunk_count=len(self._digests[file]),
                chunks=tuple(sorted(self._lacking[file])),
                takes_coded=True,
            )
            for file, entry in enumerate(self._files)
            if self._lacking[file] and (file in first or not first)
        )

    def note(self) -> None:
        """Flush the chunks to the disk and then note the chunks.

        Raises:
            OSError: The disk is full; the older note still stands.
        """
        for file in self._unflushed:
            os.fdatasync(self._descriptors[file])
        self._unflushed.clear()
        self._unnoted_bytes = 0
        self._note_at = time.monotonic() + NOTE_EVERY_S
        self._slots.write_held(
            self._digest,
            {
                entry.sha256: pack_bits(self._held(file), len(self._digests[file]))
                for file, entry in enumerate(self._files)
                if file not in self._unread or not self._lacking[file]
            },
        )

    def finish(self) -> None:
        """Link or copy files that are there twice, remove deltas, and close everything.

        Raises:
            OSError: The disk is full.
        """
        self.note()
        for source, target in self._copies:
            path = self._path(target)
            path.parent.mkdir(parents=True, exist_ok=True)
            if target.path in self._linked and _link(self._path(source), path):
                continue
            with self._path(source).open("rb") as original, path.open("wb") as copy:
                shutil.copyfileobj(original, copy, NOTE_EVERY_BYTES)
                copy.flush()
                os.fsync(copy.fileno())
            if is_executable(target.path):
                path.chmod(0o755)
        shutil.rmtree(self._slots.folder(self._digest) / DELTA_FOLDER, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Close the files; present chunks stay."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _held(self, file: int) -> set[int]:
        return set(range(len(self._digests[file]))) - self._lacking[file]

    def _path(self, entry: FileEntry) -> Path:
        return self._slots.folder(self._digest) / entry.path

    def _read(self, file: int, index: int) -> bytes:
        size = self._files[file].chunks.sizes[index]
        return os.pread(self._descriptors[file], size, self._offsets[file][index])

    def _is_there(self, file: int, index: int) -> bool:
        """Return True if a chunk is present; an unreadable chunk is written again."""
        try:
            return self._has_digest(file, index)
        except OSError:
            self._unread.add(file)
            return False

    def _has_digest(self, file: int, index: int) -> bool:
        return hashlib.sha256(self._read(file, index)).digest() == self._digests[file][index]

    def _put(self, sha256: bytes, content: Content) -> int:
        """Write a checked chunk to every place without this chunk."""
        written = 0
        for place in self._places[sha256]:
            if place.index not in self._lacking[place.file]:
                continue
            start = self._offsets[place.file][place.index]
            _write_at(self._descriptors[place.file], content, start)
            self._lacking[place.file].discard(place.index)
            self._unflushed.add(place.file)
            written += len(content)
        self._unnoted_bytes += written
        self._lacking_bytes -= written
        return written


def _link(original: Path, path: Path) -> bool:
    """Give a file a second name in one step; return False where the file system has no links."""
    if path.exists() and path.samefile(original):
        return True
    beside = path.with_name(f".{path.name}.link")
    beside.unlink(missing_ok=True)
    try:
        beside.hardlink_to(original)
    except OSError:
        return False
    beside.replace(path)
    flush_folder(path.parent)
    return True


def _write_at(descriptor: int, content: Content, start: int) -> None:
    view = memoryview(content)
    while view:
        count = os.pwrite(descriptor, view, start)
        view = view[count:]
        start += count


def _noted(bitmap: bytes, count: int) -> set[int]:
    """Return the present chunks by a note; none if the note has another count."""
    return set(read_bits(bitmap, count)) if len(bitmap) == (count + 7) // 8 else set()
