"""Summary of a build for a person."""

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable

import click

from edgepack.bundle.accuracy_words import describe_float
from edgepack.number_format import (
    format_bytes,
    format_metric,
    format_size_change,
)
from edgepack.packager.cli.text_table import print_table
from edgepack.packager.pipeline.publication import BuildResult
from edgepack.packager.provenance.minimum_elements import MINIMUM_ELEMENTS
from edgepack.packager.reports.reasons import sum_up
from edgepack.packager.reports.report import VariantReport, describe_board, latency_text
from edgepack.packager.wording import short_provider
from edgepack.text import printable, printable_lines

_HEADINGS = ("profile", "size", "accuracy kept", "nodes", "latency")
_RIGHT = ("size", "nodes", "latency")
_PROBED = (
    "In this environment, by an agent's probe (single runs of golden samples; the table has the "
    "times of races)"
)


def print_summary(result: BuildResult) -> None:
    """Print the report's verdict, the variants, notes, and the next command."""
    report = result.report
    title = click.style(printable(f"{report.name} {report.version}"), bold=True)
    click.echo(
        f"\n{title} (release {report.release}), float model {format_bytes(report.model.size_bytes)}"
    )
    for response in report.responses:
        click.echo(_wrapped(f"feedback: {response}"))
    mark = click.style("warning", fg="yellow")
    for warning in report.warnings:
        click.echo(_wrapped(f"warning: {warning}").replace("warning", mark, 1))
    click.echo(f"{_wrapped(sum_up(report))}\n")
    rows = [_row(variant, report.model.size_bytes) for variant in report.variants]
    print_table(_HEADINGS, rows, right=_RIGHT)
    click.echo()
    for refused in report.refused:
        state = "not finished" if refused.is_unfinished else "refused"
        words = _wrapped(f"{state} {refused.profile}: {refused.problem}")
        click.echo(words.replace(state, click.style(state, fg="yellow"), 1))
        if refused.remedy:
            click.echo(_wrapped(f"  try: {refused.remedy}"))
    for words in report.samples.preprocessing:
        click.echo(_wrapped(f"- Evaluated with input {words}."))
    for note in _notes(result):
        click.echo(_wrapped(f"- {note}"))
    for proposal in report.proposals:
        click.echo(_wrapped(f"- {proposal.profile} may need a tighter budget: {proposal.because}."))
        click.echo("  in a profile that extends it, below [gates.accuracy]:")
        click.echo(printable_lines(proposal.line.splitlines()))
    click.echo(f"\n{_wrapped(f'{_PROBED}: {report.choice}')}")
    bundle = click.style(str(result.output), bold=True)
    click.echo(f"bundle  {bundle}  sha256:{result.digest[:16]}…")
    click.echo(f"report  {result.report_html}")
    if result.unsaid:
        said, most = len(MINIMUM_ELEMENTS) - len(result.unsaid), len(MINIMUM_ELEMENTS)
        click.echo(
            f"bill    {said} of {most} minimum elements; "
            "more with [about] and [datasets] in edgepack.toml"
        )
    click.echo(f"next    edgepack rollout start {shlex.quote(str(result.output))} --group GROUP")


def _wrapped(words: str) -> str:
    """Wrap words to the width of the terminal; a piped line stays whole, for searches.

    The words may hold names of the model's nodes and tensors, and are made printable.
    """
    words = printable(words)
    if not sys.stdout.isatty():
        return words
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(
        words,
        width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def _row(variant: VariantReport, source_bytes: int) -> tuple[tuple[str, str], ...]:
    """Return the cells of a variant, each of up to two lines."""
    mark = ", degraded" if variant.degraded else ""
    provider = short_provider(variant.provider, variant.device)
    accuracy = variant.accuracy
    beside = f", {words}" if (words := describe_float(accuracy)) else ""
    latency, _, ratio = latency_text(variant).partition(" (")
    return (
        (variant.name, f"{provider}, {variant.precision}{mark}"),
        (format_bytes(variant.size_bytes), format_size_change(variant.size_bytes, source_bytes)),
        (
            format_metric(accuracy.value),
            f"{accuracy.metric} ≥ {format_metric(accuracy.budget)}{beside}",
        ),
        (variant.placement.words, ""),
        (latency, f"{ratio.rstrip(')')} as fast" if ratio else ""),
    )


def _notes(result: BuildResult) -> Iterable[str]:
    yield from result.report.notes
    for variant in result.report.variants:
        for note in variant.notes:
            yield f"{variant.name}: {note}"
        for board in variant.boards:
            yield f"{variant.name} on board {board.board}: {describe_board(board)}."
        if variant.rehearsal and not variant.rehearsal.ran and variant.placement.verified:
            yield f"{variant.name}: {variant.rehearsal.because}"
