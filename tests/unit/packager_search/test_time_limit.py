"""Times on the command line, and limits that searches share."""

import pytest

from edgepack.errors import BuildError
from edgepack.packager.search.time_limit import describe_duration, parse_duration, share_time


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), (" 2m ", 120.0)]
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "0s", "-1m", "10 minutes"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BuildError, match="is no time to search for") as caught:
        parse_duration(text, "--budget")
    assert caught.value.found_in == "--budget"
    assert "10m" in str(caught.value.remedy)


def test_a_search_that_ends_early_leaves_its_time_to_the_next() -> None:
    now = [0.0]
    limits = share_time(100.0, 2, lambda: now[0])
    assert next(limits).limit_s == 50.0
    now[0] = 10.0
    assert next(limits).limit_s == 90.0


def test_without_a_budget_nothing_is_limited() -> None:
    assert [limit.left_s for limit in share_time(None, 2)] == [None, None]


def test_durations_are_told_in_words() -> None:
    assert [describe_duration(s) for s in (45.0, 90.0, 600.0, 7200.0)] == [
        "45 s",
        "90 s",
        "10 min",
        "2 h",
    ]
