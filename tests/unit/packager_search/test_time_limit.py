"""Times on the command line, and limits that searches share."""

import subprocess
import sys

import pytest

from edgepack.errors import BuildError
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.search.time_limit import (
    TimeLimit,
    describe_duration,
    parse_duration,
    share_time,
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), (" 2m ", 120.0)]
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "0s", "-1m", "10 minutes"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BuildError, match="is not a time to search for") as caught:
        parse_duration(text, "--budget")
    assert caught.value.found_in == "--budget"
    assert "10m" in str(caught.value.remedy)


class _Clock:
    """Goes on as a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_search_that_ends_early_leaves_its_time_to_the_next() -> None:
    clock = _Clock()
    limits = share_time(100.0, [False, False], Deadline(100.0, clock), clock)
    first = next(limits)
    assert first.limit_s == pytest.approx((100.0 - 3 * 4.0) / 2), "4 % each for what comes after"
    clock.now_s = 10.0
    first.check()
    assert next(limits).limit_s == pytest.approx(90.0), "nothing came after the first one's search"


def test_what_comes_after_a_search_is_left_time_for_as_long_as_it_took_before() -> None:
    clock = _Clock()
    limits = share_time(180.0, [False] * 3, Deadline(160.0, clock), clock)
    first = next(limits)
    clock.now_s = 30.0
    first.check()
    clock.now_s = 45.0
    second = next(limits)
    assert second.limit_s == pytest.approx((160.0 - 45.0 - 3 * 15.0) / 2)
    clock.now_s = 80.0
    second.check()
    clock.now_s = 150.0
    third = next(limits)
    assert third.limit_s == 0.0, "nothing is left to search by"
    assert (third.shared_s, third.left_s) == (180.0, 0.0)


def test_without_a_budget_nothing_is_limited() -> None:
    assert [limit.left_s for limit in share_time(None, [False, True], Deadline())] == [None, None]


def test_durations_are_told_in_words() -> None:
    assert [describe_duration(s) for s in (45.0, 90.0, 600.0, 7200.0)] == [
        "45 s",
        "90 s",
        "10 min",
        "2 h",
    ]


def test_the_builds_end_holds_before_the_first_candidate_too() -> None:
    clock = _Clock()
    limit = TimeLimit(10.0, clock, build=Deadline(20.0, clock))
    clock.now_s = 15.0
    limit.check()
    limit.enforce()
    with limit.finishing():
        limit.check()
    clock.now_s = 20.0
    with limit.finishing(), pytest.raises(OutOfTimeError):
        limit.check()


def test_a_simulator_is_left_a_quarter_of_its_profiles_time() -> None:
    clock = _Clock()
    limits = share_time(100.0, [False, True], Deadline(100.0, clock), clock)
    plain = next(limits)
    clock.now_s = 20.0
    plain.check()
    simulated = next(limits)
    assert simulated.limit_s == pytest.approx(0.75 * 80.0)
    assert simulated.profile.left_s == pytest.approx(80.0)


def test_what_is_known_to_follow_a_search_ends_it_early_enough() -> None:
    clock = _Clock()
    limit = TimeLimit(70.0, clock, after_s=10.0)
    limit.reserve(5.0)
    assert limit.left_s == 70.0, "there is time for that already"
    limit.reserve(30.0)
    assert (limit.left_s, limit.profile.left_s) == (50.0, 80.0)


def test_a_child_gets_no_more_time_than_is_left() -> None:
    clock = _Clock()
    deadline = Deadline(20.0, clock)
    assert deadline.timeout_s(600.0) == 20.0
    assert deadline.timeout_s(5.0) == 5.0
    assert deadline.at_least(30.0).left_s == 30.0
    clock.now_s = 20.0
    with pytest.raises(OutOfTimeError):
        deadline.timeout_s(600.0)
    with pytest.raises(OutOfTimeError):
        deadline.run_in_time(dict)({})


def test_what_does_not_fit_into_the_time_is_not_begun() -> None:
    clock = _Clock()
    limit = TimeLimit(10.0, clock)
    limit.check_fits(11.0)
    limit.enforce()
    clock.now_s = 6.0
    limit.check()
    limit.check_fits(3.0)
    with pytest.raises(OutOfTimeError):
        limit.check_fits(5.0)


_COMPUTES = """
import io
import signal
import zipfile
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.search.time_limit import TimeLimit

def compute():
    while True:
        try:
            sum(range(1000))
        except Exception:  # as a library does
            pass

limit = TimeLimit(0.2)
limit.enforce()
try:
    with Deadline(0.4).interrupting():
        try:
            with limit.interrupting():
                compute()
        except OutOfTimeError:
            print("stopped")
        with Deadline(60.0).interrupting():
            compute()
except OutOfTimeError:
    print("stopped", signal.getitimer(signal.ITIMER_REAL)[0])
try:
    with Deadline(0.2).interrupting(), zipfile.ZipFile(io.BytesIO(), "w") as file:
        half = file.open("half", "w")  # for which the end of the block raises ValueError
        compute()
except OutOfTimeError:
    print("stopped")
"""


def test_a_computation_under_way_is_stopped_at_the_nearest_end_of_its_time() -> None:
    """In a process of its own: pytest's timeout has the timer of this one."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPUTES], capture_output=True, text=True, timeout=400, check=True
    )
    assert done.stdout == "stopped\nstopped 0.0\nstopped\n"
