"""The depot: sends the chunks that devices say they lack, each once for many devices.

It gathers needs for a moment, plans one pass per file from all of them, sends the pass at a
pace that devices can follow, and forgets what it sent: a device that still lacks something
asks again. So it holds nothing that a restart could lose.
"""

import logging
import queue
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from edgepack.errors import EdgepackError
from edgepack.fleet.depot.pace import Pace, wait_before
from edgepack.fleet.depot.plan import Lack, Pass, plan_pass
from edgepack.fleet.releases.folder import Blob, ReleaseFolder, read_chunks
from edgepack.wire import topics
from edgepack.wire.messages import Need
from edgepack.wire.need_bitmap import read_missing

log = logging.getLogger(__name__)

GATHER_S = 0.25
"""How long needs are gathered before a pass: devices of a wave ask with about this jitter."""
GRACE_S = 0.5
"""How long a broadcast chunk may be on its way to a device."""
REMEMBER_S = 120.0
MAX_WAITING = 10_000

Send = Callable[[str, bytes], bool]
"""Publishes at QoS 0 and waits until the socket took it; False when there is no connection."""


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    need: Need
    said_at: float


class _File:
    """What is known of a file that devices lack."""

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.lacks: dict[str, Lack] = {}
        self.sent_at: dict[int, float] = {}


class Depot:
    """Takes needs from any thread without waiting; sends from a thread of its own.

    Attributes:
        sent_bytes: Chunk bytes sent, by `broadcast` and `repair`.
        counters: Needs by what became of them.
    """

    def __init__(self, *, tenant: str, releases: ReleaseFolder, send: Send) -> None:
        self._tenant = tenant
        self._releases = releases
        self._send = send
        self._requests: queue.Queue[_Request] = queue.Queue(MAX_WAITING)
        self._stopping = threading.Event()
        self._files: dict[str, _File] = {}
        self._thread = threading.Thread(target=self._run, name="depot", daemon=True)
        self.pace = Pace()
        self.sent_bytes: Counter[str] = Counter(broadcast=0, repair=0)
        self.counters: Counter[str] = Counter()

    def start(self) -> None:
        """Starts sending."""
        self._thread.start()

    def stop(self) -> None:
        """Stops in the middle of whatever is sent; devices will ask again."""
        self._stopping.set()
        self._thread.join(timeout=10)

    def take(self, device: str, need: Need) -> None:
        """Notes what a device lacks; a need too many is dropped, since devices repeat them."""
        request = _Request(device=device, need=need, said_at=time.monotonic())
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            self.counters["needs_dropped"] += 1

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._gather():
                    self._send_all()
            except Exception:  # the outermost loop of this thread: the depot goes on
                log.exception("the depot stumbled; devices will ask again")
                self._stopping.wait(1.0)

    def _gather(self) -> bool:
        """Waits for a need, then a moment for more; whether there is something to send."""
        try:
            self._note(self._requests.get(timeout=0.5))
        except queue.Empty:
            self._forget()
            return False
        until = time.monotonic() + GATHER_S
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            try:
                self._note(self._requests.get(timeout=left))
            except queue.Empty:
                break
        return True

    def _note(self, request: _Request) -> None:
        need = request.need
        self.pace = self.pace.heard(request.device, need.received, need.lost)
        try:
            blobs = self._releases.blobs(need.digest)
            for wanted in need.files:
                blob = blobs.get(wanted.sha256)
                if blob is None:
                    self.counters["needs_unknown_file"] += 1
                    continue
                chunks = frozenset(read_missing(wanted, blob.chunk_count))
                file = self._files.setdefault(wanted.sha256, _File(blob))
                file.lacks[request.device] = Lack(
                    device=request.device, chunks=chunks, said_at=request.said_at
                )
        except EdgepackError as error:
            self.counters["needs_malformed"] += 1
            log.warning("device=%s need dropped because=%s", request.device, error.problem)

    def _send_all(self) -> None:
        self.pace = self.pace.adjusted()
        # Small files first: nobody can choose a variant before it has the manifest.
        for file in sorted(self._files.values(), key=lambda file: file.blob.size_bytes):
            if not file.lacks:
                continue
            listeners = len(file.lacks)
            planned = plan_pass(tuple(file.lacks.values()), file.sent_at, GRACE_S)
            file.lacks.clear()
            if not self._send_pass(file, planned, listeners):
                return

    def _send_pass(self, file: _File, planned: Pass, listeners: int) -> bool:
        """Sends one pass; False when it was broken off."""
        sha256 = file.blob.sha256
        topic = topics.broadcast(self._tenant, sha256)
        if not self._send_chunks(file, topic, planned.broadcast, "broadcast", listeners):
            return False
        return all(
            self._send_chunks(
                file, topics.repair(self._tenant, device, sha256), chunks, "repair", 1
            )
            for device, chunks in planned.repairs.items()
        )

    def _send_chunks(
        self, file: _File, topic: str, chunks: tuple[int, ...], way: str, listeners: int
    ) -> bool:
        began, sent = time.monotonic(), 0
        rate = self.pace.bytes_per_s(listeners)
        for index, content in read_chunks(file.blob, chunks):
            if wait_s := wait_before(sent, time.monotonic() - began, rate):
                self._stopping.wait(wait_s)
            if self._stopping.is_set() or not self._send(topic, struct.pack(">I", index) + content):
                return False
            sent += len(content)
            self.sent_bytes[way] += len(content)
            if way == "broadcast":
                file.sent_at[index] = time.monotonic()
        if chunks:
            log.info("file=%s sent=%d chunks way=%s", file.blob.sha256, len(chunks), way)
        return True

    def _forget(self) -> None:
        """Lets go of files that nobody has lacked for a while."""
        old = time.monotonic() - REMEMBER_S
        for sha256, file in list(self._files.items()):
            if not file.lacks and all(at < old for at in file.sent_at.values()):
                del self._files[sha256]
