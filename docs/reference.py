"""Writes the generated pages of the reference; `--check` only compares.

`commands.md` comes from the programs' own `--help`, `metrics.md` from the table of metrics.

python docs/reference.py [--check]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from edgepack.agent.cli import cli as agent
from edgepack.cli import cli as host
from edgepack.metrics.table import ATTRIBUTES, BOUNDS_S, CLASS, RELEASE, TABLE, label

REFERENCE = Path(__file__).parent / "reference"
COMMANDS = """# Commands

Every command and option, made from `--help` by `make docs`. Every command that reports something
takes `--json`. Exit codes: 0 done, 1 refused or failed, 2 wrong usage ([more](exit-codes.md)).
"""
METRICS = """# Metrics

All metrics of devices and of the fleet, made by `make docs` from the table in
`edgepack.metrics.table`. Names follow OpenTelemetry's semantic conventions; names without a
convention begin with `edgepack.`. The second name is the name in Prometheus; a histogram has
`_bucket`, `_sum` and `_count`. [How to collect the metrics](../how-to/monitor.md).

A metric exists on the device, in the fleet or in both: the last columns have the source of the
numbers, and the attributes. The attributes of a *release* are `edgepack.model`, `edgepack.version`,
`edgepack.digest` and `edgepack.provider`; those of a *class* are `edgepack.hardware.class` and
`edgepack.simulator`. The fleet counts releases by class, never by device; gauges of the fleet are
the mean and the maximum.

| name | kind | unit | meaning | device | fleet |
| --- | --- | --- | --- | --- | --- |
"""


def sections(command: click.Command, name: str) -> Iterator[str]:
    """The help of a command and of all below it, as Markdown sections."""
    context = click.Context(command, info_name=name, terminal_width=90, max_content_width=90)
    yield f"\n## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from sections(found, f"{name} {child}")


def commands() -> str:
    """Return the page of commands."""
    return COMMANDS + "".join([*sections(host, "edgepack"), *sections(agent, "edgepack-agent")])


def names(attributes: tuple[str, ...]) -> str:
    """Return attributes, those of a release and of a class by their common name."""
    found, rest = [], attributes
    for title, group in (("release", RELEASE), ("class", CLASS)):
        if set(group) <= set(attributes):
            found.append(f"[{title}](#attributes)")
            rest = tuple(one for one in rest if one not in group)
    return ", ".join([*found, *(f"`{one}`" for one in rest)])


def metrics() -> str:
    """Return the page of metrics."""
    rows = [METRICS]
    for row in TABLE:
        sides = [
            "; ".join(filter(None, (source, names(attributes)))) if source else "-"
            for source, attributes in (
                (row.device, row.device_attributes),
                (row.fleet, row.fleet_attributes),
            )
        ]
        rows.append(
            f"| `{row.name}`<br>`{row.sample}` | {row.kind} | `{row.unit}` | {row.text} "
            f"| {' | '.join(sides)} |\n"
        )
    rows.append("\n## Attributes\n\n| attribute | label | meaning |\n| --- | --- | --- |\n")
    rows += [f"| `{one}` | `{label(one)}` | {text} |\n" for one, text in ATTRIBUTES.items()]
    bounds = ", ".join(f"{bound:.3g}" for bound in BOUNDS_S)
    return "".join(rows) + f"\n## Buckets\n\nUpper bounds of durations, seconds: {bounds}.\n"


PAGES = {"commands.md": commands, "metrics.md": metrics}


def main() -> None:
    """Writes the pages, or exits with 1 when `--check` finds that a page is out of step."""
    for name, make in PAGES.items():
        page, text = REFERENCE / name, make()
        if "--check" not in sys.argv:
            page.write_text(text)
        elif not page.exists() or page.read_text() != text:
            sys.exit(f"docs/reference/{name} is out of step with the code: run 'make docs'")


if __name__ == "__main__":
    main()
