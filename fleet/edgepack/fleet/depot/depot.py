"""Depot: sends the chunks that devices request, each once for many devices.

The depot collects needs for a moment. Chunks that several devices lack go to all listeners, plain
or coded. Other chunks go to the single device, up to the amount that the device accepts. The depot
holds no state that a restart could lose: a device requests a missing chunk again.
"""

import contextlib
import logging
import queue
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from edgepack.bandwidth import UNLIMITED, Bandwidth
from edgepack.durable import log_fault
from edgepack.errors import EdgepackError
from edgepack.fleet.depot.limit import Limit
from edgepack.fleet.depot.listener import Listener
from edgepack.fleet.depot.stream import Stream
from edgepack.fleet.releases.folder import (
    ReleaseAwayError,
    ReleaseDamagedError,
    ReleaseFolder,
    read_chunks,
)
from edgepack.wire import topics
from edgepack.wire.coded import pack_coded
from edgepack.wire.messages import decode
from edgepack.wire.transfers import Need

log = logging.getLogger(__name__)

PIECE_BYTES = 256 * 1024
"""Sent at a time."""
LOOK_S = 0.5
"""The longest that nobody looks whether there is something to send."""
KNOWN_S = 600.0
"""So long a device whose need the controller let in may speak to the depot directly."""
SILENT_S = 3.0
"""How long others wait for a device that says nothing: so long, and as long as a broker may take to
hand out what is on its way."""
BROKER_BYTES_PER_S = 20e6
"""Brokers hand out 50 to 300 MB/s on two cores."""
LEAST_WAIT_S = 0.005
MAX_WAITING = 20_000
TAKEN_AT_ONCE = 500
SMALL_BYTES, SMALL_TIMES = 64 * 1024, 4
"""So often a small file goes out: it costs next to nothing, and whoever loses the manifest is late
for all that the others are sent after it."""

Send = Callable[[str, Sequence[bytes]], bool]
"""Publishes at QoS 0 and waits until the socket took it; False when there is no connection."""


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    need: Need | bytes
    said_at: float


_SendNext = Callable[[Stream, int, float], bool]
"""Sends the next piece of a file, where there is one: shares (`Window.room`), time."""


class _NoConnectionError(Exception):
    """Nothing goes out now."""


