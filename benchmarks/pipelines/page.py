"""Results of `make bench-pipelines`, and their page."""

import msgspec

from benchmarks.pipelines.beams import Beams

_HEAD = """# Pipelines, measured

Written by `make bench-pipelines` from [`pipelines.json`](pipelines.json). See
[pipelines](../../how-to/pipelines.md) and [speech](../../how-to/speech.md).

## Pages of text

PP-OCRv4 reads {pages} drawn pages of 400 x 200 pixels, in a dozen fonts. RapidOCR 1.4.4 reads
{lines} lines there. *Equal* counts the lines that a variant reads in the same way. Stages of fixed
size are 320 x 640 and 48 x 640, with a mask of their padding. Quantized stages were kept, whatever
they lose: the gate of a build makes them float again.

*CPU time* is the processor time of a page on one thread, relative to RapidOCR ({rapidocr:.0f} ms).
Variants for an NPU run on the CPU there, which says nothing of their speed on the NPU. QNN's
simulator read the first pages, with {simulated_lines} lines. No chip was seen.

| variant | equal | equal but for spaces | equal on the simulator | CPU time |
| --- | --- | --- | --- | --- |
"""
_NAMES = {
    "fp32": "floats, free size",
    "fixed": "floats, fixed size with a mask",
    "qnn-htp": "`qnn-htp`",
    "parts": "`qnn-htp` with `weight_parts = 2`",
}
_BEAMS = """
## Beams

A small model of speech with drawn weights writes texts of drawn features. *Rows* counts what the
decoders compute for a token of the text, the start of the text included. A larger model spends
most of its time there; here the search of beams counts, too.

| beams | rows | processor time of a token |
| --- | --- | --- |
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a variant.

    Attributes:
        variant: Its name.
        equal: Lines that are equal to RapidOCR's.
        equal_without_spaces: Lines that are equal but for spaces.
        page_ms: Processor time of a page.
        on_simulator: Lines that are equal on the simulator, on the first pages; None for a CPU.
    """

    variant: str
    equal: int
    equal_without_spaces: int
    page_ms: float
    on_simulator: int | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All results.

    Attributes:
        pages, lines: Pages that are read, and RapidOCR's lines there.
        simulated_lines: Lines of the pages that the simulator reads.
        rapidocr_ms: RapidOCR's processor time of a page.
        rows: Results by variant.
        beams: Work by number of beams.
    """

    pages: int
    lines: int
    simulated_lines: int
    rapidocr_ms: float
    rows: tuple[Row, ...]
    beams: tuple[Beams, ...]


def page(measured: Measured) -> str:
    """Return the page.

    Args:
        measured: The results.
    """
    text = _HEAD.format(
        pages=measured.pages,
        lines=measured.lines,
        rapidocr=measured.rapidocr_ms,
        simulated_lines=measured.simulated_lines,
    )
    rows = {row.variant: row for row in measured.rows}
    for name, words in _NAMES.items():
        if name not in rows:
            continue
        row = rows[name]
        seen = (
            "–" if row.on_simulator is None else f"{row.on_simulator} of {measured.simulated_lines}"
        )
        text += (
            f"| {words} | {row.equal} of {measured.lines} | {row.equal_without_spaces} | {seen} "
            f"| {row.page_ms / measured.rapidocr_ms:.2f} |\n"
        )
    first = measured.beams[0]
    text += _BEAMS
    for one in measured.beams:
        text += (
            f"| {one.beams} | {one.rows:.2f} ({one.rows / first.rows:.1f} times) | {one.ms:.2f} ms "
            f"({one.ms / first.ms:.1f} times) |\n"
        )
    return text
