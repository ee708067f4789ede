"""Slots: folders of the bundles on the device, named by the bundle's digest.

<state_dir>/slots/<digest>/         the bundle's files, at full size during a fetch
<state_dir>/downloads/<digest>.json the chunks that are present, during a fetch
"""

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path, PurePosixPath

import msgspec

from edgepack.agent.state.metadata_cache import TRUST_FOLDER
from edgepack.agent.state.models import MODELS_FOLDER
from edgepack.agent.state.slot_lock import lock_for_removal
from edgepack.agent.state.state_file import LASTING_FAULT_S, Write, put_aside, read_regular, remove
from edgepack.bundle.chunks import (
    chunk_digests,
    offsets,
    open_regular,
    raise_disk_fault,
    read_bounded,
)
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    FileEntry,
    decode_manifest,
)
from edgepack.durable import flush_folder, is_disk_fault, write_file
from edgepack.errors import BundleError
from edgepack.versions import Format, NewerVersionError, Version

SLOTS_FOLDER = "slots"
LEFT_AFTER_S = 60.0
"""A temporary file of an application that is older is one of a process that was killed."""
DOWNLOADS_FOLDER = "downloads"


def slot_folder(state_dir: Path, digest: str) -> Path:
    """Return the folder of the bundle with that digest."""
    return state_dir / SLOTS_FOLDER / digest


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Stored chunks of a partial slot: bitmaps by file digest, least bit first."""

    held: dict[str, bytes]


NOTE = Format("note of a download", Note, Version(1, 0))


class StoredChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that some slot should hold; every reader checks the digest."""

    path: Path
    offset: int
    size_bytes: int

    def read(self) -> bytes:
        """Return the bytes of the chunk; fewer or none if the file is damaged."""
        try:
            with open_regular(self.path) as file:
                file.seek(self.offset)
                return file.read(self.size_bytes)
        except (OSError, BundleError):
            return b""


