"""The commands `edgepack rollout …`."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.live import Live

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands import show
from edgepack.fleet.commands.options import Share, asks
from edgepack.fleet.commands.preview import preview_panel
from edgepack.fleet.commands.printing import console, print_result, printable_document
from edgepack.fleet.documents.previews import RolloutPreview
from edgepack.fleet.documents.rollouts import RolloutSettings, RolloutView, Selector
from edgepack.fleet.rollouts.waves import parse_waves
from edgepack.json_text import json_text
from edgepack.text import counted

DEFAULTS = RolloutSettings()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def rollout() -> None:
    """Start, watch, pause and abort rollouts.

    \b
    Example:
      edgepack rollout start model-1.2.0.edgepack --group cameras --waves 1,10%,100%
      edgepack rollout watch r1
    """


@rollout.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--group", default="", help="To this group.")
@click.option("--device", "names", multiple=True, help="To this device; repeatable.")
@click.option("--all", "everybody", is_flag=True, help="To every device.")
@click.option(
    "--waves",
    default=DEFAULTS.waves,
    show_default=True,
    help="Devices addressed in all after each wave.",
)
@click.option(
    "--soak",
    default=DEFAULTS.soak_s,
    show_default=True,
    help="Seconds a model serves before its commit.",
)
@click.option(
    "--deadline",
    default=DEFAULTS.deadline_s,
    show_default=True,
    help="Seconds until a device counts as silent.",
)
@click.option(
    "--max-failures",
    type=Share(),
    default=f"{DEFAULTS.max_failed_share:.0%}",
    show_default=True,
    help="Share of failed and silent devices of a wave that is let pass.",
)
@click.option(
    "--min-sample",
    default=DEFAULTS.min_sample,
    show_default=True,
    help="Decided devices before a wave under way is judged.",
)
@click.option(
    "--on-breach",
    type=click.Choice(["pause", "abort"]),
    default=DEFAULTS.on_breach,
    show_default=True,
    help="What happens when more fail.",
)
@click.option("--dry-run", is_flag=True, help="Only say what it would mean.")
@click.option("-y", "--yes", is_flag=True, help="Start it without asking.")
@asks
def start(
    bundle: Path,
    group: str,
    names: tuple[str, ...],
    everybody: bool,
    waves: str,
    soak: float,
    deadline: float,
    max_failures: float,
    min_sample: int,
    on_breach: Any,
    dry_run: bool,
    yes: bool,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Say what a rollout will mean, then upload the bundle and roll it out, wave by wave.

    A person at a terminal is asked before it starts; a script is not. With --dry-run nothing is
    uploaded or started, and the exit code says whether it would be.

    \b
    Example:
      edgepack rollout start model-1.2.0.edgepack --group cameras --dry-run
      edgepack rollout start model-1.2.0.edgepack --group cameras
      edgepack rollout start model-1.2.0.edgepack --device cam-7 --soak 60
    """
    to = _selector(group, names, everybody)
    parse_waves(waves)
    client = FleetClient(url, data=data)
    settings = RolloutSettings(
        waves=waves,
        soak_s=soak,
        deadline_s=deadline,
        max_failed_share=max_failures,
        min_sample=min_sample,
        on_breach=on_breach,
    )
    preview = client.preview_rollout(bundle, to, settings)
    if dry_run:
        print_result(preview, as_json, preview_panel)
        sys.exit(1 if preview.refusal else 0)
    if not preview.refusal:
        agree(preview, yes)
    view = client.start_rollout(client.publish(bundle), to, settings)
    print_result(view, as_json, _started)


def agree(preview: RolloutPreview, yes: bool) -> None:
    """Shows on stderr what a rollout will mean and, at a terminal, asks whether it shall start."""
    console(stderr=True).print(preview_panel(printable_document(preview)))
    if not yes and sys.stdin.isatty():
        click.confirm("Start it?", abort=True, err=True)


def _started(view: RolloutView) -> str:
    devices, waves = counted(len(view.assignments), "device"), counted(view.wave_count, "wave")
    return (
        f"{view.rollout}: {view.bundle.name} {view.bundle.version} goes to {devices} in {waves}\n"
        f"edgepack rollout watch {view.rollout}"
    )


def _selector(group: str, names: tuple[str, ...], everybody: bool) -> Selector:
    if sum((bool(group), bool(names), everybody)) != 1:
        raise click.UsageError("name the devices: one of --group, --device, --all")
    if group:
        return Selector(kind="group", group=group)
    return Selector(kind="all") if everybody else Selector(kind="devices", devices=names)


@rollout.command("list")
@asks
def list_rollouts(data: Path, url: str, as_json: bool) -> None:
    """List all rollouts, the newest first.

    \b
    Example:
      edgepack rollout list
    """
    found = FleetClient(url, data=data).rollouts()
    print_result(found, as_json, show.rollouts_table)


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@asks
def status(name: str, data: Path, url: str, as_json: bool) -> None:
    """Show a rollout, its devices and the latency they report.

    \b
    Example:
      edgepack rollout status r1
    """
    view = FleetClient(url, data=data).rollout(name)
    print_result(view, as_json, show.rollout_panel)


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@asks
def watch(name: str, data: Path, url: str, as_json: bool) -> None:
    """Watch a rollout until it ends or pauses; exit code 0 when it finished.

    \b
    Example:
      edgepack rollout watch r1
    """
    views = FleetClient(url, data=data).watch_rollout(name)
    is_live = sys.stdout.isatty() and not as_json
    view = _watch_live(views) if is_live else _watch_lines(views, as_json)
    if view.state != "FINISHED":
        sys.exit(1)


def _watch_live(views: Iterator[RolloutView]) -> RolloutView:
    view = next(views)
    with Live(_panel(view), console=console(), auto_refresh=False) as live:
        for view in views:
            live.update(_panel(view), refresh=True)
    return view


def _panel(view: RolloutView) -> RenderableType:
    return show.rollout_panel(printable_document(view))


def _watch_lines(views: Iterator[RolloutView], as_json: bool) -> RolloutView:
    shown: Any = None
    for view in views:
        key = (view.state, view.wave, view.counts, view.because)
        if key != shown and as_json:
            click.echo(json_text(msgspec.structs.replace(view, assignments=())))
        elif key != shown:
            click.echo(show.rollout_line(printable_document(view), time.time()))
        shown = key
    return view


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@asks
def pause(name: str, data: Path, url: str, as_json: bool) -> None:
    """Offer the release to nobody more; devices that are at it go on.

    \b
    Example:
      edgepack rollout pause r1
    """
    view = FleetClient(url, data=data).pause_rollout(name)
    print_result(view, as_json, show.rollout_panel)


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@asks
def resume(name: str, data: Path, url: str, as_json: bool) -> None:
    """Go on after a pause; the failures so far are accepted, further ones are not.

    \b
    Example:
      edgepack rollout resume r1
    """
    view = FleetClient(url, data=data).resume_rollout(name)
    print_result(view, as_json, show.rollout_panel)


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@click.option(
    "--rollback", is_flag=True, help="Also send devices that committed back to what they ran."
)
@asks
def abort(name: str, rollback: bool, data: Path, url: str, as_json: bool) -> None:
    """End a rollout; devices that have not decided keep what they ran before.

    \b
    Example:
      edgepack rollout abort r1 --rollback
    """
    view = FleetClient(url, data=data).abort_rollout(name, rollback=rollback)
    print_result(view, as_json, show.rollout_panel)
