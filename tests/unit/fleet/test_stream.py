"""What a file's many listeners cost: they are gone over now and then, not at each word of one."""

from pathlib import Path

import pytest

from edgepack.fleet.depot.plan import Plan, make_plan
from edgepack.fleet.depot.stream import SHARE, Stream
from edgepack.fleet.releases.folder import Blob
from edgepack.wire.messages import Need
from edgepack.wire.need_bitmap import pack_missing

CHUNKS, CHUNK_BYTES = 3, 65536
SHA256 = "aa" * 32
TICK_S = 0.001
"""What a look at a clock takes here: planning and going over devices take as long."""


class Clock:
    """Goes on by itself, as one does while somebody works."""

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
