"""Options that the fleet's commands have in common."""

import math
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from edgepack.bandwidth import Bandwidth, parse_bandwidth
from edgepack.errors import EdgepackError
from edgepack.fleet.client.connection import (
    DATA_VARIABLE,
    DEFAULT_URL,
    TOKEN_VARIABLE,
    URL_VARIABLE,
)
from edgepack.fleet.commands.completion import device_names, group_names, rollout_names
from edgepack.fleet.data_folder import default_root, token_file
from edgepack.fleet.documents.gates import BY_NAME, GATES
from edgepack.fleet.documents.rollouts import SETTINGS, RolloutSettings, Selector
from edgepack.key_place import check_key_place
from edgepack.setting_options import option_of, values_of

PORT = click.IntRange(0, 65535)


def check_data_folder(data: Path) -> None:
    """Check that a fleet's folder that is not made yet lies outside of every git work tree.

    Raises:
        EdgepackError: See `check_key_place`.
    """
    if not token_file(data).exists():
        check_key_place(data)


data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=DATA_VARIABLE,
    default=default_root,
    show_default="~/.local/share/edgepack/fleet",
    help=f"The fleet's folder. [env: {DATA_VARIABLE}]",
)
url_option = click.option(
    "--url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    help=f"Where the fleet serves. [env: {URL_VARIABLE}; token: --data or {TOKEN_VARIABLE}]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Return options of every command that asks a running fleet."""
    return data_option(url_option(json_option(command)))


class Rate(click.ParamType[Bandwidth]):
    """Bytes a second, as `20MB/s`, maybe by the hour."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Bandwidth:
        if isinstance(value, Bandwidth):
            return value
        try:
            return parse_bandwidth(value)
        except EdgepackError as error:
            self.fail(f"{error.problem}; try {error.remedy}", param, ctx)


TYPES: dict[Any, click.ParamType[Any]] = {Bandwidth: Rate()}
"""Types of options by type of setting, see `option_of`."""


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 24 * 3600.0}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")


class Duration(click.ParamType[float]):
    """A length of time in seconds, as `90s`, `30m`, `24h` or `7d`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not a time such as 30m, 24h or 7d", param, ctx)
        return int(found[1]) * _UNITS_S[found[2]]


class Threshold(click.ParamType[tuple[str, float | None]]):
    """Threshold of a gate: `p95=1.1`, `errors=1%` or `drift=off`."""

    name = "gate=number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float | None]:
        name, _, word = str(value).partition("=")
        if name not in {*BY_NAME, "all"}:
            self.fail(f"there is no gate {name!r}, only {', '.join(BY_NAME)}, all", param, ctx)
        if word == "off":
            return name, None
        try:
            number = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is not a gate such as p95=1.1, errors=1% or p95=off", param, ctx)
        if name == "all" or not 0 <= number < math.inf:
            self.fail(f"{value!r} is not a threshold", param, ctx)
        return name, number


gate_option = click.option(
    "--gate",
    "gates",
    type=Threshold(),
    multiple=True,
    help="Threshold of a gate, against the previous release on the same hardware, or 'off': "
    + ", ".join(f"{gate.name}={gate.default}" for gate in GATES)
    + "; all=off.",
)
supersede_option = option_of(SETTINGS["supersede"])
WAYS = "one of --group, --where, --device, --all"
_SELECTOR = (
    click.option(
        "--group", default="", shell_complete=group_names, help="The devices of this group."
    ),
    click.option("--where", default="", help="Those that labels and facts mean."),
    click.option(
        "--device",
        "names",
        multiple=True,
        shell_complete=device_names,
        help="This device; repeatable.",
    ),
    click.option("--all", "everybody", is_flag=True, help="Every device."),
)


def sets(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of rollout settings to a command, which gets the values as `settings`."""

    @wraps(command)
    def with_settings(*, gates: tuple[tuple[str, float | None], ...], **words: Any) -> None:
        given = dict(gates)
        thresholds = dict.fromkeys(BY_NAME, None) if "all" in given else {}
        thresholds |= {name: number for name, number in given.items() if name != "all"}
        settings = RolloutSettings(gates=thresholds, **values_of(SETTINGS, words))
        command(settings=settings, **words)

    options = [option_of(each) for each in SETTINGS.values() if each.name != "supersede"]
    return _with((*options, gate_option), with_settings)


def selects(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select devices to a command; the command gets the selection as `to`, or
    None.
    """

    @wraps(command)
    def with_selector(
        *, group: str, where: str, names: tuple[str, ...], everybody: bool, **words: Any
    ) -> None:
        ways = {
            Selector(kind="group", group=group): group,
            Selector(kind="where", where=where): where,
            Selector(kind="devices", devices=names): names,
            Selector(kind="all"): everybody,
        }
        named = [selector for selector, is_named in ways.items() if is_named]
        if len(named) > 1:
            raise click.UsageError(f"name the devices one way: {WAYS}")
        command(to=named[0] if named else None, **words)

    return _with(_SELECTOR, with_selector)


def _with(
    options: Sequence[Callable[..., Callable[..., None]]], command: Callable[..., None]
) -> Callable[..., None]:
    for option in reversed(options):
        command = option(command)
    return command


def previews(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of commands that show a preview first."""
    dry_run = click.option("--dry-run", is_flag=True, help="Only say what it would mean.")
    yes = click.option("-y", "--yes", is_flag=True, help="Start it without asking.")
    return dry_run(yes(command))


rollout_argument = click.argument("name", metavar="ROLLOUT", shell_complete=rollout_names)


def read_labels(words: tuple[str, ...]) -> dict[str, str]:
    """Return the labels from `key=value` each."""
    for word in words:
        if "=" not in word:
            raise click.UsageError(f"{word!r} is not a label such as site=berlin")
    return dict(word.split("=", 1) for word in words)
