"""Chips: known chips are found by number or architecture, unknown chips are rejected."""

import pytest

from edgepack.errors import BuildError
from edgepack.packager.profiles.chips import CHIPS, find_chip


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.known_as)
def test_every_chip_is_found_by_its_number(chip: object) -> None:
    assert find_chip(soc_model=chip.soc_model) is chip  # type: ignore[attr-defined]


def test_an_architecture_names_its_first_chip_with_or_without_its_letter() -> None:
    assert find_chip(htp_arch="68").soc == find_chip(htp_arch="v68").soc == "SM8350"
    assert find_chip(soc_model="60", htp_arch="73").soc == "SC8380XP"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"htp_arch": "74"}, "no chip is known with htp_arch '74'"),
        ({"soc_model": "60", "htp_arch": "68"}, "with soc_model '60' and htp_arch '68'"),
        ({}, "no chip to compile for is named"),
    ],
)
def test_an_unknown_chip_is_refused_with_the_table(asked: dict[str, str], message: str) -> None:
    with pytest.raises(BuildError, match=message) as caught:
        find_chip(**asked)
    assert "v79 69 (Snapdragon 8 Elite)" in str(caught.value.remedy)
