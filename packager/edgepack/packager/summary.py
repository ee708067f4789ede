"""What a command prints for a person."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgepack.packager.build import BuildResult
from edgepack.packager.profile_schema import Profile
from edgepack.packager.report import VariantReport, latency_text
from edgepack.packager.report_format import (
    format_accuracy,
    format_bytes,
    format_placement,
    format_ratio,
)

_PIPE_WIDTH = 160


def print_summary(result: BuildResult) -> None:
    """The table of variants, what a person should know, and the next command."""
    console = _console()
    report = result.report
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("profile", "provider", "precision"):
        table.add_column(heading)
    table.add_column("size", justify="right")
    table.add_column("accuracy kept")
    table.add_column("nodes", justify="right")
    table.add_column("latency", justify="right")
    for variant in report.variants:
        table.add_row(*map(escape, _row(variant, report.model.size_bytes)))
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
    _console().print(table)


def _console() -> Console:
    """Where the output is no terminal, lines are as long as they need to be."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _row(variant: VariantReport, source_bytes: int) -> tuple[str, ...]:
    ratio = format_ratio(variant.size_bytes, source_bytes)
    return (
        variant.name,
        _short(variant.provider, variant.device),
        variant.precision + (" (degraded)" if variant.degraded else ""),
        f"{format_bytes(variant.size_bytes)} ({ratio})",
        format_accuracy(variant.accuracy),
        format_placement(variant.placement),
        latency_text(variant),
    )


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
