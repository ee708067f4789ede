"""Version ranges over the numbers that runtimes, drivers and firmware give themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.agent.runtime.versions import is_within, parse_range, parse_version


@pytest.mark.parametrize(
    ("version", "version_range", "fits"),
    [
        ("1.31.1", ">=1.23,<2", True),
        ("1.9", ">=1.23", False),
        ("2", ">=1.23,<2", False),
        ("2.0.0", "==2", True),
        ("1.24.1+cpu", "==1.24.1", True),
        ("6.1.0-13-amd64", ">=6.1, <6.2", True),
        ("v2.51.0.240101", ">=2.51,!=2.52", True),
        ("1.0", "", True),
    ],
)
def test_a_version_is_compared_number_by_number(
    version: str, version_range: str, fits: bool
) -> None:
    assert is_within(version, version_range) is fits


@pytest.mark.parametrize("text", ["1.23", "~=1.2", ">=", ">=1.x", ">=1.2;<3"])
def test_what_is_no_range_is_refused_with_the_part_at_fault(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version range"):
        parse_range(text)


def test_a_version_without_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="'unknown' is not a version"):
        is_within("unknown", ">=1")


@given(st.lists(st.integers(0, 999), min_size=1, max_size=5))
def test_a_version_equals_itself_with_zeros_appended(parts: list[int]) -> None:
    text = ".".join(map(str, parts))
    assert parse_version(text) == parse_version(text + ".0.0")
    assert is_within(text, f"=={text}.0")
