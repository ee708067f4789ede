"""What the depot sends, and how fast."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.fleet.depot.pace import LEAST_STREAM, MOST_STREAM, Pace, wait_before
from edgepack.fleet.depot.plan import Lack, plan_pass


def lack(device: str, *chunks: int, said_at: float = 10.0) -> Lack:
    return Lack(device=device, chunks=frozenset(chunks), said_at=said_at)


def test_what_several_lack_is_broadcast_once_and_what_one_lacks_goes_to_it_alone() -> None:
    planned = plan_pass([lack("a", 0, 1, 5), lack("b", 1, 2), lack("c", 1, 2)], {}, 0.5)
    assert planned.broadcast == (1, 2)
    assert planned.repairs == {"a": (0, 5)}


def test_a_chunk_broadcast_after_the_device_spoke_is_on_its_way_and_not_sent_again() -> None:
    planned = plan_pass([lack("a", 0, 1, said_at=10.0), lack("b", 0, 1)], {0: 12.0, 1: 9.0}, 0.5)
    assert planned.broadcast == (1,)


def test_a_device_that_spoke_again_after_the_broadcast_is_answered() -> None:
    assert plan_pass([lack("a", 0, said_at=14.0)], {0: 12.0}, 0.5).repairs == {"a": (0,)}


@settings(deadline=None)
@given(
    lacks=st.dictionaries(
        st.sampled_from("abcdefgh"), st.frozensets(st.integers(0, 40)), min_size=1
    )
)
def test_a_pass_sends_all_that_is_lacked_and_no_chunk_twice(
    lacks: dict[str, frozenset[int]],
) -> None:
    planned = plan_pass(
        [Lack(device=d, chunks=chunks, said_at=0.0) for d, chunks in lacks.items()], {}, 0.5
    )
    for device, chunks in lacks.items():
        assert chunks == frozenset(planned.repairs.get(device, ())) | (
            chunks & set(planned.broadcast)
        )
    sent = [*planned.broadcast, *(c for chunks in planned.repairs.values() for c in chunks)]
    assert len(sent) == len(set(sent)) <= 41, "a pass costs the file's size, not the devices'"


def test_loss_slows_the_depot_down_and_its_absence_speeds_it_up() -> None:
    pace = Pace(stream_bytes_per_s=1e6)
    assert pace.adjusted() == pace, "nothing heard, nothing changed"
    assert pace.heard("a", 60, 40).adjusted().bytes_per_s(1) == pytest.approx(0.6e6)
    assert pace.heard("a", 0, 100).adjusted().bytes_per_s(1) == pytest.approx(0.256e6)
    assert pace.heard("a", 100, 0).adjusted().bytes_per_s(1) > 1e6
    assert pace.heard("a", 0, 0).adjusted() == pace, "a device that awaited nothing"
    assert pace.heard("a", 0, 9).heard("a", 9, 0).adjusted().bytes_per_s(1) > 1e6, "its newest word"


def test_one_device_slows_no_other_down_and_half_of_them_do() -> None:
    pace = Pace(stream_bytes_per_s=1e6).heard("liar", 0, 10**15)
    assert pace.heard("a", 40, 0).heard("b", 40, 0).adjusted().bytes_per_s(1) > 1e6
    assert pace.heard("a", 40, 0).adjusted().bytes_per_s(1) < 1e6


def test_many_listeners_share_what_the_broker_can_send_on() -> None:
    pace = Pace(stream_bytes_per_s=8e6, egress_bytes_per_s=100e6)
    assert pace.bytes_per_s(1) == 8e6
    assert pace.bytes_per_s(100) == 1e6
    assert pace.bytes_per_s(100_000) == LEAST_STREAM


@settings(deadline=None)
@given(reports=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2**53)), max_size=100))
def test_the_pace_stays_within_its_bounds_whatever_devices_say(
    reports: list[tuple[int, int]],
) -> None:
    pace = Pace()
    for received, lost in reports:
        pace = pace.heard("a", received, lost).adjusted()
        assert LEAST_STREAM <= pace.bytes_per_s(100) <= pace.bytes_per_s(1) <= MOST_STREAM


def test_waiting_keeps_the_rate() -> None:
    assert wait_before(2_000_000, 1.0, 1e6) == pytest.approx(1.0)
    assert wait_before(100, 1.0, 1e6) == 0.0
