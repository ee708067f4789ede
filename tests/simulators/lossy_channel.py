"""A depot and devices with a lossy broker: messages are lost, doubled, delayed and reordered.

Depot, downloads and schedulers are real; time is simulated.
"""

import hashlib
import random
import struct
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from edgepack.agent.state.slots import Slots
from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.need_scheduler import NeedScheduler
from edgepack.bandwidth import UNLIMITED, Bandwidth
from edgepack.bundle.chunks import index_file
from edgepack.bundle.manifest import FileEntry
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.releases.folder import Blob, ReleaseFolder
from edgepack.wire import topics
from edgepack.wire.coded import read_coded
from edgepack.wire.messages import decode, encode
from edgepack.wire.transfers import Need

DIGEST = "ab" * 32
STEP_S = 0.01
UPLINK_BYTES_PER_S = 100e6
START_S = 1000.0


@dataclass(kw_only=True)
class Faults:
    """Faults of the broker for messages to a device.

    Attributes:
        loss, duplication: Shares, 0..1.
        reorder: Share that comes up to five messages late.
        queue_bytes: Longest queue of a device; further messages are lost.
    """

    loss: float = 0.0
    duplication: float = 0.0
    reorder: float = 0.0
    queue_bytes: int = 64_000_000


class Receiver:
    """A device: its files on the disk, and its part of the broker's queue."""

    def __init__(
        self,
        name: str,
        folder: Path,
        entries: Sequence[FileEntry],
        *,
        bytes_per_s: float,
        starts_at: float,
        bandwidth: Bandwidth,
        takes_coded: bool,
    ) -> None:
        folder.mkdir()
        self.name = name
        self.bytes_per_s = bytes_per_s
        self.starts_at = starts_at
        self.limit = bandwidth
        self.rng = random.Random(name)
        self.download = Download(Slots(folder), DIGEST, entries)
        self.download.reserve()
        self.download.resume(check=False)
        self.scheduler: NeedScheduler | None = None
        self.takes_coded = takes_coded
        self.coded: Counter[str] = Counter()
        self.queue: deque[tuple[str, bool, bytes]] = deque()
        self.queued_bytes = 0
        self.most_queued_bytes = 0
        self.done_at: float | None = None
        self.credit = 0.0
        self.is_asleep = False

    def drain(self, now: float) -> None:
        """Receive the data of a step at the device's rate."""
        self.credit = min(self.credit + self.bytes_per_s * STEP_S, 1e6)
        while self.queue and self.credit > 0 and not self.is_asleep:
            sha256, is_coded, payload = self.queue.popleft()
            self.queued_bytes -= len(payload)
            self.credit -= len(payload)
            if is_coded:
                coded = read_coded(payload)
                index = self.download.chunk_count(sha256) + coded.number
                outcome = self.download.accept_coded(sha256, coded)
                self.coded[outcome] += 1
            else:
                index = struct.unpack(">I", payload[:4])[0]
                outcome = self.download.accept(sha256, index, payload[4:])
            assert outcome != "bad"
            if self.scheduler is not None and outcome in ("new", "duplicate", "unsolved"):
                place = (sha256, index)
                self.scheduler.note_chunk(now, is_new=outcome == "new", place=place)


