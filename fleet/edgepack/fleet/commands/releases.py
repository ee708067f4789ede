"""The commands `edgepack fleet releases …`."""

import time
from pathlib import Path

import click

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands import show
from edgepack.fleet.commands.options import asks
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.releases import full_title


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
@click.argument("release")
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