class Slots:
    """The slots below a state folder.

    Args:
        state_dir: The agent's state folder; must exist.
        write: Writes small files durably.

    Attributes:
        retired: Slots that no model needs, and that a session held at their removal.
    """

    def __init__(self, state_dir: Path, *, write: Write = write_file) -> None:
        self._state_dir = state_dir
        self._write = write
        self.retired: set[str] = set()
        self._unreadable: dict[str, tuple[float, float]] = {}
        with contextlib.suppress(OSError):  # The disk may be full; each write tries again.
            self._make_folders()

    def _make_folders(self) -> None:
        for name in (SLOTS_FOLDER, DOWNLOADS_FOLDER):
            folder = self._state_dir / name
            if not folder.is_dir() and folder.exists():
                put_aside(folder)
            folder.mkdir(exist_ok=True)

    def folder(self, digest: str) -> Path:
        """Return the slot of a bundle, present or not."""
        return slot_folder(self._state_dir, digest)

    def digests(self) -> frozenset[str]:
        """Return the bundles that have a slot."""
        return frozenset(path.name for path in _inside(self._state_dir / SLOTS_FOLDER))

    def allocated_bytes(self, digest: str) -> int:
        """Return disk that a slot takes."""
        found = 0
        for path in self.folder(digest).rglob("*"):
            with contextlib.suppress(OSError):
                found += path.lstat().st_blocks * 512
        return found

    def free_bytes(self) -> int:
        """Free space for this user on the disk of the slots."""
        found = os.statvfs(self._state_dir)
        return found.f_bavail * found.f_frsize

    def write_file(self, digest: str, path: str, content: bytes) -> None:
        """Put a small file into a slot, which is created if missing.

        Raises:
            OSError: The disk is full.
        """
        self._make_folders()
        folder = self.folder(digest)
        target = folder / path
        if os.path.lexists(folder) and not _is_folder(folder):
            remove(folder)
        if _is_folder(target):
            remove(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._write(target, content)

    def read_file(self, digest: str, path: str) -> bytes | None:
        """Return a small file of a slot; None if missing, or not a regular file.

        Raises:
            OSError: The disk cannot be read now.
        """
        return _read_small(self.folder(digest) / path)

    def read_held(self, digest: str) -> dict[str, bytes]:
        """Return the stored chunks of a partial slot: bitmaps by file digest, least bit first."""
        try:
            content = read_regular(self._held_path(digest))
            return NOTE.decode(content).value.held if content is not None else {}
        except (OSError, ValueError, NewerVersionError):
            return {}  # Then every chunk is looked at, and the note is written anew.

    def write_held(self, digest: str, held: dict[str, bytes]) -> None:
        """Note which chunks are there; the chunks themselves must be on the disk before.

        Raises:
            OSError: The disk is full; the older note still stands.
        """
        self._make_folders()
        path = self._held_path(digest)
        if not path.is_file():
            remove(path)
        self._write(path, NOTE.encode(Note(held=held)))

    def forget_held(self, digest: str) -> None:
        """Remove the note about a partial slot."""
        path = self._held_path(digest)
        if os.path.lexists(path):
            remove(path)
            flush_folder(path.parent)

    def remove(self, digest: str) -> None:
        """Remove a slot; the note goes first, so that the note never lists chunks that are gone.

        A slot that a session holds stays, until `remove_retired`.
        """
        try:
            lock = lock_for_removal(self.folder(digest))
        except OSError as error:
            if is_disk_fault(error):
                raise
            lock = None  # Without a manifest nobody can hold it.
        else:
            if lock is None:
                self.retired.add(digest)
                return
        self.retired.discard(digest)
        self.forget_held(digest)
        with contextlib.suppress(OSError):
            remove(self.folder(digest))
        if lock is not None:
            lock.release()

    def remove_retired(self, kept: Collection[str]) -> None:
        """Remove retired slots that no session holds any longer.

        Args:
            kept: Slots that are needed again.
        """
        self.retired.difference_update(kept)
        for digest in tuple(self.retired):
            self.remove(digest)

    def keep_only(self, digests: Iterable[str]) -> tuple[str, ...]:
        """Remove every other slot, with its note of missing chunks.

        A note under construction has another name until complete, and is left alone.

        Returns:
            Removed entries.
        """
        kept = frozenset(digests)
        removed = tuple(sorted(self.digests() - kept))
        for digest in removed:
            self.remove(digest)
        removed = tuple(digest for digest in removed if digest not in self.retired)
        for note in _inside(self._state_dir / DOWNLOADS_FOLDER):
            if note.stem not in kept and not note.name.startswith("."):
                remove(note)
        return removed

    def remove_temporaries(self) -> None:
        """Remove the temporary files of writers that were killed before their rename.

        Applications write to the spool while the agent starts: only old files go there.
        """
        own = (self._state_dir, *map(self._state_dir.joinpath, (DOWNLOADS_FOLDER, TRUST_FOLDER)))
        for folder in (*own, *_inside(self._state_dir / MODELS_FOLDER)):
            for path in folder.glob(".*.json.*"):
                remove(path)
        spools = (self._state_dir / name for name in ("latency", "latency-disk"))
        for path in chain.from_iterable(spool.glob(".*.json.*") for spool in spools):
            with contextlib.suppress(FileNotFoundError):
                if abs(time.time() - path.lstat().st_mtime) > LEFT_AFTER_S:
                    remove(path)

    def remove_strangers(self, digest: str, known: Iterable[str]) -> None:
        """Remove foreign entries from a slot: other files, and entries that are not regular files.

        A link, pipe, device or folder in a file's place goes, and so does a link in a folder's
        place. Nothing is followed.

        Args:
            digest: The bundle.
            known: POSIX paths of the bundle's files.

        Raises:
            OSError: Something cannot be removed.
        """
        folder = self.folder(digest)
        if not os.path.lexists(folder):
            return
        if not _is_folder(folder):
            remove(folder)
            return
        files = frozenset(known)
        folders = frozenset(str(place) for path in files for place in PurePosixPath(path).parents)
        _prune(folder, "", files, folders)

    def note_unreadable(self, digest: str, now: float) -> bool:
        """Note that the disk failed to read a slot; return True if it fails for a minute already.

        Args:
            digest: The bundle.
            now: Monotonic clock, seconds.
        """
        first, last = self._unreadable.get(digest, (now, now))
        first = now if now - last > LASTING_FAULT_S else first
        self._unreadable[digest] = (first, now)
        return now - first >= LASTING_FAULT_S

    def note_readable(self, digest: str) -> None:
        """Note that all of a slot was read."""
        self._unreadable.pop(digest, None)

    def stored_chunks(self, *, apart_from: str) -> dict[bytes, StoredChunk]:
        """Return the places of stored chunks by SHA-256, for use without a network.

        Args:
            apart_from: Digest of the slot that is being filled.
        """
        found: dict[bytes, StoredChunk] = {}
        for digest in sorted(self.digests() - {apart_from}):
            folder = self.folder(digest)
            for entry in _listed_files(folder):
                path = folder / entry.path
                if not path.is_file():
                    continue
                chunks = entry.chunks
                for sha256, offset, size in zip(
                    chunk_digests(chunks), offsets(chunks), chunks.sizes, strict=True
                ):
                    found.setdefault(sha256, StoredChunk(path=path, offset=offset, size_bytes=size))
        return found

    def _held_path(self, digest: str) -> Path:
        return self._state_dir / DOWNLOADS_FOLDER / f"{digest}.json"


def _listed_files(folder: Path) -> Iterator[FileEntry]:
    with contextlib.suppress(OSError, BundleError):
        yield from decode_manifest(_read_small(folder / MANIFEST_FILE) or b"").files


def _read_small(path: Path) -> bytes | None:
    try:
        return read_bounded(path, MAX_MANIFEST_BYTES)
    except BundleError as error:
        raise_disk_fault(error)
        return None


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _prune(folder: Path, prefix: str, files: frozenset[str], folders: frozenset[str]) -> None:
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        path = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False) and path in folders:
            _prune(folder / entry.name, f"{path}/", files, folders)
        elif path not in files or not entry.is_file(follow_symlinks=False):
            remove(folder / entry.name)
