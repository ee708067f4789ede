"""A device's readings of itself, from real files and from invalid files."""

from pathlib import Path

import pytest

from edgepack.agent.telemetry.readings import highest_temperature_c, memory_bytes


def zone(folder: Path, number: int, content: bytes) -> None:
    place = folder / "class" / "thermal" / f"thermal_zone{number}"
    place.mkdir(parents=True)
    (place / "temp").write_bytes(content)


def test_the_hottest_sensor_counts_and_broken_ones_do_not(tmp_path: Path) -> None:
    assert highest_temperature_c(tmp_path) is None
    for number, content in enumerate(
        (b"41500\n", b"55250\n", b"", b"hot\n", b"999999999\n", b"-274000\n", b"9" * 1000)
    ):
        zone(tmp_path, number, content)
    assert highest_temperature_c(tmp_path) == 55.25


def test_memory_of_this_process_is_read_and_grows_with_it() -> None:
    before = memory_bytes()
    held = bytearray(b"x" * 64_000_000)
    assert memory_bytes() - before > 32_000_000
    assert len(held) == 64_000_000


@pytest.mark.parametrize("content", ["", "12", "12 many 3"])
def test_what_is_no_number_is_not_known(tmp_path: Path, content: str) -> None:
    path = tmp_path / "statm"
    path.write_text(content)
    assert memory_bytes(path) == 0
    assert memory_bytes(tmp_path / "none") == 0
