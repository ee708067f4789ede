"""What people write of bandwidth, and what it means by the hour."""

from datetime import time

import pytest

from edgepack.bandwidth import UNLIMITED, parse_bandwidth
from edgepack.errors import EdgepackError


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("20MB/s", 20e6),
        ("20 MB/s", 20e6),
        ("1.5GB", 1.5e9),
        ("500kB/s", 5e5),
        ("0", 0.0),
        ("", None),
    ],
)
def test_one_rate_holds_all_day(text: str, bytes_per_s: float | None) -> None:
    bandwidth = parse_bandwidth(text)
    assert bandwidth.at(time(0, 0)) == bandwidth.at(time(23, 59)) == bytes_per_s


def test_hours_have_rates_of_their_own_past_midnight_too() -> None:
    bandwidth = parse_bandwidth("08:00-18:00=2MB/s, 22:30-06:00=0, 50MB/s")
    moments = {
        (7, 59): 50e6,
        (8, 0): 2e6,
        (17, 59): 2e6,
        (18, 0): 50e6,
        (22, 30): 0,
        (0, 0): 0,
        (5, 59): 0,
        (6, 0): 50e6,
    }
    assert {moment: bandwidth.at(time(*moment)) for moment in moments} == moments
    assert parse_bandwidth("08:00-24:00=1MB/s").at(time(23, 59)) == 1e6
    assert parse_bandwidth("08:00-18:00=1MB/s").at(time(7, 0)) is None


def test_no_limit_is_no_limit() -> None:
    assert parse_bandwidth("") == UNLIMITED
    assert UNLIMITED.now() is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fast", "no rate, such as 500kB/s, 20MB/s or 0"),
        ("-1MB/s", "no rate"),
        ("8-18=1MB/s", "no hours, such as 08:00-18:00"),
        ("08:00-25:00=1MB/s", "no hours of a day"),
        ("08:61-09:00=1MB/s", "no hours of a day"),
        ("08:00-08:00=1MB/s", "the hours end where they begin"),
        ("1MB/s,2MB/s", "two rates are without hours"),
        ("nan", "no rate"),
        ("1e400", "no rate"),
    ],
)
def test_what_is_no_bandwidth_is_refused_with_an_example(text: str, why: str) -> None:
    with pytest.raises(EdgepackError) as caught:
        parse_bandwidth(text)
    assert why in caught.value.problem
    assert "08:00-18:00=2MB/s" in (caught.value.remedy or "")
