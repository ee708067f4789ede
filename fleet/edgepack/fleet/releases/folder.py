"""The releases that the fleet holds: bundles on disk, checked on arrival, on read and in between.

A release with a damaged file is set aside as a whole: the release is no longer sent, and counts as
missing until the same content is fetched or published again, or can be read again.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec

from edgepack.bundle.chunks import digest_file, fixed_chunks, read_bounded
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    SIGNATURE_FILE,
    Manifest,
    decode_manifest,
)
from edgepack.bundle.signature import root_digest
from edgepack.durable import flush_folder
from edgepack.errors import BundleError, FleetError
from edgepack.fleet.documents.audit import Action

log = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DAMAGED = "damaged-"
"""What the folder of a release that was set aside begins with."""
_SHA256_BYTES = 32
MAX_UNREPORTED = 100
_LOST = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO)
"""Errors for which it is the file that is damaged, and not the machine that is busy or full."""


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """File of a release, with its chunks.

    Attributes:
        path: Path of the file.
        sha256: Its digest, which names its topics.
        bounds: Where each chunk starts and, last, the file's size; bytes.
        digests: SHA-256 of each chunk, concatenated; b"" leaves the chunks unchecked.
        release: Root digest of the release.
    """

    path: Path
    sha256: str
    bounds: tuple[int, ...]
    digests: bytes = b""
    release: str = ""

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return len(self.bounds) - 1

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self.bounds[-1]


class ReleaseAwayError(FleetError):
    """The files of a release are not here yet."""


class ReleaseDamagedError(FleetError):
    """A file of a release differs from the published file.

    Attributes:
        release: Root digest of the release.
    """

    def __init__(self, problem: str, *, release: str, found_in: str) -> None:
        super().__init__(problem, found_in=found_in)
        self.release = release


class ReleaseFolder:
    """Folder of bundles: `<root>/<digest>/`, each a complete verified bundle.

    Args:
        root: Created when missing. Several controllers may share this folder.
        incoming: Folder of unchecked bundles; used by this controller only, and emptied.

    Attributes:
        on_missing: Called with the digest of a requested, missing release, on any thread.
        signature_of: Returns the SHA-256 of a release's published signature; "" if unknown.
        problems: Why releases cannot be sent now, by digest, for people.
        damage: Problems of the releases that were set aside, by digest, as text.
        damaged_count: How often damage was found.
        unreported: Events that are not in the audit log yet: digest, action, and what happened.
    """

    def __init__(self, root: Path, incoming: Path) -> None:
        self.root, self.incoming = root, incoming
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        self.on_missing: Callable[[str], None] = lambda _: None
        self.signature_of: Callable[[str], str] = lambda _: ""
        self.problems: dict[str, str] = {}
        self.damage: dict[str, str] = {}
        self.damaged_count = 0
        self.unreported: deque[tuple[str, Action, str]] = deque(maxlen=MAX_UNREPORTED)
        self._immovable: set[str] = set()
        self._blobs: dict[str, dict[str, Blob]] = {}
        self._turn = threading.Lock()

    def has(self, digest: str) -> bool:
        """Return True if the files of a release are here."""
        is_one = _DIGEST.fullmatch(digest) is not None and digest not in self._immovable
        return is_one and (self.root / digest).is_dir()

    def list_here(self) -> tuple[str, ...]:
        """Return the digests of the releases with local files."""
        return tuple(path.name for path in self.root.iterdir() if self.has(path.name))

    def list_damaged(self) -> tuple[str, ...]:
        """Return the digests of the releases that were set aside and are still missing."""
        aside = (path.name.removeprefix(_DAMAGED) for path in self.root.glob(f"{_DAMAGED}*"))
        return tuple({*self._immovable, *(digest for digest in aside if not self.has(digest))})

    def set_aside(self, damage: ReleaseDamagedError) -> None:
        """Set a damaged release aside, so that its files are no longer sent."""
        digest = damage.release
        place, aside = self.root / digest, self.root / f"{_DAMAGED}{digest}"
        with self._turn:
            self._blobs.pop(digest, None)
            if place.exists() or not aside.exists():  # Nobody else was faster.
                self.damaged_count += 1
                self._note(digest, "release.damaged", f"set aside: {damage.problem}")
                self.damage[digest] = f"the controller's files are damaged: {damage.problem}"
                self.problems[digest] = self.damage[digest]
                try:
                    shutil.rmtree(aside, ignore_errors=True)
                    place.rename(aside)
                except FileNotFoundError:
                    aside.mkdir(exist_ok=True)
                except OSError:
                    self._immovable.add(digest)
        self.on_missing(digest)

    def check(self, digest: str, checkpoint: Callable[[], None] = lambda: None) -> None:
        """Read every byte of a release, and set the release aside if a file is damaged.

        Args:
            digest: Of the release.
            checkpoint: Called before each piece; an exception ends the reading.
        """
        try:
            _check_files(self.root / digest, digest, self.signature_of(digest), checkpoint)
        except ReleaseDamagedError as damage:
            self.set_aside(damage)

    def restore(self, digest: str, checkpoint: Callable[[], None] = lambda: None) -> None:
        """Send a release again that was set aside, if every byte is right now.

        A disk that failed for a moment damages no file.

        Args:
            digest: Of the release.
            checkpoint: Called before each piece; an exception ends the reading.

        Raises:
            BundleError: The files cannot be read now.
        """
        place, aside = self.root / digest, self.root / f"{_DAMAGED}{digest}"
        folder = place if digest in self._immovable else aside
        try:
            _check_files(folder, digest, self.signature_of(digest), checkpoint)
        except ReleaseDamagedError:
            return
        with self._turn:
            if not self.has(digest):
                if folder == aside:
                    aside.rename(place)
                    flush_folder(self.root)
                self._immovable.discard(digest)
                self.problems.pop(digest, None)
                self.damage.pop(digest, None)
                self._note(digest, "release.restored", "restored: each file is as published")

    def _note(self, digest: str, action: Action, said: str) -> None:
        self.unreported.append((digest, action, said))
        level = logging.ERROR if action == "release.damaged" else logging.WARNING
        log.log(level, "bundle=%s %s", digest, said)

    def find(self, digest: str) -> Path:
        """Return the folder of a release.

        Raises:
            ReleaseAwayError: The files are missing here; the fetcher is notified.
        """
        if not self.has(digest):
            self.on_missing(digest)
            raise ReleaseAwayError(f"the files of release {digest[:12]!a} are not here")
        return self.root / digest

    def place(self, bundle: Path, digest: str) -> Path:
        """Move a checked bundle to its place, in a single step; keep an existing bundle."""
        place = self.root / digest
        if digest in self._immovable:
            shutil.rmtree(place)
            self._immovable.discard(digest)
        if not place.is_dir():
            bundle.rename(place)
            flush_folder(self.root)
        shutil.rmtree(self.root / f"{_DAMAGED}{digest}", ignore_errors=True)
        self.problems.pop(digest, None)
        self.damage.pop(digest, None)
        return place

    def blobs(self, digest: str) -> dict[str, Blob]:
        """Return the files of a release by digest.

        Raises:
            ReleaseAwayError: The files are missing here; the fetcher is notified.
        """
        try:
            with self._turn:
                folder = self.find(digest)
                if digest not in self._blobs:
                    self._blobs[digest] = _read_blobs(folder, digest, self.signature_of(digest))
                return self._blobs[digest]
        except ReleaseDamagedError as damage:
            self.set_aside(damage)
            raise ReleaseAwayError(
                f"the files of release {digest[:12]!a} are damaged: {damage.problem}"
            ) from damage

    def forget(self, digest: str) -> None:
        """Remove the files of a release that was deleted."""
        with self._turn:
            self._blobs.pop(digest, None)
            shutil.rmtree(self.root / digest, ignore_errors=True)
            shutil.rmtree(self.root / f"{_DAMAGED}{digest}", ignore_errors=True)
            self.problems.pop(digest, None)
            self.damage.pop(digest, None)


def _read_blobs(folder: Path, digest: str, signature_sha256: str) -> dict[str, Blob]:
    manifest = read_own_manifest(folder, digest)
    blobs = {}
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        content = _read_small(folder / name, digest)
        sha256, size = hashlib.sha256(content).hexdigest(), len(content)
        if name == SIGNATURE_FILE and signature_sha256 not in ("", sha256):
            raise _damaged(digest, folder / name)
        bounds = (*fixed_chunks(size), size)
        pieces = (content[start:end] for start, end in pairwise(bounds))
        digests = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
        blobs[sha256] = Blob(
            path=folder / name, sha256=sha256, bounds=bounds, digests=digests, release=digest
        )
    for entry in manifest.files:
        blobs[entry.sha256] = Blob(
            path=folder / entry.path,
            sha256=entry.sha256,
            bounds=tuple(accumulate(entry.chunks.sizes, initial=0)),
            digests=entry.chunks.sha256,
            release=digest,
        )
    return blobs


def _check_files(
    folder: Path, digest: str, signature_sha256: str, checkpoint: Callable[[], None]
) -> None:
    """Compare each file with its digest.

    Raises:
        ReleaseDamagedError: A file differs, or is missing.
    """
    wanted = {entry.path: entry.sha256 for entry in read_own_manifest(folder, digest).files}
    if signature_sha256:
        wanted[SIGNATURE_FILE] = signature_sha256
    for path, sha256 in wanted.items():
        try:
            is_good = digest_file(folder / path, checkpoint) == sha256
        except BundleError as error:
            if not _is_lost(error.__cause__):
                raise
            raise _damaged(digest, folder / path, error.__cause__) from error
        if not is_good:
            raise _damaged(digest, folder / path)


def read_own_manifest(folder: Path, digest: str) -> Manifest:
    """Return the manifest that a release's root digest covers.

    Raises:
        ReleaseDamagedError: The manifest differs, or is missing.
    """
    path = folder / MANIFEST_FILE
    content = _read_small(path, digest)
    try:
        manifest = decode_manifest(content)
    except BundleError as error:
        raise _damaged(digest, path) from error
    files = {entry.path: entry.sha256 for entry in manifest.files}
    if root_digest(files | {MANIFEST_FILE: hashlib.sha256(content).hexdigest()}) != digest:
        raise _damaged(digest, path)
    return manifest


def _read_small(path: Path, digest: str) -> bytes:
    try:
        return read_bounded(path, MAX_MANIFEST_BYTES)
    except BundleError as error:
        if not _is_lost(error.__cause__):
            raise
        raise _damaged(digest, path, error.__cause__) from error


def _is_lost(error: BaseException | None) -> bool:
    return not isinstance(error, OSError) or error.errno in _LOST


def _damaged(digest: str, path: Path, error: BaseException | None = None) -> ReleaseDamagedError:
    is_unread = isinstance(error, OSError) and error.errno == errno.EIO
    what = "cannot be read: the disk fails" if is_unread else "is not what was published"
    return ReleaseDamagedError(f"{path.name} {what}", release=digest, found_in=str(path))


def read_chunks(blob: Blob, indices: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield index and bytes of some chunks of a file, in the order asked for.

    Raises:
        ReleaseDamagedError: A chunk does not match its digest, or the file is lost.
    """
    try:
        with blob.path.open("rb", buffering=0) as file:
            for index in indices:
                start, end = blob.bounds[index : index + 2]
                content = os.pread(file.fileno(), end - start, start)
                wanted = blob.digests[index * _SHA256_BYTES : (index + 1) * _SHA256_BYTES]
                if wanted and hashlib.sha256(content).digest() != wanted:
                    raise _damaged(blob.release, blob.path)
                yield index, content
    except OSError as error:
        if error.errno not in _LOST:
            raise
        raise _damaged(blob.release, blob.path, error) from error
