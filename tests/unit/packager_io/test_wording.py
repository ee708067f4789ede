"""Numbers with their nouns."""

import pytest

from edgepack.text import counted


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (counted(0, "node"), "0 nodes"),
        (counted(1, "node"), "1 node"),
        (counted(12, "node"), "12 nodes"),
    ],
)
def test_the_noun_fits_its_number(words: str, expected: str) -> None:
    assert words == expected
