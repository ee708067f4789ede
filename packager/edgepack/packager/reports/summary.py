"""What a command prints for a person."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgepack.packager.build import BuildResult
from edgepack.packager.profile.schema import Profile
from edgepack.packager.reports.numbers import (
    format_bytes,
    format_metric,
    format_placement,
    format_size_change,
)
from edgepack.packager.reports.report import VariantReport, latency_text

_PIPE_WIDTH = 160


def print_summary(result: BuildResult) -> None:
    """The table of variants, what a person should know, and the next command."""
    console = open_console()
    report = result.report
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("profile", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("accuracy kept")
    table.add_column("nodes", justify="right", no_wrap=True)
    table.add_column("latency", justify="right", no_wrap=True)
    for variant in report.variants:
        table.add_row(*_row(variant, report.model.size_bytes))
    console.print(
        f"\n[bold]{escape(report.name)} {escape(report.version)}[/] (release {report.release}), "
        f"float model {format_bytes(report.model.size_bytes)}"
    )
    console.print(table)
    for refused in report.refused:
        console.print(f"[yellow]refused[/] {escape(refused.profile)}: {escape(refused.problem)}")
    for note in _notes(result):
        console.print(f"[dim]-[/] {escape(note)}")
    console.print(f"\nHere it would run: {escape(report.choice)}")
    console.print(f"bundle  [bold]{escape(str(result.output))}[/]  sha256:{result.digest[:16]}…")
    console.print(f"report  {escape(str(result.report_html))}")
    console.print(f"next    edgepack rollout start {escape(str(result.output))} --group GROUP")


def print_profiles(profiles: Iterable[Profile]) -> None:
    """One line a profile."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("profile", "provider", "precision", "what it is for"):
        table.add_column(heading)
    for profile in profiles:
        about, device = profile.about, profile.device
        table.add_row(
            escape(profile.name),
            _short(device.provider, device.type),
            escape(about.precision),
            escape(about.summary),
        )
    open_console().print(table)


def open_console() -> Console:
    """Where the output is no terminal, lines are as long as they need to be."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _row(variant: VariantReport, source_bytes: int) -> tuple[str, ...]:
    """The cells of one variant, each of one or two lines."""
    mark = ", degraded" if variant.degraded else ""
    provider = _short(variant.provider, variant.device)
    accuracy = variant.accuracy
    latency, _, ratio = latency_text(variant).partition(" (")
    return (
        _cell(variant.name, f"{provider}, {variant.precision}{mark}"),
        _cell(
            format_bytes(variant.size_bytes), format_size_change(variant.size_bytes, source_bytes)
        ),
        _cell(
            format_metric(accuracy.value), f"{accuracy.metric} ≥ {format_metric(accuracy.budget)}"
        ),
        _cell(format_placement(variant.placement), ""),
        _cell(latency, f"{ratio.rstrip(')')} as fast" if ratio else ""),
    )


def _cell(first: str, second: str) -> str:
    return f"{escape(first)}\n[dim]{escape(second)}[/]" if second else escape(first)


def _notes(result: BuildResult) -> Iterable[str]:
    yield from result.report.notes
    for variant in result.report.variants:
        for note in variant.notes:
            yield f"{variant.name}: {note}"
        if variant.rehearsal and not variant.rehearsal.ran and variant.placement.verified:
            yield f"{variant.name}: {variant.rehearsal.because}"


def _short(provider: str, device: str) -> str:
    name = provider.removesuffix("ExecutionProvider")
    return name if name.lower() == device else f"{name} {device}"
