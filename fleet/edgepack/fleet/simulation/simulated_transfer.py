"""Transfer of a bundle to a simulated device: requests and checks chunks, and stores none.

The manifest and the signature come first and are verified whole; the manifest then lists the chunks
of the first variant, and each chunk is verified against the signed index.
"""

import hashlib
import random
import struct
from collections.abc import Callable
from functools import lru_cache

from edgepack.agent.transfer.chunk_status import MissingChunks
from edgepack.agent.transfer.need_scheduler import NeedScheduler
from edgepack.agent.transfer.solving import Solved, solve
from edgepack.bundle.chunks import chunk_digests, fixed_chunks
from edgepack.bundle.manifest import Manifest, decode_manifest
from edgepack.bundle.shared_files import is_needed
from edgepack.errors import EdgepackError
from edgepack.fleet.simulation.chunk_store import StoredFile
from edgepack.fleet.simulation.port import Port
from edgepack.wire import topics
from edgepack.wire.coded import CodedChunk
from edgepack.wire.messages import encode
from edgepack.wire.orders import FileRef, RunModel


class _Wanted:
    """A file on its way: which chunks lack, and how each is checked."""

    def __init__(
        self,
        sha256: str,
        digests: tuple[bytes, ...] = (),
        *,
        content: bytearray | None = None,
        stored: StoredFile | None = None,
    ) -> None:
        self.sha256 = sha256
        self.digests = digests  # empty: no index yet, checked whole
        self.content = content
        self.stored = stored
        self.missing: set[int] = set()
        self.count = 0