class Depot:
    """Takes needs from any thread without waiting; sends from a thread of its own.

    Args:
        tenant: Tenant of the devices.
        releases: The available releases.
        send: How chunks go out.
        bandwidth: Allowed bytes per second.
        clock: Monotonic, seconds.

    Attributes:
        sent_bytes: Chunk bytes sent, by `broadcast`, `coded` and `repair`.
        counters: Needs by outcome.
    """

    def __init__(
        self,
        *,
        tenant: str,
        releases: ReleaseFolder,
        send: Send,
        bandwidth: Bandwidth = UNLIMITED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tenant = tenant
        self._releases = releases
        self._send = send
        self._limit = Limit(bandwidth)
        self._clock = clock
        self._requests: queue.Queue[_Request] = queue.Queue(MAX_WAITING)
        self._stopping = threading.Event()
        self._streams: dict[str, Stream] = {}
        self._rounds: dict[str, dict[str, int]] = {}
        self._busy_s = 0.0
        self._known: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="depot", daemon=True)
        self.sent_bytes: Counter[str] = Counter(broadcast=0, coded=0, repair=0)
        self.counters: Counter[str] = Counter()

    @property
    def bytes_per_s(self) -> float:
        """Rate of sent bytes over the last seconds."""
        return self._limit.measured_bytes_per_s(self._clock())

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def stop(self) -> None:
        """Stop at once; devices will ask again."""
        self._stopping.set()
        self._thread.join(timeout=10)

    def take(self, device: str, need: Need, said_at: float) -> None:
        """Note a device's need; drop a need if the queue is full, since devices repeat needs.

        Args:
            device: Id of an enrolled device.
            need: The missing chunks.
            said_at: Receive time, monotonic clock, seconds: not the processing time, since chunks
                sent in between may be the requested chunks.
        """
        self._known[device] = said_at + KNOWN_S
        self._put(_Request(device=device, need=need, said_at=said_at))

    def take_directly(self, device: str, payload: bytes, said_at: float) -> bool:
        """Return the same as received from the broker, for a device that the controller let in
        lately.

        Returns:
            False for any other device: the controller must check that device first.
        """
        if self._known.get(device, 0.0) < said_at:
            return False
        self._put(_Request(device=device, need=payload, said_at=said_at))
        return True

    def _put(self, request: _Request) -> None:
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            self.counters["needs_dropped"] += 1

    def _run(self) -> None:
        wait_s = LOOK_S
        while not self._stopping.is_set():
            try:
                if wait_s > 0:
                    with contextlib.suppress(queue.Empty):
                        self._note(self._requests.get(timeout=wait_s))
                wait_s = self.turn()
            except OSError as error:
                log_fault(log, "the depot stumbled; devices will ask again", error)
                self._stopping.wait(1.0)
            except Exception:  # the outermost loop of this thread: the depot goes on
                log.exception("the depot stumbled; devices will ask again")
                self._stopping.wait(1.0)

    def turn(self) -> float:
        """Take the needs that came, and send a piece of all that may be sent now.

        Returns:
            Seconds until there may be more to send, unless a need comes.
        """
        with contextlib.suppress(queue.Empty):
            for _ in range(TAKEN_AT_ONCE):
                self._note(self._requests.get_nowait())
        waits = [LOOK_S]
        shares = sum(len(stream.listeners) for stream in self._streams.values())
        on_its_way = sum(stream.on_its_way_bytes for stream in self._streams.values())
        self._busy_s = on_its_way / BROKER_BYTES_PER_S
        has_sent = False
        # Small files first: nobody can choose a variant before it has the manifest.
        for stream in sorted(self._streams.values(), key=lambda one: one.blob.size_bytes):
            waits.append(stream.look(self._clock, SILENT_S + self._busy_s))
            ways = [partial(self._send_piece, one) for one in (None, *stream.served_singly())]
            sends: list[_SendNext] = [self._send_coded, *ways]
            for send in sends:
                now = self._clock()
                if (wait_s := self._limit.wait_s(now)) > 0:
                    return wait_s
                try:
                    has_sent = send(stream, shares, now) or has_sent
                except _NoConnectionError:
                    return self._break_off()
                except ReleaseDamagedError as damage:
                    self._drop_release(damage)
                    return 0.0
        self._forget()
        return 0.0 if has_sent else max(LEAST_WAIT_S, min(waits))

    def _send_piece(
        self, listener: Listener | None, stream: Stream, shares: int, now: float
    ) -> bool:
        """Send chunks to a device or to all listeners; return whether any chunk was sent."""
        indices = stream.take(listener, shares, PIECE_BYTES, now)
        sha256 = stream.blob.sha256
        if listener is None:
            way, topic = "broadcast", topics.broadcast(self._tenant, sha256)
        else:
            way, topic = "repair", topics.repair(self._tenant, listener.device, sha256)
        times = SMALL_TIMES if stream.blob.size_bytes <= SMALL_BYTES else 1
        messages = times * [
            struct.pack(">I", index) + content
            for index, content in read_chunks(stream.blob, indices)
        ]
        size_bytes = times * sum(map(stream.size_of, indices))
        stream.note_sent(listener, indices, self._publish(way, topic, messages, size_bytes))
        return bool(indices)

    def _send_coded(self, stream: Stream, shares: int, now: float) -> bool:
        """Send coded messages to all listeners; return whether any message was sent."""
        repairs = stream.take_coded(shares, PIECE_BYTES, now)
        topic = topics.coded(self._tenant, stream.blob.sha256)
        messages = [
            pack_coded(number, dict(read_chunks(stream.blob, repair.members)))
            for number, repair in enumerate(repairs, stream.next_number)
        ]
        sizes = (stream.longest(repair.members) for repair in repairs)
        stream.note_coded(repairs, self._publish("coded", topic, messages, sum(sizes)))
        return bool(repairs)

    def _publish(self, way: str, topic: str, messages: Sequence[bytes], size_bytes: int) -> float:
        """Send messages; return when that was.

        Raises:
            _NoConnectionError: There is no connection.
        """
        if messages:
            if self._stopping.is_set() or not self._send(topic, messages):
                raise _NoConnectionError
            self._limit.note_sent(size_bytes, self._clock())
            self.sent_bytes[way] += size_bytes
        return self._clock()

    def _note(self, request: _Request) -> None:
        device, said_at = request.device, request.said_at
        try:
            need = request.need if isinstance(request.need, Need) else decode(request.need, Need)
            blobs = self._releases.blobs(need.digest)
            for wanted in need.files:
                blob = blobs.get(wanted.sha256)
                if blob is None:
                    self.counters["needs_unknown_file"] += 1
                    continue
                stream = self._streams.get(wanted.sha256)
                if stream is None:
                    stream = self._streams[wanted.sha256] = Stream(blob, said_at)
                stream.hear(device, need, wanted, said_at, self._busy_s)
            self._drop_complete(device, need, frozenset(blobs))
        except ReleaseAwayError:
            self.counters["needs_early"] += 1  # Devices ask again until the release is here.
        except EdgepackError as error:
            self.counters["needs_malformed"] += 1
            log.warning("device=%s need dropped because=%s", device, error.problem)

    def _drop_complete(self, device: str, need: Need, files: frozenset[str]) -> None:
        """Drop files that a device no longer names, since complete files are not named."""
        named = {wanted.sha256 for wanted in need.files}
        rounds = self._rounds.setdefault(device, {})
        for sha256 in named & self._streams.keys():
            rounds[sha256] = need.round
        for sha256, said_in in tuple(rounds.items()):
            # A long need comes in several messages of one round.
            if sha256 in files and sha256 not in named and said_in != need.round:
                del rounds[sha256]
                if sha256 in self._streams:
                    self._streams[sha256].drop(device)
        if not rounds:
            del self._rounds[device]

    def _drop_release(self, damage: ReleaseDamagedError) -> None:
        """Stop sending a damaged release; devices ask again until the release is repaired."""
        self.counters["chunks_damaged"] += 1
        self._releases.set_aside(damage)
        for sha256, stream in list(self._streams.items()):
            if stream.blob.release == damage.release:
                del self._streams[sha256]

    def _break_off(self) -> float:
        for stream in self._streams.values():
            stream.break_off()
        return LOOK_S

    def _forget(self) -> None:
        """Forget files without interested devices, and quiet devices."""
        for sha256, stream in list(self._streams.items()):
            if not stream.listeners:
                log.info("file=%s nobody lacks it any more", sha256)
                del self._streams[sha256]
        if not self._streams:
            self._rounds.clear()
            now = self._clock()
            for device, until in list(self._known.items()):
                if until < now:
                    self._known.pop(device, None)
