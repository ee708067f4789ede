"""The commands `edgepack rollout …`."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.live import Live

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands import show
from edgepack.fleet.commands.completion import rollout_or_release_names
from edgepack.fleet.commands.options import (
    WAYS,
    asks,
    previews,
    rollout_argument,
    selects,
    sets,
    supersede_option,
)
from edgepack.fleet.commands.preview import preview_panel, rollback_panel
from edgepack.fleet.commands.printing import console, print_result, printable_document
from edgepack.fleet.commands.rollout_report import report
from edgepack.fleet.documents.rollouts import RolloutSettings, RolloutView, Selector
from edgepack.fleet.rollouts.waves import parse_waves
from edgepack.json_text import json_text
from edgepack.registry.fetched import fetched
from edgepack.text import counted


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def rollout() -> None:
    """Start, watch, pause, abort and take back rollouts.

    \b
    Example:
      edgepack rollout start model-1.2.0.edgepack --group cameras --waves 1,10%,100%
      edgepack rollout watch r1
    """


rollout.add_command(report)


@rollout.command()
@click.argument("bundle")
@selects
@sets
@supersede_option
@previews
@asks
def start(
    bundle: str,
    to: Selector | None,
    settings: RolloutSettings,
    dry_run: bool,
    yes: bool,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Show the preview, then upload the bundle and roll the bundle out, wave by wave.

    At a terminal, the command asks before the start; with --yes or --json, or without a terminal,
    the command does not ask. BUNDLE is a folder, an archive, or a URL: oci://… or https://… With
    --dry-run nothing is uploaded or started; the exit code states whether the rollout would start.

    
    Example:
      edgepack rollout start model-1.2.0.edgepack --group cameras --dry-run
      edgepack rollout start model-1.2.0.edgepack --group cameras
      edgepack rollout start model-1.2.0.edgepack --device cam-7 --soak 60
      edgepack rollout start oci://registry.example/models/model:1.2.0 --group cameras
    """
    if to is None:
        raise click.UsageError(f"name the devices: {WAYS}")
    parse_waves(settings.waves)
    client = FleetClient(url, data=data)
    with fetched(bundle) as found:
        preview = client.preview_rollout(found.path, to, settings)
        if dry_run:
            print_result(preview, as_json, preview_panel)
            sys.exit(1 if preview.refusal else 0)
        if not preview.refusal:
            agree(preview_panel(printable_document(preview)), ask=not (yes or as_json))
        view = client.start_rollout(client.publish(found.path, found.source), to, settings)
    print_result(view, as_json, _started)


@rollout.command()
@click.argument("what", metavar="ROLLOUT|RELEASE", shell_complete=rollout_or_release_names)
@selects
@sets
@previews
@asks
def rollback(
    what: str,
    to: Selector | None,
    settings: RolloutSettings,
    dry_run: bool,
    yes: bool,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Take a release back: its devices go back to their previous release, wave by wave.

    The argument is a rollout, which ends if unfinished, or a release as NAME@VERSION or the first
    digits of its digest. Each release that devices go back to is a rollout of its own, which the
    devices confirm. All at once: --waves 100%.

    \b
    Example:
      edgepack rollout rollback r2 --dry-run
      edgepack rollout rollback r2
      edgepack rollout rollback model@1.2.0 --group cameras --waves 100%
    """
    parse_waves(settings.waves)
    client = FleetClient(url, data=data)
    preview = client.preview_rollback(what, to, settings)
    if dry_run:
        print_result(preview, as_json, rollback_panel)
        sys.exit(1 if preview.refusal else 0)
    if not preview.refusal:
        agree(rollback_panel(printable_document(preview)), ask=not (yes or as_json))
    views = client.rollback(what, to, settings)
    print_result(
        views,
        as_json,
        lambda shown: "\n".join(map(_started, shown)) or f"done: {preview.effect}",
    )


def agree(shown: RenderableType, *, ask: bool) -> None:
    """Show the preview on stderr and, at a terminal, ask whether to start."""
    console(stderr=True).print(shown)
    if ask and sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm("Start it?", abort=True, err=True)


def _started(view: RolloutView) -> str:
    devices, waves = counted(sum(view.counts.values()), "device"), counted(view.wave_count, "wave")
    return (
        f"{view.rollout}: {view.bundle.name} {view.bundle.version} goes to {devices} in {waves}\n"
        f"edgepack rollout watch {view.rollout}"
    )


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
@rollout_argument
@asks
def status(name: str, data: Path, url: str, as_json: bool) -> None:
    """Show a rollout, its devices and their reported latency.

    \b
    Example:
      edgepack rollout status r1
    """
    view = FleetClient(url, data=data).rollout(name)
    print_result(view, as_json, show.rollout_panel)


@rollout.command()
@rollout_argument
@asks
def watch(name: str, data: Path, url: str, as_json: bool) -> None:
    """Watch a rollout until its end or a pause; exit code 0 when finished.

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
        key = (view.state, view.wave, view.counts, view.because, view.waits_for)
        if key != shown and as_json:
            click.echo(json_text(msgspec.structs.replace(view, assignments=())))
        elif key != shown:
            click.echo(show.rollout_line(printable_document(view), time.time()))
        shown = key
    return view


_ACTS = (
    (
        FleetClient.pause_rollout,
        "pause",
        "Offer the release to nobody more; devices that are at it go on.",
    ),
    (
        FleetClient.resume_rollout,
        "resume",
        "Go on after a pause; the failures so far are accepted, further ones are not.",
    ),
    (
        FleetClient.approve_rollout,
        "approve",
        "Let the next wave begin, of a rollout that was started with --approve-waves.",
    ),
    (
        FleetClient.retry_rollout,
        "retry",
        "Offer the release once more to the devices that failed it or stayed silent.",
    ),
    (
        FleetClient.abort_rollout,
        "abort",
        "End a rollout; devices that have not decided keep what they ran before.\n\n"
        "Devices that committed keep what they have; `rollout rollback` takes it back.",
    ),
)


def _add_act(does: Callable[[FleetClient, str], RolloutView], word: str, text: str) -> None:
    @rollout.command(word, help=f"{text}\n\n\b\nExample:\n  edgepack rollout {word} r1")
    @rollout_argument
    @asks
    def act(name: str, data: Path, url: str, as_json: bool) -> None:
        view = does(FleetClient(url, data=data), name)
        print_result(view, as_json, show.rollout_panel)


for _act in _ACTS:
    _add_act(*_act)