class SimulatedTransfer:
    """The missing files of a device.

    Args:
        device: The device's id.
        tenant: Its fleet.
        port: The world.
        rng: Decides jitter.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        *,
        device: str,
        tenant: str,
        port: Port,
        rng: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self._device = device
        self._tenant = tenant
        self._port = port
        self._rng = rng
        self._clock = clock
        self._order: RunModel | None = None
        self._files: dict[str, _Wanted] = {}
        self._manifest: Manifest | None = None
        self._scheduler: NeedScheduler | None = None

    def start(self, order: RunModel) -> None:
        """Request a bundle's manifest and signature, and then the files of the manifest."""
        self._order, self._manifest = order, None
        for ref in (order.manifest, order.signature):
            self._want_whole(ref)
        self._scheduler = NeedScheduler(self._clock(), self._rng)

    def resume(self) -> None:
        """Continue after a new connection."""
        for file in self._files.values():
            self._listen(file)
        if self._scheduler is not None:
            self._scheduler.note_connected(self._clock())

    def drop(self) -> None:
        """Cancel all requests."""
        for file in tuple(self._files.values()):
            self._leave(file)
        self._scheduler = None

    def tick(self) -> None:
        """Request missing chunks when due."""
        if self._scheduler is not None and self._clock() >= self._scheduler.due_at:
            self._need(self._scheduler)

    def take(self, sha256: str, payload: bytes) -> bool:
        """Store a chunk of a file; drop a chunk that was not requested.

        Returns:
            Whether the chunk completes the bundle.

        Raises:
            EdgepackError: The completed manifest cannot be read; the transfer ends.
        """
        file = self._files.get(sha256)
        if file is None or len(payload) <= 4:
            return False
        index, content = struct.unpack(">I", payload[:4])[0], payload[4:]
        place = (sha256, index)
        if index not in file.missing:
            if self._scheduler is not None and index < file.count:
                self._scheduler.note_chunk(self._clock(), is_new=False, place=place)
            return False
        if file.content is not None:
            start = fixed_chunks(len(file.content))[index]
            file.content[start : start + len(content)] = content
        elif hashlib.sha256(content).digest() != file.digests[index]:
            return False
        return self._note(file, index, content, place)

    def take_coded(self, sha256: str, coded: CodedChunk) -> bool:
        """Recover the only missing chunk of a coded message; see `take`."""
        file = self._files.get(sha256)
        if file is None or file.stored is None:
            return False
        solved = solve(coded, sizes=file.stored.sizes, lacking=file.missing, read=file.stored.read)
        place = (sha256, file.count + coded.number)
        if isinstance(solved, Solved):
            is_right = hashlib.sha256(solved.content).digest() == file.digests[solved.index]
            return is_right and self._note(file, solved.index, solved.content, place)
        if self._scheduler is not None and solved in ("duplicate", "unsolved"):
            self._scheduler.note_chunk(self._clock(), is_new=False, place=place)
        return False

    def _note(self, file: _Wanted, index: int, content: bytes, place: tuple[str, int]) -> bool:
        """Note a verified chunk; return whether the bundle is complete."""
        if file.stored is not None:
            file.stored.put(index, content)
        file.missing.discard(index)
        if self._scheduler is not None:
            self._scheduler.note_chunk(self._clock(), is_new=True, place=place)
        return not file.missing and self._finish(file)

    def _finish(self, file: _Wanted) -> bool:
        """Close a complete file; return whether the bundle is complete."""
        if file.content is not None:
            if hashlib.sha256(file.content).hexdigest() != file.sha256:
                file.missing = set(range(file.count))
                return False
            if self._order is not None and file.sha256 == self._order.manifest.sha256:
                self._manifest = self._read(bytes(file.content))
        self._leave(file)
        if self._files:
            return False
        if self._manifest is not None:
            self._want_variant(self._manifest)
        if self._files:
            return False
        if self._scheduler is not None:
            self._need(self._scheduler)
        self._scheduler = None
        return True

    def _read(self, content: bytes) -> Manifest:
        try:
            return _read_manifest(content)
        except EdgepackError:
            self.drop()
            raise

    def _want_variant(self, manifest: Manifest) -> None:
        self._manifest = None
        rest = tuple(entry for entry in manifest.facts.files if is_needed(entry.path))
        for entry in (*manifest.variants[0].facts.files, *rest):
            digests = chunk_digests(entry.chunks)
            if digests and entry.sha256 not in self._files:
                stored = self._port.chunks.open(entry.sha256, entry.chunks.sizes)
                self._want(_Wanted(entry.sha256, digests, stored=stored), len(digests))
        self._scheduler = NeedScheduler(self._clock(), self._rng)

    def _want_whole(self, ref: FileRef) -> None:
        file = _Wanted(ref.sha256, content=bytearray(ref.size_bytes))
        self._want(file, len(fixed_chunks(ref.size_bytes)))

    def _want(self, file: _Wanted, count: int) -> None:
        file.count, file.missing = count, set(range(count))
        if count:
            self._files[file.sha256] = file
            self._listen(file)

    def _topics_of(self, file: _Wanted) -> tuple[str, ...]:
        plain = topics.broadcast(self._tenant, file.sha256)
        return (plain,) if file.stored is None else (plain, topics.coded(self._tenant, file.sha256))

    def _listen(self, file: _Wanted) -> None:
        for topic in self._topics_of(file):
            self._port.subscribe(topic)

    def _leave(self, file: _Wanted) -> None:
        del self._files[file.sha256]
        for topic in self._topics_of(file):
            self._port.unsubscribe(topic)
        if file.stored is not None:
            self._port.chunks.close(file.sha256)

    def _need(self, scheduler: NeedScheduler) -> None:
        if self._order is None:
            return
        missing = tuple(
            MissingChunks(
                sha256=file.sha256,
                chunk_count=file.count,
                chunks=tuple(sorted(file.missing)),
                takes_coded=file.stored is not None,
            )
            for file in self._files.values()
        )
        topic = topics.up(self._tenant, self._device, "need")
        for need in scheduler.ask(self._order.bundle.digest, missing, self._clock()):
            self._port.publish(topic, encode(need), 1, False)


@lru_cache(maxsize=16)
def _read_manifest(content: bytes) -> Manifest:
    return decode_manifest(content)
