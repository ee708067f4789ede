"""Every table of README and the site is complete: a row outside would show as text."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RULE = re.compile(r"\|( *:?-+:? *\|)+")


def rows_outside(text: str) -> Iterator[str]:
    """Yield rows without a heading above."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for block in re.split(r"\n[ \t]*\n", prose):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        if rows and (len(rows) < 2 or not RULE.fullmatch(rows[1])):
            yield rows[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_row_of_a_table_has_its_heading(page: Path) -> None:
    assert list(rows_outside(page.read_text(encoding="utf-8"))) == []


def test_a_row_below_a_blank_line_is_found() -> None:
    table = "| a | b |\n| --- | --: |\n| 1 | 2 |\n"
    assert list(rows_outside(table)) == []
    assert list(rows_outside(table + "\n| 3 | 4 |\n")) == ["| 3 | 4 |"]
