"""Options that the fleet's commands have in common."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, get_args

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
from edgepack.fleet.documents.rollouts import (
    GateEvidence,
    OnBreach,
    RolloutSettings,
    Selector,
    SplitBy,
)
from edgepack.key_place import check_key_place

PORT = click.IntRange(0, 65535)
Network = IPv4Network | IPv6Network


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


class Share(click.ParamType[float]):
    """A share, as `10%` or `0.1`."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is not a share such as 10% or 0.1", param, ctx)
        if not 0 <= number <= 1:
            self.fail(f"{value!r} is not between 0% and 100%", param, ctx)
        return number


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


class NetworkAddress(click.ParamType[Network]):
    """An IP address or network, as `10.0.0.7` or `10.0.0.0/24`."""

    name = "network"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Network:
        try:
            return ip_network(value)
        except ValueError:
            self.fail(f"{value!r} is not an address such as 10.0.0.7 or 10.0.0.0/24", param, ctx)


class Seconds(click.ParamType[float]):
    """A time, 0 or more seconds."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        if not 0 <= number < math.inf:
            self.fail(f"{value!r} is not a time that passes", param, ctx)
        return number


class Moment(click.ParamType[float]):
    """A time, as ISO 8601 writes it; local where it names no zone."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time such as 2030-01-31T02:00", param, ctx)


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


_DEFAULTS = RolloutSettings()
_SETTINGS = (
    click.option(
        "--waves",
        default=_DEFAULTS.waves,
        show_default=True,
        help="Devices addressed in all after each wave.",
    ),
    click.option(
        "--soak",
        "soak_s",
        type=Seconds(),
        default=_DEFAULTS.soak_s,
        show_default=True,
        help="Seconds a model serves before its commit.",
    ),
    click.option(
        "--min-inferences",
        default=_DEFAULTS.min_inferences,
        show_default=True,
        help="Real inferences that a soak must see; it waits for them, shortly before the deadline "
        "it fails.",
    ),
    click.option(
        "--deadline",
        "deadline_s",
        type=Seconds(),
        default=_DEFAULTS.deadline_s,
        show_default=True,
        help="Seconds until a device counts as silent.",
    ),
    click.option(
        "--max-failures",
        "max_failed_share",
        type=Share(),
        default=f"{_DEFAULTS.max_failed_share:.0%}",
        show_default=True,
        help="Tolerated share of failed and silent devices of a wave.",
    ),
    click.option(
        "--min-sample",
        default=_DEFAULTS.min_sample,
        show_default=True,
        help="Decided devices before a wave under way is judged.",
    ),
    click.option(
        "--on-breach",
        type=click.Choice(get_args(OnBreach)),
        default=_DEFAULTS.on_breach,
        show_default=True,
        help="What happens when a gate is breached.",
    ),
    click.option(
        "--gate",
        "gates",
        type=Threshold(),
        multiple=True,
        help="Threshold of a gate, against the previous release on the same hardware, or 'off': "
        + ", ".join(f"{gate.name}={gate.default}" for gate in GATES)
        + "; all=off.",
    ),
    click.option(
        "--gate-evidence",
        type=click.Choice(get_args(GateEvidence)),
        default=_DEFAULTS.gate_evidence,
        show_default=True,
        help="After a wave of which too few devices measured the release against the one that they "
        "ran before: wait for a person, or begin the next wave.",
    ),
    click.option(
        "--split-by",
        type=click.Choice([word for word in get_args(SplitBy) if word]),
        help="Judge each hardware class alone; one that breaches a gate is held back alone.",
    ),
    click.option(
        "--evidence-wait",
        "evidence_s",
        type=Seconds(),
        default=_DEFAULTS.evidence_s,
        show_default=True,
        help="Seconds that a wave which is over waits for what devices measure, of those that "
        "measured the release before.",
    ),
)
_PACE = (
    click.option(
        "--max-per-site",
        default=_DEFAULTS.max_per_site,
        show_default=True,
        help="Devices with the same label 'site' that may be at it at once; 0 for any number.",
    ),
    click.option("--approve-waves", is_flag=True, help="Each wave after the first waits for you."),
    click.option(
        "--not-before",
        type=Moment(),
        help="When it begins: 2030-01-31T02:00 (your time), or with +01:00.",
    ),
    click.option(
        "--window",
        default=_DEFAULTS.window,
        help="When devices are offered it, where their label 'timezone' says that they are: "
        "'mon-fri 02:00-05:00'.",
    ),
)
supersede_option = click.option(
    "--supersede", is_flag=True, help="Take devices over from older rollouts of the model."
)
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
    """Return options of every command that starts rollouts; it gets them as `settings`."""

    @wraps(command)
    def with_settings(**words: Any) -> None:
        names = set(RolloutSettings.__struct_fields__) & words.keys()
        named = {name: words.pop(name) for name in names}
        gates = dict(named["gates"])
        named["gates"] = dict.fromkeys(BY_NAME, None) if "all" in gates else {}
        named["gates"] |= {name: number for name, number in gates.items() if name != "all"}
        named["split_by"] = named["split_by"] or ""
        command(settings=RolloutSettings(**named), **words)

    return _with((*_SETTINGS, *_PACE), with_settings)


def selects(command: Callable[..., None]) -> Callable[..., None]:
    """Return options that name devices; the command gets them as `to`, None when there are none."""

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
    """Return options of every command that says what it will mean before it does it."""
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
