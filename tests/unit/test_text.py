"""What people read: no text steers their terminal, and names come in the order they expect."""

import pytest

from edgepack.errors import FleetError
from edgepack.text import counted, natural_order, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("käfer 7 °C", "käfer 7 °C"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\r\nerror: forged", "a\\r\\nerror: forged"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202efdp.exe", "\\u202efdp.exe"),
        ("\udc80", "\\udc80"),
    ],
)
def test_what_could_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_an_error_keeps_its_three_lines_and_no_escapes() -> None:
    error = FleetError("\x1b[31mno", found_in="cam\x07", remedy="look\nagain")
    assert str(error).splitlines() == [
        "\\x1b[31mno",
        "  found in: cam\\x07",
        "  try: look",
        "again",
    ]


def test_names_with_numbers_come_in_the_order_of_the_numbers() -> None:
    names = ["sim-10", "cam", "sim-2", "7", "sim-2b", "sim-1"]
    assert sorted(names, key=natural_order) == ["cam", "sim-1", "sim-2", "sim-2b", "sim-10", "7"]


def test_one_is_not_several() -> None:
    assert [counted(number, "device") for number in (0, 1, 2)] == [
        "0 devices",
        "1 device",
        "2 devices",
    ]
