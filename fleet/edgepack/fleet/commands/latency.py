"""The command `edgepack fleet latency`."""

import time
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.completion import group_names, model_names
from edgepack.fleet.commands.options import Duration, asks
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.latency import (
    TEXT_COLUMNS,
    Dimension,
    LatencyPart,
    LatencyQuestion,
    LatencyReport,
)
from edgepack.fleet.documents.wording import stamp
from edgepack.text import counted

_DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
_DEFAULT = ",".join(LatencyQuestion().by)


class Dimensions(click.ParamType[tuple[Dimension, ...]]):
    """Latency dimensions, separated by commas."""

    name = "words"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Dimension, ...]:
        if isinstance(value, tuple):
            return value
        words = {word.strip() for word in value.split(",") if word.strip()}
        if unknown := sorted(words - set(_DIMENSIONS)):
            self.fail(f"{unknown[0]!r} is none of {', '.join(_DIMENSIONS)}", param, ctx)
        return tuple(name for name in _DIMENSIONS if name in words)


@click.command()
@click.argument("model", default="", shell_complete=model_names)
@click.option(
    "--group",
    default="",
    shell_complete=group_names,
    help="Only of devices that were in this group.",
)
@click.option(
    "--where",
    default="",
    help="Only those that this means: model, version, variant, provider …, labels of devices, or "
    "device=cam-7.",
)
@click.option(
    "--since", type=Duration(), default="24h", show_default=True, help="From so long ago."
)
@click.option(
    "--until", type=Duration(), default="0m", show_default=True, help="Until so long ago."
)
@click.option(
    "--by",
    type=Dimensions(),
    default=_DEFAULT,
    show_default=True,
    help="What to tell apart; group, rollout and time, too.",
)
@asks
def latency(
    model: str,
    group: str,
    where: str,
    since: float,
    until: float,
    by: tuple[Dimension, ...],
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Show percentiles of real inferences, over any devices and any time.

    \b
    Example:
      edgepack fleet latency defects --since 7d --by version,hardware_class
      edgepack fleet latency --where device=cam-7
      edgepack fleet latency --where 'site=berlin and provider!=CPUExecutionProvider' --json
    """
    now = time.time()
    found = FleetClient(url, data=data).latency(
        model,
        group=group,
        where=where,
        since=now - since,
        until=now - until if until else None,
        by=by,
    )
    print_result(found, as_json, lambda shown: latency_table(shown, by, now))


def latency_table(report: LatencyReport, by: tuple[Dimension, ...], now: float) -> RenderableType:
    """Return the latencies as a table, a row for each part."""
    untold = (
        f"{counted(report.untold, 'inference')} left out: the labels of their devices are not told "
        "apart"
        if report.untold
        else ""
    )
    notes = "; ".join(filter(None, (untold, report.note)))
    if not report.parts:
        return f"no latency was reported in that time{'; ' * bool(notes)}{notes}"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for word in by:
        table.add_column(word.replace("_", " "), overflow="fold")
    titles = ("p50, ms", "p95, ms", "p99, ms", "greatest, ms", "inferences", "failures")
    of_texts = TEXT_COLUMNS if any(part.texts for part in report.parts) else ()
    for title in (*titles, *of_texts):
        table.add_column(title, justify="right")
    for part in report.parts:
        numbers = (part.p50_ms, part.p95_ms, part.p99_ms, part.max_ms)
        table.add_row(
            *(_cell(part, name, now) for name in by),
            *(f"{number:.2f}" for number in numbers),
            f"{part.inferences:,}",
            f"{part.failures:,}",
            *(part.texts.words if part.texts else ()),
        )
    return Group(table, notes) if notes else table


def _cell(part: LatencyPart, name: Dimension, now: float) -> Text:
    if name == "time":
        return Text(stamp(part.at or 0.0, now))
    word = getattr(part, name) or "–"
    return Text(f"{word} (simulated)" if name == "provider" and part.is_simulator else word)
