"""The commands `edgepack fleet tokens …`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.completion import token_names
from edgepack.fleet.commands.options import asks
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.access import ROLES, Role, TokenView
from edgepack.fleet.documents.wording import ago, stamp
from edgepack.setting_options import Number

DAY_S = 24 * 3600.0


@click.group(invoke_without_command=True)
@asks
@click.pass_context
def tokens(context: click.Context, data: Path, url: str, as_json: bool) -> None:
    """List the tokens that let people in. The fleet keeps only digests of tokens.

    A viewer looks; an operator rolls out and takes back, too; an admin does all. The token in the
    fleet's folder is an admin's and not listed.

    \b
    Example:
      edgepack fleet tokens
      edgepack fleet tokens make alice --role operator --days 90
      edgepack fleet tokens revoke alice
    """
    if context.invoked_subcommand is None:
        found = FleetClient(url, data=data).tokens()
        print_result(found, as_json, lambda shown: tokens_table(shown, time.time()))


@tokens.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What its owner may do.")
@click.option("--days", type=Number(0.001, 3660), help="Valid for so long.")
@asks
def make(name: str, role: str, days: float | None, data: Path, url: str, as_json: bool) -> None:
    """Make a token and print the token, only this once.

    \b
    Example:
      edgepack fleet tokens make alice --role operator --days 90
    """
    valid_s = days * DAY_S if days is not None else None
    made = FleetClient(url, data=data).make_token(name, role=cast(Role, role), valid_s=valid_s)
    print_result(made, as_json, lambda shown: shown.token)


@tokens.command()
@click.argument("name", shell_complete=token_names)
@asks
def revoke(name: str, data: Path, url: str, as_json: bool) -> None:
    """Revoke a token and end its sessions at once.

    \b
    Example:
      edgepack fleet tokens revoke alice
    """
    gone = FleetClient(url, data=data).revoke_token(name)
    print_result(gone, as_json, lambda shown: f"token {shown.name} is revoked")


def tokens_table(found: Sequence[TokenView], now: float) -> RenderableType:
    """Return a table of the tokens."""
    if not found:
        return "no token but the fleet's own: edgepack fleet tokens make alice --role operator"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("token", "role", "made", "by", "valid"):
        table.add_column(name)
    for token in found:
        until = "until it is revoked"
        if token.expires_at is not None:
            is_over = token.expires_at <= now
            until = f"{'was ' if is_over else ''}until {stamp(token.expires_at, now)}"
        table.add_row(
            Text(token.name),
            token.role,
            ago(token.made_at, now),
            Text(token.made_by),
            until,
        )
    return table
