"""The command `edgepack rollout report`."""

from itertools import chain
from pathlib import Path

import click
import msgspec

from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.options import asks, rollout_argument
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.dashboard.rollout_report import render_report

MAX_ACTS = 1_000


class ReportFile(msgspec.Struct, frozen=True, kw_only=True):
    """Written report: its rollout and path."""

    rollout: str
    path: Path


@click.command()
@rollout_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File; ROLLOUT.html by default."
)
@asks
def report(name: str, output: Path | None, data: Path, url: str, as_json: bool) -> None:
    """Write a single page that explains a rollout to an outsider.

    The page loads nothing: mail, print or keep the page.

    \b
    Example:
      edgepack rollout report r1
    """
    client = FleetClient(url, data=data)
    view = client.rollout(name)
    failed = (client.rollout_devices(name, state=state) for state in ("FAILED", "SILENT"))
    acts = client.audit(rollout=name, limit=MAX_ACTS)
    page = render_report(view, chain.from_iterable(failed), acts)
    path = output or Path(f"{view.rollout}.html")
    try:
        write_file(path, page.encode(errors="replace"))
    except OSError as error:
        raise FleetError(
            f"cannot write {path}: {error.strerror}",
            remedy="name a file in a folder that exists and that you may write to, with -o",
        ) from error
    written = ReportFile(rollout=view.rollout, path=path)
    print_result(written, as_json, lambda shown: f"Wrote {shown.path}.")
