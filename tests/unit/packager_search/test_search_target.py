"""After a refusal by the held-out samples the search asks for more, by how much they missed."""

import math

import pytest

from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.search.search_target import MOST_TIMES, stricter_target


def _verdict(spare: float, noise: float = 0.05) -> Verdict:
    """With a budget of .98; `spare` is 1 at no loss."""
    return Verdict(
        metric="explained_variance",
        value=0.98 + 0.02 * spare,
        float_value=1.0,
        budget=0.98,
        passed=spare >= 0.0,
        spare=spare,
        noise=noise,
    )


def test_a_small_miss_asks_for_little_more() -> None:
    stricter = stricter_target(0, _verdict(0.2), _verdict(-0.005), None)
    assert stricter.is_in_proportion
    assert stricter.share == pytest.approx(math.sqrt(0.9 / 1.005))
    assert stricter.target.noise_max == pytest.approx(0.05 * stricter.share)
    assert stricter.target.reserve == pytest.approx(1.0 - 0.8 * 0.9 / 1.005)


def test_what_meets_the_target_is_expected_to_leave_a_tenth_of_the_held_out_budget() -> None:
    search, missed = _verdict(0.2), _verdict(-0.25)
    stricter = stricter_target(0, search, missed, None)
    shrunk = (1.0 - stricter.target.reserve) / (1.0 - search.spare)
    assert 1.0 - (1.0 - missed.spare) * shrunk == pytest.approx(0.1)


@pytest.mark.parametrize("turn", range(MOST_TIMES))
def test_the_larger_the_miss_the_more_is_asked_for_and_never_more_than_the_fixed_step(
    turn: int,
) -> None:
    search = _verdict(0.3)
    fixed = stricter_target(turn, search, None, None)
    asked = [stricter_target(turn, search, _verdict(spare), None) for spare in (0.0, -0.3, -1, -9)]
    shares = [one.share for one in asked]
    assert shares == sorted(shares, reverse=True)
    assert all(fixed.share <= share < 1.0 for share in shares)
    assert all(one.target.reserve <= fixed.target.reserve for one in asked)
    assert asked[-1] == fixed
    assert not fixed.is_in_proportion


def test_a_second_small_miss_asks_for_a_larger_margin_and_the_last_time_for_half_the_error() -> (
    None
):
    search, missed = _verdict(0.6), _verdict(-0.005)
    first = stricter_target(0, search, missed, None)
    second = stricter_target(1, search, missed, first)
    last = stricter_target(2, search, missed, second)
    assert first.share > second.share > last.share
    assert (last.share, last.target.reserve) == (0.5, 0.9)


def test_after_fixed_steps_the_last_one_is_the_smaller() -> None:
    search, missed = _verdict(0.6), _verdict(-9.0)
    second = stricter_target(1, search, missed, stricter_target(0, search, missed, None))
    assert stricter_target(2, search, missed, second).share == 0.7
