"""A table of plain text, some of it styled: what a build prints needs no more, and starts fast."""

from collections.abc import Iterator, Sequence

import click

_GAP = "  "


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]], *, right: Sequence[str]
) -> Iterator[str]:
    """Lines of a table whose cells have up to two lines, the second one dimmed.

    Args:
        headings: One for each column.
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
