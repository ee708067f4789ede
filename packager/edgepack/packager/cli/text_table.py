"""Table of plain text, partly styled: enough for a build's output, and quick to import."""

import shutil
import sys
from collections.abc import Iterator, Sequence

import click

from edgepack.text import printable

_GAP = "  "

Cells = Sequence[tuple[str, str]]
"""A row: first and second line of each cell, "" for none."""


def plain(*cells: str) -> Cells:
    """Return a row of a single line."""
    return [(cell, "") for cell in cells]


def print_table(headings: Sequence[str], rows: Sequence[Cells], *, right: Sequence[str]) -> None:
    """Print a table; if wider than the terminal, print a list with a line for each cell.

    Cells may hold another party's text, and are made printable.

    Args:
        headings, rows, right: See `text_table`.
    """
    rows = [[(printable(first), printable(second)) for first, second in row] for row in rows]
    lines = list(text_table(headings, rows, right=right))
    is_terminal = sys.stdout.isatty()
    if is_terminal and max(map(_length, lines)) > shutil.get_terminal_size().columns:
        lines = list(text_list(headings, rows))
    for line in lines:
        click.echo(line)


def text_list(headings: Sequence[str], rows: Sequence[Cells]) -> Iterator[str]:
    """Yield lines of the same facts, a fact per line.

    Args:
        headings, rows: See `text_table`; the first cell of a row is its title.
    """
    width = max(map(len, headings[1:]), default=0)
    for (first, second), *cells in rows:
        yield click.style(f" {first}", bold=True) + (f"  {second}" if second else "")
        for heading, (value, more) in zip(headings[1:], cells, strict=True):
            if value:
                yield f"   {heading.ljust(width)}{_GAP}{value}" + (f", {more}" if more else "")


def _length(line: str) -> int:
    return len(click.unstyle(line))


def text_table(
    headings: Sequence[str], rows: Sequence[Cells], *, right: Sequence[str]
) -> Iterator[str]:
    """Yield lines of a table with cells of up to two lines, the second line dimmed.

    Args:
        headings: A heading for each column.
        rows: Cells of each row: first and second line, "" for none.
        right: Headings of the columns that are aligned to the right.
    """
    widths = [
        max(len(line) for line in (heading, *(line for row in rows for line in row[column])))
        for column, heading in enumerate(headings)
    ]

    def join(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, heading, width in zip(cells, headings, widths, strict=True)
        )
        return " " + _GAP.join(aligned).rstrip()

    yield click.style(join(headings), bold=True)
    yield " " + "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    for row in rows:
        yield join([first for first, _ in row])
        if any(second for _, second in row):
            yield click.style(join([second for _, second in row]), dim=True)
