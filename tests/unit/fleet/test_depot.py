"""The depot and simulated devices, without a broker: sent chunks are received."""

import queue
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepack.fleet.depot.depot import SMALL_TIMES, Depot
from edgepack.fleet.releases.folder import Blob, ReleaseFolder, read_chunks
from edgepack.wire import topics
from edgepack.wire.messages import encode
from edgepack.wire.need_bitmap import pack_missing
from edgepack.wire.transfers import Need, NeedFile

DIGEST = "ab" * 32
SHA = "cd" * 32


class OneRelease(ReleaseFolder):
    """A folder with a single release of a single file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "releases", root / "incoming")
        path = self.root / DIGEST / "file"
        path.parent.mkdir()
        self.content = random.Random(1).randbytes(250_000)
        path.write_bytes(self.content)
        self._blobs[DIGEST] = {
            SHA: Blob(path=path, sha256=SHA, bounds=(0, 100_000, 100_001, 200_000, 250_000))
        }


@pytest.fixture
def depot(tmp_path: Path) -> Iterator[tuple[Depot, "queue.Queue[tuple[str, bytes]]"]]:
    sent: queue.Queue[tuple[str, bytes]] = queue.Queue()

    def send(topic: str, payloads: Sequence[bytes]) -> bool:
        for payload in payloads:
            sent.put((topic, payload))
        return True

    depot = Depot(tenant="t", releases=OneRelease(tmp_path), send=send)
    depot.start()
    yield depot, sent
    depot.stop()


def need(*chunks: int, count: int = 4, sha256: str = SHA, digest: str = DIGEST) -> Need:
    return Need(digest=digest, files=(pack_missing(sha256, chunks, count),))


def test_the_union_is_broadcast_once_and_the_rest_goes_to_one(
    depot: tuple[Depot, "queue.Queue[tuple[str, bytes]]"], tmp_path: Path
) -> None:
    it, sent = depot
    it.take("a", need(0, 1, 2), time.monotonic())
    it.take("b", need(1, 2, 3), time.monotonic())
    got = [sent.get(timeout=400) for _ in range(4)]
    assert [(topic, struct.unpack(">I", payload[:4])[0]) for topic, payload in got] == [
        (topics.broadcast("t", SHA), 1),
        (topics.broadcast("t", SHA), 2),
        (topics.repair("t", "a", SHA), 0),
        (topics.repair("t", "b", SHA), 3),
    ]
    content = (tmp_path / "releases" / DIGEST / "file").read_bytes()
    whole = {payload[:4]: payload[4:] for _, payload in got}
    assert b"".join(whole[key] for key in sorted(whole)) == content


@pytest.mark.parametrize(
    "nonsense",
    [
        need(0, digest="00" * 32),
        need(0, digest="../../etc/passwd"),
        need(0, digest="x" * 10_000),
        need(0, sha256="00" * 32),
        need(0, count=5),
        Need(digest=DIGEST, files=(NeedFile(sha256=SHA, chunk_count=4, missing=b"x"),)),
        Need(digest=DIGEST, files=(), received=0, lost=10**30),
    ],
)
def test_a_need_that_makes_no_sense_is_counted_and_the_next_one_is_served(
    depot: tuple[Depot, "queue.Queue[tuple[str, bytes]]"], nonsense: Need
) -> None:
    it, sent = depot
    it.take("mallory", nonsense, time.monotonic())
    it.take("a", need(0), time.monotonic())
    assert sent.get(timeout=400)[0] == topics.repair("t", "a", SHA)
    assert sent.empty()


def test_a_small_file_goes_out_several_times(tmp_path: Path) -> None:
    sent: list[int] = []
    releases = OneRelease(tmp_path)
    releases._blobs[DIGEST][SHA] = replace(releases.blobs(DIGEST)[SHA], bounds=(0, 70, 100))

    def send(_topic: str, payloads: Sequence[bytes]) -> bool:
        sent.append(len(payloads))
        return True

    depot = Depot(tenant="t", releases=releases, send=send)
    depot.take("a", need(0, 1, count=2), time.monotonic() - 60)
    depot.turn()
    depot.turn()
    assert sent == [2 * SMALL_TIMES]
    assert depot.sent_bytes["repair"] == 100 * SMALL_TIMES


def test_without_a_connection_the_pass_is_broken_off_and_served_when_asked_again(
    tmp_path: Path,
) -> None:
    sent: queue.Queue[bool] = queue.Queue()
    is_there: Callable[[], bool] = iter([False, True]).__next__

    def send(_topic: str, _payloads: Sequence[bytes]) -> bool:
        connected = is_there()
        sent.put(connected)
        return connected

    depot = Depot(tenant="t", releases=OneRelease(tmp_path), send=send)
    depot.start()
    depot.take("a", need(0), time.monotonic())
    assert sent.get(timeout=400) is False
    depot.take("a", need(0), time.monotonic())
    assert sent.get(timeout=400) is True
    depot.stop()
    assert depot.sent_bytes == {"broadcast": 0, "coded": 0, "repair": 100_000}


def test_a_device_that_the_controller_let_in_speaks_to_the_depot_directly(
    depot: tuple[Depot, "queue.Queue[tuple[str, bytes]]"],
) -> None:
    it, sent = depot
    assert not it.take_directly("a", encode(need(0)), time.monotonic())
    it.take("a", need(0), time.monotonic())
    assert sent.get(timeout=400)[0] == topics.repair("t", "a", SHA)
    assert it.take_directly("a", b"{", time.monotonic())
    assert it.take_directly("a", encode(need(2)), time.monotonic())
    assert struct.unpack(">I", sent.get(timeout=400)[1][:4])[0] == 2
    assert it.counters == {"needs_malformed": 1}


def test_chunks_are_read_where_the_index_says(tmp_path: Path) -> None:
    blob = OneRelease(tmp_path).blobs(DIGEST)[SHA]
    assert [(i, len(content)) for i, content in read_chunks(blob, (3, 1))] == [(3, 50_000), (1, 1)]
