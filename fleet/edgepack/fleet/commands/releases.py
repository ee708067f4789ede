"""The commands `edgepack fleet releases …`."""

import sys
import time
from pathlib import Path

import click

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands import show
from edgepack.fleet.commands.completion import release_names
from edgepack.fleet.commands.options import asks
from edgepack.fleet.commands.printing import console, print_result
from edgepack.fleet.commands.publishing import keys_option
from edgepack.fleet.documents.releases import KEPT_RELEASES, ReleaseView, full_title
from edgepack.text import counted


@click.group(invoke_without_command=True)
@asks
@click.pass_context
def releases(context: click.Context, data: Path, url: str, as_json: bool) -> None:
    """List the releases that the fleet holds, the newest first.

    \b
    Example:
      edgepack fleet releases
      edgepack fleet releases remove model@1.2.0
    """
    if context.invoked_subcommand is None:
        found = FleetClient(url, data=data).releases()
        print_result(found, as_json, lambda shown: show.releases_table(shown, time.time()))


@releases.command()
@click.argument("release", shell_complete=release_names)
@asks
def remove(release: str, data: Path, url: str, as_json: bool) -> None:
    """Delete a release that no device and no rollout needs; its name stays taken.

    \b
    Example:
      edgepack fleet releases remove model@1.2.0
      edgepack fleet releases remove 4e1243bd22c6
    """
    found = FleetClient(url, data=data).remove_release(release)
    print_result(found, as_json, lambda shown: f"{full_title(shown.bundle)} is deleted")


@releases.command()
@click.option(
    "--keep",
    type=click.IntRange(1, 10_000),
    default=KEPT_RELEASES,
    show_default=True,
    help="Leave so many of the newest of each model.",
)
@keys_option
@click.option("--yes", is_flag=True, help="Withdraw without asking.")
@asks
def prune(keep: int, keys: tuple[str, ...], yes: bool, data: Path, url: str, as_json: bool) -> None:
    """Withdraw old releases that are not needed: no device runs, keeps or is assigned the release.

    A publisher's list of releases must fit in a single message, which limits the list to about 300
    releases. The files stay; publish lists a release again, and remove deletes a release.

    \b
    Example:
      edgepack fleet releases prune --keep 10
      edgepack fleet releases prune --key team.key --yes
    """
    client = FleetClient(url, data=data)
    found = client.unneeded_releases(keep)
    if found and not (yes or as_json):
        console(stderr=True).print(show.releases_table(found, time.time()))
        if sys.stdin.isatty() and sys.stderr.isatty():
            click.confirm(f"Withdraw {_counted(found)}?", abort=True, err=True)
    for release in found:
        client.withdraw(release.bundle.digest, keys)
    print_result(
        found,
        as_json,
        lambda shown: f"{_counted(shown)} withdrawn" if shown else "every release is needed",
    )


def _counted(releases: tuple[ReleaseView, ...]) -> str:
    return counted(len(releases), "release")
