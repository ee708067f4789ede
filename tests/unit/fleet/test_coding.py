"""Combination of chunks into messages, and completion of every device."""

import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.fleet.depot.listener import MOST_CODED, Listener
from edgepack.fleet.depot.plan import CODED_AHEAD, Plan, Sent, make_plan
from edgepack.wire.coded import MAX_MEMBERS, WINDOW_CHUNKS

CHUNKS = 1100
NOTHING_SENT = np.zeros(CHUNKS)


def bitmap(chunks: frozenset[int]) -> bytes:
    flags = np.zeros(CHUNKS, bool)
    flags[list(chunks)] = True
    return np.packbits(flags, bitorder="little").tobytes()


def taker(device: str, *chunks: int, takes_coded: bool = True) -> Listener:
    one = Listener(device, CHUNKS)
    one.takes_coded = takes_coded
    one.hear(bitmap(frozenset(chunks)), NOTHING_SENT, 10.0, 9.5)
    return one


def plan(*listeners: Listener) -> Plan:
    return make_plan(listeners, Sent(plain=NOTHING_SENT, coded=NOTHING_SENT), 0, 1000.0)


def test_what_two_devices_lost_goes_out_as_one_message() -> None:
    planned = plan(taker("a", 3), taker("b", 7, 9))
    assert planned.coded[0].members in ((3, 7), (3, 9))
    assert not planned.broadcast
    assert not planned.single, "what is left waits for what is said then"
    (repair,) = plan(taker("a", 3), taker("b", 7)).coded
    assert sorted(repair.served) == [("a", 3), ("b", 7)]
    assert repair.members == (3, 7)


def test_what_most_lack_is_broadcast_and_what_one_lacks_goes_to_it_alone() -> None:
    assert plan(taker("a", 1), taker("b", 1), taker("c", 2)).broadcast == deque([1])
    assert plan(taker("a", 1, 5)).single == {"a": deque([1, 5])}


def test_older_devices_are_served_as_ever() -> None:
    planned = plan(
        taker("a", 1, 2, takes_coded=False),
        taker("b", 2, 3, takes_coded=False),
        *(taker(f"new-{i}", 600 + i) for i in range(4)),
    )
    assert planned.broadcast == deque([2])
    assert {name: [*chunks] for name, chunks in planned.single.items()} == {"a": [1], "b": [3]}
    assert planned.coded[0].members == (600, 601, 602, 603)


def test_a_device_with_a_limit_gets_no_coded_message() -> None:
    limited = taker("a", 1)
    limited.bytes_per_s = 1000
    planned = plan(limited, taker("b", 2), taker("c", 3), taker("d", 4))
    assert planned.single == {"a": deque([1])}
    assert [one.members for one in planned.coded] == [(2, 3, 4)]


def test_what_came_coded_in_vain_comes_as_it_is() -> None:
    deaf, others = taker("a", 1), [taker("b", 2), taker("c", 3)]
    for times in range(MOST_CODED):
        assert ("a", 1) in plan(deaf, *others).coded[0].served
        deaf.note_coded(1, 11.0 + 2 * times)
        assert "a" not in plan(deaf, *others).single, "it is on its way"
        deaf.hear(bitmap(frozenset({1})), NOTHING_SENT, 12.0 + 2 * times, 11.5 + 2 * times)
    planned = plan(deaf, *others)
    assert planned.single == {"a": deque([1])}
    assert planned.coded[0].members == (2, 3)


def test_what_is_on_its_way_to_a_device_is_not_counted_on() -> None:
    busy, others = taker("a", 1, 2), (taker("b", 1), taker("c", 9), taker("d"), taker("e"))
    busy.note_sent(1, 11.0, 100)
    (repair,) = plan(busy, *others).coded
    assert repair.members in ((2, 9), (1, 9)), "1 may not be there yet when 2 comes"


def test_many_that_lack_the_same_get_it_once_and_as_it_is() -> None:
    late = [taker(f"late-{i}", *range(40)) for i in range(3)]
    planned = plan(*late, *(taker(f"d{i}", 500 + i) for i in range(6)))
    assert planned.coded[0].members[-6:] == tuple(range(500, 506))
    assert len(planned.broadcast) + len(planned.coded) == CODED_AHEAD
    assert {*planned.broadcast} < set(range(40))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    devices=st.integers(2, 40),
    share=st.sampled_from([0.005, 0.05, 0.3, 0.9]),
    older=st.integers(0, 3),
)
def test_every_device_is_served_and_none_counts_that_lacks_two(
    seed: int, devices: int, share: float, older: int
) -> None:
    rng = random.Random(seed)
    lacks = {f"d{i}": {c for c in range(CHUNKS) if rng.random() < share} for i in range(devices)}
    lacks = {device: chunks for device, chunks in lacks.items() if chunks}
    for _ in range(20_000):
        if not lacks:
            return
        planned = plan(
            *(
                taker(device, *chunks, takes_coded=int(device[1:]) >= older)
                for device, chunks in lacks.items()
            )
        )
        assert not planned.is_done
        before = {device: frozenset(chunks) for device, chunks in lacks.items()}
        for repair in planned.coded:
            assert 2 <= len(repair.members) <= MAX_MEMBERS
            assert repair.members[-1] - repair.members[0] < WINDOW_CHUNKS
            assert len(repair.served) >= 2
            for device, index in repair.served:
                assert before[device] & set(repair.members) == {index}
                lacks[device].remove(index)
        assert len(planned.coded) <= CODED_AHEAD
        for device, chunks in lacks.items():
            chunks -= {*planned.broadcast, *planned.single.get(device, ())}
        lacks = {device: chunks for device, chunks in lacks.items() if chunks}
    pytest.fail(f"not served: {lacks}")
