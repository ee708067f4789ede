"""Maintenance windows, where devices are: also over midnight and when clocks change."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from edgepack.errors import FleetError
from edgepack.fleet.rollouts.windows import parse_window, zone_of


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("text", "zone", "moment", "is_open"),
    [
        ("02:00-05:00", "", "2026-03-02T02:00", True),
        ("02:00-05:00", "", "2026-03-02T04:59", True),
        ("02:00-05:00", "", "2026-03-02T05:00", False),
        ("02:00-05:00", "", "2026-03-02T01:59", False),
        ("sat,sun 02:00-05:00", "", "2026-03-02T03:00", False),  # a Monday
        ("sat,sun 02:00-05:00", "", "2026-03-01T03:00", True),
        ("fri 22:00-06:00", "", "2026-03-07T05:59", True),  # opened on Friday
        ("fri 22:00-06:00", "", "2026-03-06T05:59", False),
        ("fri-mon 10:00-11:00", "", "2026-03-02T10:30", True),
        ("fri-mon 10:00-11:00", "", "2026-03-03T10:30", False),
        ("00:00-24:00", "", "2026-03-02T23:59", True),
    ],
)
def test_a_window_is_open_from_its_opening_to_its_closing(
    text: str, zone: str, moment: str, is_open: bool
) -> None:
    assert parse_window(text).is_open(zone, at(moment)) == is_open


def test_a_window_is_where_the_device_is_also_when_clocks_change() -> None:
    window = parse_window("02:00-05:00")
    assert window.is_open("Asia/Tokyo", at("2026-03-01T17:30"))
    assert not window.is_open("Europe/Berlin", at("2026-03-01T17:30"))
    assert window.is_open("Europe/Berlin", at("2026-01-10T03:30"))
    assert window.is_open("Europe/Berlin", at("2026-07-10T02:30"))
    assert not window.is_open("Europe/Berlin", at("2026-07-10T03:30"))


@pytest.mark.parametrize(
    "text", ["", "02:00", "2-5", "25:00-26:00", "02:60-03:00", "02:00-02:00", "xyz 02:00-03:00"]
)
def test_what_is_no_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(FleetError, match="is not a maintenance window") as refusal:
        parse_window(text)
    assert refusal.value.remedy == "--window 'mon-fri 02:00-05:00'"


@pytest.mark.parametrize(
    "name", ["Nowhere/Else", "../../etc/passwd", "/etc/passwd", "\0", "Europe"]
)
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(FleetError, match="is not a time zone"):
        zone_of(name)


def test_no_name_is_utc() -> None:
    assert zone_of("") is UTC
