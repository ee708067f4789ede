"""Shell completion of names from a running fleet, if the fleet answers at once.

The shell waits at each press of the Tab key: the completion requests a single page with a timeout
of half a second, and completes nothing after any error. A name with characters other than letters,
digits and `_ . @ + -` is left out, since names from a fleet end up in a command line that a user
runs.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from edgepack.errors import EdgepackError, FleetError
from edgepack.fleet.client.connection import Connection, connect
from edgepack.fleet.documents.access import TokenView
from edgepack.fleet.documents.devices import DeviceDetails, DeviceView, GroupView
from edgepack.fleet.documents.releases import ReleaseView
from edgepack.fleet.documents.rollouts import RolloutView
from edgepack.fleet.documents.webhooks import WebhookView

TIMEOUT_S = 0.5
MOST = 100
_PLAIN = re.compile(r"[A-Za-z0-9_.@+-]{1,200}")

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Names = Callable[[Connection, str], Iterable[tuple[str, str]]]
"""Names that begin so, as far as the fleet can tell, each with what is said beside it."""


def _completing(names: Names) -> Complete:
    def complete(
        context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        data = context.params.get("data")
        try:
            connection = connect(
                context.params.get("url"),
                data if isinstance(data, Path) else None,
                None,
                timeout_s=TIMEOUT_S,
            )
            found = list(names(connection, incomplete))
        except (EdgepackError, OSError):
            return []
        return [
            CompletionItem(name, help=said if _PLAIN.fullmatch(said) else None)
            for name, said in found
            if name.startswith(incomplete) and _PLAIN.fullmatch(name)
        ][:MOST]

    return complete


def _devices(connection: Connection, incomplete: str) -> Iterable[tuple[str, str]]:
    """Return names that begin with the typed text, including the text itself."""
    page = connection.get("/v1/devices", tuple[DeviceView, ...], after=incomplete, limit=MOST)
    found = [(device.device, device.group) for device in page]
    if _PLAIN.fullmatch(incomplete):
        with suppress(FleetError):  # There is none of that name.
            connection.get(f"/v1/devices/{incomplete}", DeviceDetails)
            found.insert(0, (incomplete, ""))
    return found


def _groups(connection: Connection, _: str) -> Iterable[tuple[str, str]]:
    return ((one.group, "") for one in connection.get("/v1/groups", tuple[GroupView, ...]))


def _rollouts(connection: Connection, _: str) -> Iterable[tuple[str, str]]:
    found = connection.get("/v1/rollouts", tuple[RolloutView, ...])
    return ((one.rollout, one.state) for one in found)


def _releases(connection: Connection, _: str) -> Iterable[tuple[str, str]]:
    found = connection.get("/v1/releases", tuple[ReleaseView, ...])
    return ((f"{one.bundle.name}@{one.bundle.version}", one.bundle.digest[:12]) for one in found)


def _models(connection: Connection, _: str) -> Iterable[tuple[str, str]]:
    found = connection.get("/v1/releases", tuple[ReleaseView, ...])
    return ((name, "") for name in sorted({one.bundle.name for one in found}))


def _rollouts_and_releases(connection: Connection, incomplete: str) -> Iterable[tuple[str, str]]:
    return [*_rollouts(connection, incomplete), *_releases(connection, incomplete)]


def _tokens(connection: Connection, _: str) -> Iterable[tuple[str, str]]:
    found = connection.get("/v1/tokens", tuple[TokenView, ...])
    return ((one.name, one.role) for one in found)


def _webhooks(connection: Connection, _: str) -> Iterable[tuple[str, str]]:
    return ((one.name, "") for one in connection.get("/v1/webhooks", tuple[WebhookView, ...]))


device_names = _completing(_devices)
group_names = _completing(_groups)
rollout_names = _completing(_rollouts)
release_names = _completing(_releases)
model_names = _completing(_models)
rollout_or_release_names = _completing(_rollouts_and_releases)
token_names = _completing(_tokens)
webhook_names = _completing(_webhooks)
