"""The command `edgepack fleet feedback`."""

from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.bundle.feedback import FORMAT, Evidence, Feedback
from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.completion import model_names
from edgepack.fleet.commands.options import asks
from edgepack.fleet.commands.printing import print_result
from edgepack.text import counted

_HEADINGS = (
    *("release", "variant", "hardware", "right", "serves on", "golden"),
    *("p50", "p95", "p99", "drift", "shadow"),
)


@click.command()
@click.argument("model", shell_complete=model_names)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File for edgepack build --feedback."
)
@asks
def feedback(model: str, output: Path | None, data: Path, url: str, as_json: bool) -> None:
    """Show the devices' measurements of each variant of a model, or write the measurements for the
    next build.

    \b
    Example:
      edgepack fleet feedback defects
      edgepack fleet feedback defects -o feedback.json
      edgepack build defects.onnx --profile cpu --profile qnn-htp --feedback feedback.json …
    """
    found = FleetClient(url, data=data).feedback(model)
    if output is not None:
        try:
            write_file(output, FORMAT.encode(found) + b"\n")
        except OSError as error:
            raise FleetError(
                f"cannot write {output}: {error.strerror}",
                remedy="name a file in a folder that exists and that you may write to, with -o",
            ) from error
    print_result(found, as_json, feedback_table)
    if output is not None and not as_json:
        click.echo(f"\nWrote {output}. Next: edgepack build … --feedback {output}")


def feedback_table(found: Feedback) -> RenderableType:
    """Return the measurements as a table, a row for each variant of a release on a kind of
    hardware, and below the table the features that drifted.
    """
    if not found.evidence:
        return f"no device has run {found.model} yet"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _HEADINGS:
        right = name not in _HEADINGS[:3]
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for entry in found.evidence:
        table.add_row(*map(Text, _cells(entry)))
    return Group(table, *map(Text, drift_lines(found)))


def drift_lines(found: Feedback) -> list[str]:
    """Return a line for each feature that differs on devices, and for harm."""
    lines = []
    for entry in found.evidence:
        place = f"drift: {entry.variant} {entry.version} on {entry.hardware_class}"
        for one in entry.drifted:
            changed = ", a change for good" if one.is_change else ""
            lines.append(
                f"{place}: {one.words} is {one.now:.3g} and was {one.build:.3g} at the build, "
                f"{one.difference:.2g} standard deviations ({counted(one.devices, 'device')}"
                f"{changed})"
            )
        if entry.loss is not None:
            lines.append(f"{place}: the fallen confidence costs about {entry.loss:.0%} of the task")
    return lines


def _cells(entry: Evidence) -> tuple[str, ...]:
    simulated = " (simulated)" if entry.is_simulator else ""
    fallbacks = f" ({entry.fallbacks} as a fallback)" if entry.fallbacks else ""
    return (
        entry.version,
        f"{entry.variant} on {entry.provider.removesuffix('ExecutionProvider')}",
        f"{entry.hardware_class}{simulated}",
        f"{entry.right} of {entry.probed}",
        f"{entry.chosen}{fallbacks}",
        *map(_milliseconds, (entry.probe_ms, entry.p50_ms, entry.p95_ms, entry.p99_ms)),
        "–" if entry.drift is None else f"{entry.drift:.2g}",
        f"{entry.shadow_agreed / entry.shadow_count:.1%}" if entry.shadow_count else "–",
    )


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g} ms"
