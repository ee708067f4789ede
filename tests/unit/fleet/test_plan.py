"""Plan of the depot's sends, and their amount."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.fleet.depot.listener import Listener
from edgepack.fleet.depot.plan import Plan, Sent, make_plan
from edgepack.fleet.depot.window import (
    FIRST_BYTES,
    LEAST_BYTES,
    OWN_BYTES,
    SHARED_BYTES,
    Window,
)

CHUNKS = 41
NOTHING_SENT = np.zeros(CHUNKS)


def bitmap(*chunks: int) -> bytes:
    flags = np.zeros(CHUNKS, bool)
    flags[list(chunks)] = True
    return np.packbits(flags, bitorder="little").tobytes()


def sent(**at: float) -> np.ndarray:
    times = np.zeros(CHUNKS)
    for name, moment in at.items():
        times[int(name.removeprefix("c"))] = moment
    return times


def listener(device: str, *chunks: int, said_at: float = 10.0) -> Listener:
    one = Listener(device, CHUNKS)
    one.hear(bitmap(*chunks), NOTHING_SENT, said_at, said_at - 0.5)
    return one


def plan(*listeners: Listener, sent_at: np.ndarray = NOTHING_SENT, cursor: int = 0) -> Plan:
    return make_plan(listeners, Sent(plain=sent_at, coded=NOTHING_SENT), cursor, 1000.0)


def test_what_several_lack_is_broadcast_once_and_what_one_lacks_goes_to_it_alone() -> None:
    planned = plan(listener("a", 0, 1, 5), listener("b", 1, 2), listener("c", 1, 2))
    assert planned.broadcast == deque([1, 2])
    assert planned.single == {"a": deque([0, 5])}


def test_a_broadcast_goes_on_where_it_was() -> None:
    both = (listener("a", 1, 2, 3), listener("b", 1, 2, 3))
    assert plan(*both, cursor=3).broadcast == deque([3, 1, 2])


def test_a_device_with_a_limit_is_served_alone() -> None:
    limited = listener("a", 1, 2)
    limited.bytes_per_s = 1000
    planned = plan(limited, listener("b", 1, 2), listener("c", 1))
    assert planned.broadcast == deque([1])
    assert planned.single == {"a": deque([1, 2]), "b": deque([2])}


def test_a_chunk_broadcast_after_the_device_spoke_is_on_its_way_and_not_sent_again() -> None:
    both = (listener("a", 0, 1, said_at=10.0), listener("b", 0, 1, said_at=10.0))
    assert plan(*both, sent_at=sent(c0=12.0, c1=9.0)).broadcast == deque([1])


def test_a_need_that_waited_for_long_asks_for_nothing_twice() -> None:
    late = Listener("a", CHUNKS)
    late.hear(bitmap(0), sent(c0=12.0), 12.25, 11.75)
    assert not plan(late, sent_at=sent(c0=12.0)).single


def test_what_is_sent_again_while_its_first_copy_comes_tells_nothing_of_what_is_between_them() -> (
    None
):
    one = Listener("a", CHUNKS)
    # 0 went out at 10 and again at 13; 1 at 12 is on its way, and was not lost.
    one.hear(bitmap(1, 2), sent(c0=13.0, c1=12.0, c2=9.0), 14.0, latest=(0, [10.0, 13.0]))
    assert plan(one, sent_at=sent(c0=13.0, c1=12.0, c2=9.0)).single == {"a": deque([2])}
    one.hear(bitmap(1, 2), sent(c0=13.0, c1=12.0, c2=9.0), 15.0, latest=(0, [10.0, 13.0]))
    assert plan(one, sent_at=sent(c0=13.0, c1=12.0, c2=9.0)).single == {"a": deque([1, 2])}


def test_a_device_that_spoke_again_after_the_broadcast_is_answered() -> None:
    times = sent(c0=12.0)
    late = Listener("a", CHUNKS)
    late.hear(bitmap(0), times, 14.0, 13.5)
    assert plan(late, sent_at=times).single == {"a": deque([0])}


def test_while_chunks_come_only_what_was_sent_before_them_is_lost() -> None:
    times = sent(c0=11.0, c1=12.0, c2=13.0, c3=14.0)
    one = listener("a", 0, 1, 2, 3)
    one.hear(bitmap(0, 2, 3), times, 20.0)
    assert plan(one, sent_at=times).single == {"a": deque([0])}
    assert one.loss == 0.5
    assert one.known_until == 12.0


def test_what_went_out_by_its_own_topic_is_on_its_way_too() -> None:
    one = listener("a", 0, 1, 2)
    for index in (0, 1, 2):
        one.note_sent(index, 11.0, 100)
    assert not plan(one).single
    assert one.own.sent_bytes - one.own.acked_bytes == 300
    one.hear(bitmap(0, 2), NOTHING_SENT, 20.0)
    assert plan(one).single == {"a": deque([0])}
    assert one.own.sent_bytes - one.own.acked_bytes == 100


@given(
    lacks=st.dictionaries(
        st.sampled_from("abcdefgh"), st.frozensets(st.integers(0, CHUNKS - 1)), min_size=1
    ),
    cursor=st.integers(0, CHUNKS),
)
def test_a_plan_has_all_that_is_lacked_and_no_chunk_twice(
    lacks: dict[str, frozenset[int]], cursor: int
) -> None:
    planned = plan(*(listener(name, *chunks) for name, chunks in lacks.items()), cursor=cursor)
    for device, chunks in lacks.items():
        single = frozenset(planned.single.get(device, ()))
        assert chunks == single | (chunks & set(planned.broadcast))
    everything = [*planned.broadcast, *(c for some in planned.single.values() for c in some)]
    assert len(everything) == len(set(everything)) <= CHUNKS, "it costs the file's size"


def test_a_window_opens_with_what_came_and_closes_with_what_was_lost() -> None:
    window = Window()
    assert window.room(1, 5.0)
    window.sent_bytes = FIRST_BYTES
    assert not window.room(1, 5.0)
    assert window.full_since == 5.0
    window.acknowledge(FIRST_BYTES, [0.0])
    assert window.room(1, 6.0)
    assert window.size_bytes == 2 * FIRST_BYTES
    window.sent_bytes += 100
    window.acknowledge(window.sent_bytes, [0.5])
    assert window.size_bytes == pytest.approx(FIRST_BYTES)
    window.sent_bytes += 100
    window.acknowledge(window.sent_bytes, [0.05])
    assert window.size_bytes > FIRST_BYTES, "a link that loses a little is no reason to slow down"


def test_one_device_that_lost_everything_slows_no_other_down() -> None:
    window = Window()
    window.sent_bytes = 1000
    window.acknowledge(1000, [1.0, 0.0, 0.0])
    assert window.size_bytes > FIRST_BYTES


def test_many_devices_share_what_a_broker_holds() -> None:
    window = Window()
    window.size_bytes = 1e9
    window.sent_bytes = SHARED_BYTES + OWN_BYTES - 1
    assert window.room(1, 0.0)
    assert not window.room(100, 0.0)
    window.sent_bytes = OWN_BYTES
    assert window.room(10_000, 0.0)


@given(reports=st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 1)), max_size=100))
def test_a_window_stays_within_its_bounds(reports: list[tuple[int, float]]) -> None:
    window = Window()
    for came, loss in reports:
        window.sent_bytes += came
        window.acknowledge(window.sent_bytes, [loss])
        assert LEAST_BYTES <= window.size_bytes <= SHARED_BYTES + OWN_BYTES
