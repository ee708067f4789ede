"""Reading chunks from sources before the broker: received chunks, and reasons for an end.

A source is read in a thread of its own. That thread only fills a short queue; a source without
useful data for a while is skipped.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.source import Chunk, Remote, Source, SourceError
from edgepack.bandwidth import UNLIMITED, Bandwidth
from edgepack.halt import Halt

STALL_S = 60.0
"""One chunk in so long is 1 to 2 kB/s: the broker cannot be slower."""
MAX_BAD = 3
"""Chunks that are not what was signed, after which a source is not asked for more."""
_LOOK_S = 0.2
_PAUSE_S = 5.0
_QUEUE = 16
"""Chunks between the two threads: 1.9 MB at most."""

Lookup = Callable[[Download], Sequence[Remote]]


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Chunks and bytes received from a source.

    Attributes:
        title: The source.
        size_bytes: Received bytes.
        because: Reason for missing chunks; "" if the source sent all chunks.
    """

    title: str
    size_bytes: int
    because: str


class _Ended(msgspec.Struct, frozen=True, kw_only=True):
    because: str


def take_ahead(
    source: Source,
    find: Lookup,
    download: Download,
    *,
    halt: Halt,
    stall_s: float = STALL_S,
    bandwidth: Bandwidth = UNLIMITED,
) -> Taken:
    """Fetch missing chunks from a source.

    Args:
        source: The source.
        find: Finds the chunks in the source.
        download: The bundle; no other code touches the download meanwhile.
        halt: Ends the work early.
        stall_s: How long a source may give nothing of use.
        bandwidth: Limit; the source waits at the limit.

    Raises:
        OSError: The disk is full.
        HaltedError: The work was halted.
    """
    pace = _Pace(bandwidth, halt)
    pace.await_leave()
    came: queue.Queue[Chunk | _Ended] = queue.Queue(_QUEUE)
    stop = threading.Event()
    reader = threading.Thread(
        target=_read, args=(source, find(download), came, stop), name="source", daemon=True
    )
    reader.start()
    taken = bad = 0
    waited_s = 0.0
    try:
        while True:
            halt.check()
            try:
                item = came.get(timeout=_LOOK_S)
            except queue.Empty:
                waited_s += _LOOK_S
                if waited_s < stall_s:
                    continue
                item = _Ended(because=f"nothing came for {stall_s:g} s")
            if isinstance(item, _Ended):
                return Taken(title=source.title, size_bytes=taken, because=item.because)
            outcome = download.accept(item.sha256, item.index, item.content)
            if outcome == "new":
                taken += len(item.content)
                waited_s = 0.0
            pace.spend(len(item.content))
            bad += outcome == "bad"
            if bad >= MAX_BAD:
                because = f"{bad} chunks are not what was signed"
                return Taken(title=source.title, size_bytes=taken, because=because)
    finally:
        stop.set()
        source.end()


class _Pace:
    """Wait until the hourly limit allows further bytes."""

    def __init__(self, bandwidth: Bandwidth, halt: Halt) -> None:
        self._bandwidth, self._halt = bandwidth, halt
        self._next_at = time.monotonic()

    def await_leave(self) -> float | None:
        """Return bytes a second that may be taken now, None for any number; waits while that is
        none.
        """
        while (rate := self._bandwidth.now()) == 0:
            self._wait(_PAUSE_S)
        return rate

    def spend(self, size_bytes: int) -> None:
        """Wait as long as these bytes shall take."""
        rate = self.await_leave()
        if rate is not None:
            now = time.monotonic()
            self._next_at = max(now, self._next_at) + size_bytes / rate
            self._wait(self._next_at - now)

    def _wait(self, wait_s: float) -> None:
        self._halt.wait(wait_s)
        self._halt.check()


def _read(
    source: Source,
    remotes: Sequence[Remote],
    came: queue.Queue[Chunk | _Ended],
    stop: threading.Event,
) -> None:
    because = ""
    try:
        for chunk in source.read(remotes):
            if not _put(came, chunk, stop):
                return
    except SourceError as error:
        because = str(error)
    _put(came, _Ended(because=because), stop)


def _put(came: queue.Queue[Chunk | _Ended], item: Chunk | _Ended, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            came.put(item, timeout=_LOOK_S)
        except queue.Full:
            continue
        return True
    return False
