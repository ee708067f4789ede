"""The releases that the fleet holds: bundles on disk, checked once, and their chunks."""

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from edgepack.bundle.chunks import digest_file, fixed_chunks
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE, decode_manifest
from edgepack.durable import flush_folder
from edgepack.errors import FleetError

log = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a release and where it is cut.

    Attributes:
        path: Where it lies.
        sha256: Its digest, which names its topics.
        bounds: Where each chunk starts and, last, the file's size; bytes.
    """

    path: Path
    sha256: str
    bounds: tuple[int, ...]

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return len(self.bounds) - 1

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self.bounds[-1]


class ReleaseAwayError(FleetError):
    """The files of a release are not here; they may come."""


class ReleaseFolder:
    """Where the bundles lie: `<root>/<digest>/`, each a whole verified bundle.

    Args:
        root: Made when it is missing. Several controllers may share it.
        incoming: Where bundles lie until they are checked; no other controller's, and emptied.

    Attributes:
        on_missing: Told the digest of what was asked for and is not here, on any thread.
    """

    def __init__(self, root: Path, incoming: Path) -> None:
        self.root, self.incoming = root, incoming
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        self.on_missing: Callable[[str], None] = lambda _: None
        self._blobs: dict[str, dict[str, Blob]] = {}
        self._turn = threading.Lock()

    def has(self, digest: str) -> bool:
        """Whether the files of a release are here."""
        return _DIGEST.fullmatch(digest) is not None and (self.root / digest).is_dir()

    def find(self, digest: str) -> Path:
        """Where the files of a release lie.

        Raises:
            ReleaseAwayError: They are not here; whoever fetches them is told.
        """
        if not self.has(digest):
            self.on_missing(digest)
            raise ReleaseAwayError(f"the files of release {digest[:12]!a} are not here")
        return self.root / digest

    def place(self, bundle: Path, digest: str) -> Path:
        """Moves a bundle that was checked to its place, in one step; one that is there stays."""
        place = self.root / digest
        if not place.is_dir():
            bundle.rename(place)
            flush_folder(self.root)
        return place

    def blobs(self, digest: str) -> dict[str, Blob]:
        """The files of a release by digest.

        Raises:
            ReleaseAwayError: They are not here; whoever fetches them is told.
        """
        with self._turn:
            folder = self.find(digest)
            if digest not in self._blobs:
                self._blobs[digest] = _read_blobs(folder)
            return self._blobs[digest]

    def forget(self, digest: str) -> None:
        """Removes the files of a release that was deleted."""
        with self._turn:
            self._blobs.pop(digest, None)
            shutil.rmtree(self.root / digest, ignore_errors=True)


def _read_blobs(folder: Path) -> dict[str, Blob]:
    manifest = decode_manifest((folder / MANIFEST_FILE).read_bytes())
    blobs = {}
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        path = folder / name
        sha256, size = digest_file(path), path.stat().st_size
        blobs[sha256] = Blob(path=path, sha256=sha256, bounds=(*fixed_chunks(size), size))
    for entry in manifest.files:
        bounds = tuple(accumulate(entry.chunks.sizes, initial=0))
        blobs[entry.sha256] = Blob(path=folder / entry.path, sha256=entry.sha256, bounds=bounds)
    return blobs


def read_chunks(blob: Blob, indices: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Reads some chunks of a file: index and bytes, in the order asked for."""
    with blob.path.open("rb", buffering=0) as file:
        for index in indices:
            start, end = blob.bounds[index : index + 2]
            yield index, os.pread(file.fileno(), end - start, start)
