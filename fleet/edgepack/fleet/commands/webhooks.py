"""The commands `edgepack fleet webhooks …`."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.completion import webhook_names
from edgepack.fleet.commands.options import asks
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.webhooks import DEFAULT_TYPES, WebhookView
from edgepack.fleet.documents.wording import ago, stamp


@click.group(invoke_without_command=True)
@asks
@click.pass_context
def webhooks(context: click.Context, data: Path, url: str, as_json: bool) -> None:
    """List the webhooks with URLs and delivery states.

    \b
    Example:
      edgepack fleet webhooks
      edgepack fleet webhooks add chat --to https://hooks.example/edgepack
      edgepack fleet webhooks test chat
      edgepack fleet webhooks remove chat
    """
    if context.invoked_subcommand is None:
        found = FleetClient(url, data=data).webhooks()
        print_result(found, as_json, lambda shown: webhooks_table(shown, time.time()))


@webhooks.command()
@click.argument("name")
@click.option("--to", "target", metavar="URL", required=True, help="Where to, by https.")
@click.option(
    "--on",
    "types",
    multiple=True,
    default=DEFAULT_TYPES,
    show_default=True,
    help="Events to send: an action of the audit log (rollout.breach), a prefix (rollout), "
    "or device.failed; repeatable.",
)
@click.option(
    "--unsafe",
    "is_unsafe",
    is_flag=True,
    help="Take a URL without TLS, or one that leads into a private network.",
)
@asks
def add(
    name: str,
    target: str,
    types: tuple[str, ...],
    is_unsafe: bool,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Post future events to a URL, and print the signing secret, only this once.

    \b
    Example:
      edgepack fleet webhooks add chat --to https://hooks.example/edgepack
      edgepack fleet webhooks add pager --to https://hooks.example/p --on rollout.breach
    """
    client = FleetClient(url, data=data)
    made = client.add_webhook(name, target, types=types, is_unsafe=is_unsafe)
    print_result(made, as_json, lambda shown: shown.secret)


@webhooks.command()
@click.argument("name", shell_complete=webhook_names)
@asks
def remove(name: str, data: Path, url: str, as_json: bool) -> None:
    """Remove a webhook and discard its undelivered messages.

    \b
    Example:
      edgepack fleet webhooks remove chat
    """
    gone = FleetClient(url, data=data).remove_webhook(name)
    print_result(gone, as_json, lambda shown: f"webhook {shown.name} is removed")


@webhooks.command()
@click.argument("name", shell_complete=webhook_names)
@asks
@click.pass_context
def test(context: click.Context, name: str, data: Path, url: str, as_json: bool) -> None:
    """Send a test message once, and print the result.

    
    Example:
      edgepack fleet webhooks test chat
    """
    trial = FleetClient(url, data=data).try_webhook(name)
    print_result(trial, as_json, lambda shown: shown.because)
    context.exit(0 if trial.delivered else 1)


def webhooks_table(found: Sequence[WebhookView], now: float) -> RenderableType:
    """Return a table of the webhooks."""
    if not found:
        return "no webhook: edgepack fleet webhooks add NAME --to https://hooks.example/edgepack"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("webhook", "to", "tells", "made", "by", "delivered", "skipped", "state"):
        table.add_column(name)
    for hook in found:
        state = "all delivered"
        if hook.failures:
            state = f"failed {hook.failures}x, again {stamp(hook.next_at, now)}: {hook.because}"
        table.add_row(
            Text(hook.name),
            Text(hook.url),
            Text(", ".join(hook.types)),
            ago(hook.made_at, now),
            Text(hook.made_by),
            f"{hook.delivered:,}",
            f"{hook.skipped:,}",
            Text(state),
        )
    return table
