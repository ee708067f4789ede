"""The command `edgepack fleet audit`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.completion import device_names, model_names, rollout_names
from edgepack.fleet.commands.options import asks
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.audit import Action, AuditEntry
from edgepack.fleet.documents.wording import details_line, stamp

_NUMBER = click.IntRange(0, 10**15)
_ACTIONS = ", ".join(get_args(Action))


@click.command(epilog=f"Actions: {_ACTIONS}.")
@click.option(
    "--rollout",
    default="",
    shell_complete=rollout_names,
    help="Only what was done to this rollout.",
)
@click.option(
    "--device", default="", shell_complete=device_names, help="Only what was done to this device."
)
@click.option(
    "--model",
    default="",
    shell_complete=model_names,
    help="Only what was done to rollouts and releases of it.",
)
@click.option("--actor", default="", help="Only what it did: controller, gate, token.")
@click.option("--action", default="", help="Only such acts: rollout.breach, or all of device.")
@click.option("--before", type=_NUMBER, default=0, help="Only entries older than this id.")
@click.option("--after", type=_NUMBER, default=0, help="Only entries newer than this id.")
@click.option("--limit", type=_NUMBER, default=100, show_default=True, help="At most so many.")
@asks
def audit(
    rollout: str,
    device: str,
    model: str,
    actor: str,
    action: str,
    before: int,
    after: int,
    limit: int,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """List actions on the fleet with actors and deciding numbers, newest first.

    \b
    Example:
      edgepack fleet audit --rollout r1
      edgepack fleet audit --action rollout.breach --json
    """
    found = FleetClient(url, data=data).audit(
        rollout=rollout,
        device=device,
        model=model,
        actor=actor,
        action=action,
        before=before,
        after=after,
        limit=limit,
    )
    print_result(found, as_json, lambda shown: audit_table(shown, time.time()))


def audit_table(entries: Sequence[AuditEntry], now: float) -> RenderableType:
    """Return a table of the audit log's entries."""
    if not entries:
        return "no entry"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "at", "actor", "action", "on", "because"):
        table.add_column(name, overflow="fold")
    for entry in entries:
        said = entry.because
        if entry.numbers:
            said += f" ({details_line(entry.numbers)})"
        table.add_row(
            str(entry.id),
            stamp(entry.at, now),
            Text(entry.actor),
            Text(entry.action),
            Text(" ".join(word for word in (entry.rollout, entry.device, entry.model) if word)),
            Text(said),
        )
    return table