class LossyFleet:
    """A depot, a broker and devices.

    Args:
        folder: For all files.
        devices: How many.
        size_bytes: Of the bundle's only file.
        faults: Faults of the broker.
        slow: By number of a device: its rate, bytes per second; other devices have 50 MB.
        spread_s: Devices begin within so many seconds.
        limits: By number of a device: its own bandwidth.
        bandwidth: The depot's.
        plain: Numbers of devices without coded messages, like older devices.
        refusing: Numbers of devices that ask for coded messages, of which the broker gives none.
    """

    def __init__(
        self,
        folder: Path,
        devices: int,
        *,
        size_bytes: int = 2_000_000,
        faults: Faults | None = None,
        slow: dict[int, float] | None = None,
        spread_s: float = 0.1,
        limits: dict[int, Bandwidth] | None = None,
        bandwidth: Bandwidth = UNLIMITED,
        plain: Collection[int] = (),
        refusing: Collection[int] = (),
    ) -> None:
        self.now = START_S
        self.refusing = {f"d{number}" for number in refusing}
        self.faults = faults or Faults()
        self.rng = random.Random(7)
        path = folder / "file"
        path.write_bytes(random.Random(1).randbytes(size_bytes))
        chunks = index_file(path)
        self.content = path.read_bytes()
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        entry = FileEntry(path="model", size_bytes=size_bytes, sha256=self.sha256, chunks=chunks)
        bounds = [0]
        for size in chunks.sizes:
            bounds.append(bounds[-1] + size)
        self._releases = ReleaseFolder(folder / "releases", folder / "incoming")
        (self._releases.root / DIGEST).mkdir(exist_ok=True)
        self._releases._blobs[DIGEST] = {
            self.sha256: Blob(path=path, sha256=self.sha256, bounds=tuple(bounds))
        }
        self._bandwidth = bandwidth
        self.is_up = True
        self.sent_bytes = 0
        self.depot = self.start_depot()
        self.receivers = [
            Receiver(
                f"d{number}",
                folder / f"d{number}",
                [entry],
                bytes_per_s=(slow or {}).get(number, 50e6),
                starts_at=START_S + self.rng.uniform(0, spread_s),
                bandwidth=(limits or {}).get(number, UNLIMITED),
                takes_coded=number not in plain,
            )
            for number in range(devices)
        ]

    def start_depot(self) -> Depot:
        """Start a new depot without state."""
        self.depot = Depot(
            tenant="t",
            releases=self._releases,
            send=self._send,
            bandwidth=self._bandwidth,
            clock=lambda: self.now,
        )
        return self.depot

    def restart_broker(self, *, keeps_queues: bool) -> None:
        """Reconnect the devices after a restart of the broker."""
        for one in self.receivers:
            if not keeps_queues:
                one.queue.clear()
                one.queued_bytes = 0
            if one.scheduler is not None:
                one.scheduler.note_connected(self.now)

    def run(self, until_s: float = 300.0, *, until_done: int | None = None) -> None:
        """Advance the time until enough devices are done.

        Args:
            until_s: Deadline since the start.
            until_done: How many; None is all.
        """
        wanted = len(self.receivers) if until_done is None else until_done
        while sum(one.done_at is not None for one in self.receivers) < wanted:
            assert self.now - START_S < until_s, f"not done: {self.missing()}"
            self.step()

    def step(self) -> None:
        """Advance by a hundredth of a second."""
        self.now += STEP_S
        for one in self.receivers:  # what was sent before: nothing comes in the moment it is sent
            one.drain(self.now)
            self._ask(one)
        budget = self.sent_bytes + UPLINK_BYTES_PER_S * STEP_S
        while self.sent_bytes < budget and self.depot.turn() == 0:
            pass

    def missing(self) -> dict[str, int]:
        """Return the number of missing chunks by unfinished device."""
        return {
            one.name: sum(len(file.chunks) for file in one.download.missing())
            for one in self.receivers
            if one.done_at is None
        }

    def check_files(self) -> None:
        """Check that every device has the sent files, byte for byte."""
        for one in self.receivers:
            one.download.finish()
            assert one.download._path(one.download._files[0]).read_bytes() == self.content

    def _ask(self, one: Receiver) -> None:
        if self.now < one.starts_at or one.done_at is not None or one.is_asleep:
            return
        if one.scheduler is None:
            one.scheduler = NeedScheduler(self.now, one.rng, one.limit)
        if one.download.is_complete:
            one.done_at = self.now
        elif self.now < one.scheduler.due_at:
            return
        missing = tuple(
            replace(lacking, takes_coded=one.takes_coded) for lacking in one.download.missing()
        )
        for need in one.scheduler.ask(DIGEST, missing, self.now):
            if self.is_up:  # QoS 1: what a broker took reaches the depot
                self.depot.take(one.name, decode(encode(need), Need), self.now)

    def _send(self, topic: str, payloads: Sequence[bytes]) -> bool:
        if not self.is_up:
            return False
        for one in self.receivers:
            listens = one.scheduler is not None and one.done_at is None
            is_broadcast = topic == topics.broadcast("t", self.sha256)
            is_own = topic == topics.repair("t", one.name, self.sha256)
            is_coded = topic == topics.coded("t", self.sha256)
            hears_coded = is_coded and one.takes_coded and one.name not in self.refusing
            is_for_all = (is_broadcast or hears_coded) and one.limit == UNLIMITED
            if listens and (is_own or is_for_all):
                for payload in payloads:
                    self._put(one, is_coded, payload)
        self.sent_bytes += sum(map(len, payloads))
        return True

    def _put(self, one: Receiver, is_coded: bool, payload: bytes) -> None:
        for _ in range(2 if self.rng.random() < self.faults.duplication else 1):
            is_full = one.queued_bytes + len(payload) > self.faults.queue_bytes
            if is_full or self.rng.random() < self.faults.loss:
                continue
            place = len(one.queue)
            if self.rng.random() < self.faults.reorder:
                place = max(0, place - self.rng.randint(1, 5))
            one.queue.insert(place, (self.sha256, is_coded, payload))
            one.queued_bytes += len(payload)
            one.most_queued_bytes = max(one.most_queued_bytes, one.queued_bytes)
