"""Cost of a file's many listeners: checked at intervals, not at each message of a listener."""

from pathlib import Path

import msgspec
import pytest

from edgepack.fleet.depot.plan import Plan, make_plan
from edgepack.fleet.depot.stream import SHARE, Stream
from edgepack.fleet.releases.folder import Blob
from edgepack.wire.need_bitmap import pack_missing
from edgepack.wire.transfers import Need

CHUNKS, CHUNK_BYTES = 3, 65536
SHA256 = "aa" * 32
TICK_S = 0.001
"""What a look at a clock takes here: planning and going over devices take as long."""


class Clock:
    """Clock that advances by itself, as during work."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += TICK_S
        return self.now


def need(*chunks: int, under_way: bool = False) -> Need:
    files = (pack_missing(SHA256, chunks, CHUNKS),)
    return Need(digest="bb" * 32, files=files, under_way=under_way)


@pytest.fixture
def stream() -> Stream:
    bounds = tuple(range(0, CHUNK_BYTES * (CHUNKS + 1), CHUNK_BYTES))
    return Stream(Blob(path=Path("x"), sha256=SHA256, bounds=bounds), 100.0)


def test_a_word_of_each_of_many_devices_makes_a_plan_for_a_twentieth_of_the_time(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, made = Clock(), []

    def make(*arguments: object) -> Plan:
        made.append(clock.now)
        return make_plan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("edgepack.fleet.depot.stream.make_plan", make)
    for device in range(300):
        # The whole is on its way already, so nothing is ever due: no plan waits to be used up.
        stream.hear(f"d{device}", need(), need().files[0], clock.now, 0.5)
        stream.look(clock, 3.0)
    passed_s = clock.now - 100.0
    assert 2 <= len(made) <= passed_s / (SHARE * TICK_S) + 1


def test_what_devices_have_lets_more_be_sent_though_nobody_counts_it_at_once(
    stream: Stream,
) -> None:
    clock = Clock()
    for device in ("a", "b", "c"):
        stream.hear(device, need(0, 1, 2), need(0, 1, 2).files[0], clock.now, 0.5)
    clock.now += 1.0
    stream.look(clock, 3.0)
    sent = stream.take(None, 3, CHUNKS * CHUNK_BYTES, clock.now)
    stream.note_sent(None, sent, clock.now)
    assert sent == [0, 1, 2]
    assert stream.on_its_way_bytes == 3 * CHUNKS * CHUNK_BYTES
    clock.now += 1.0
    for device in ("a", "b", "c"):
        stream.hear(device, need(2, under_way=True), need(2).files[0], clock.now, 0.5)
    assert stream.window.acked_bytes == 0, "one word after the other costs nothing"
    stream.look(clock, 3.0)
    assert stream.window.acked_bytes == 2 * CHUNK_BYTES
    stream.hear("a", need(under_way=True), need().files[0], clock.now, 0.5)
    stream.hear("b", need(under_way=True), need().files[0], clock.now, 0.5)
    assert 0 < stream.look(clock, 3.0) <= (SHARE + 1) * TICK_S, (
        "it says when it is worth while to look again"
    )
    clock.now += 1.0
    stream.look(clock, 3.0)
    assert stream.window.acked_bytes == stream.window.sent_bytes


def _send_all(stream: Stream, now: float) -> list[int]:
    sent = stream.take(None, len(stream.listeners), CHUNKS * CHUNK_BYTES, now)
    stream.note_sent(None, sent, now)
    return sent


def test_who_joins_late_waits_for_nothing_that_was_sent_before(stream: Stream) -> None:
    clock = Clock()
    stream.hear("a", need(0, 1, 2), need(0, 1, 2).files[0], clock.now, 0.0)
    stream.hear("b", need(0, 1, 2), need(0, 1, 2).files[0], clock.now, 0.0)
    clock.now += 1.0
    stream.look(clock, 3.0)
    assert _send_all(stream, clock.now) == [0, 1, 2]
    clock.now += 1.0
    for number in range(100):
        late = need(0, 1, 2)
        stream.hear(f"late{number}", late, late.files[0], clock.now, busy_s=600.0)
    clock.now += 1.0
    stream.look(clock, 3.0)
    assert stream.on_its_way_bytes == 0, "what was sent before is on its way to two of 102"
    assert _send_all(stream, clock.now) == [0, 1, 2]


@pytest.mark.parametrize(("came", "again"), [(1, [0, 1]), (0, [])])
def test_the_chunk_that_came_last_tells_what_was_lost_though_the_broker_may_be_busy(
    stream: Stream, came: int, again: list[int]
) -> None:
    clock = Clock()
    for device in ("a", "b"):
        stream.hear(device, need(0, 1, 2), need(0, 1, 2).files[0], clock.now, 0.0)
    clock.now += 1.0
    stream.look(clock, 3.0)
    assert _send_all(stream, clock.now) == [0, 1, 2]
    clock.now += 2.0
    for device in ("a", "b"):
        said = msgspec.structs.replace(need(0, 1), received=came)
        latest = msgspec.structs.replace(said.files[0], latest=2)
        stream.hear(device, said, latest, clock.now, busy_s=600.0)
    clock.now += 1.0
    stream.look(clock, 3.0)
    assert _send_all(stream, clock.now) == again
