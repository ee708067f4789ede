"""The commands `edgepack fleet`, `edgepack rollout` and `edgepack simulate`."""

import logging
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console, RenderableType
from rich.live import Live

from edgepack.bundle.archive import pack
from edgepack.errors import FleetError
from edgepack.fleet import show
from edgepack.fleet.client import DEFAULT_URL, URL_VARIABLE, FleetClient, rollout_path
from edgepack.fleet.data_folder import DataFolder, default_root
from edgepack.fleet.documents import (
    DeviceView,
    FleetInfo,
    ReleaseView,
    RolloutRequest,
    RolloutView,
    Selector,
)
from edgepack.fleet.enroll import enroll_device
from edgepack.fleet.mosquitto import write_broker_folder
from edgepack.fleet.waves import parse_waves

WATCH_S = 0.5
OVER = ("FINISHED", "ABORTED")
STOPPED = (*OVER, "PAUSED")

_data = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="EDGEPACK_FLEET_DATA",
    default=default_root,
    show_default="~/.local/share/edgepack/fleet",
    help="The fleet's folder. [env: EDGEPACK_FLEET_DATA]",
)
_url = click.option(
    "--url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    help=f"Where the fleet serves. [env: {URL_VARIABLE}; token: --data or EDGEPACK_FLEET_TOKEN]",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _asks(command: Callable[..., None]) -> Callable[..., None]:
    """Options of every command that asks a running fleet."""
    return _data(_url(_json(command)))


def _print(value: Any, as_json: bool, picture: Callable[[], RenderableType]) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
    else:
        _console().print(picture())


def _console() -> Console:
    # Without a terminal nothing is folded at 80 columns: the lines go to a file or a pipe.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def fleet() -> None:
    """Serve a fleet, enrol and list its devices.

    \b
    Example:
      edgepack fleet serve --trust release.pub
      edgepack fleet enroll cam-7 --group cameras -o cam-7/
    """


@fleet.command()
@_data
@click.option("--database", default="", help="SQLAlchemy URL; SQLite in the folder when not given.")
@click.option(
    "--broker", default="", help="mqtt:// or mqtts:// URL; an embedded broker when not given."
)
@click.option("--broker-port", default=1883, show_default=True, help="Port of the embedded broker.")
@click.option("--broker-user", default="", help="User name at the broker.")
@click.option(
    "--broker-password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File whose first line is the password.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the API listens.")
@click.option("--port", default=8600, show_default=True, help="Where the API listens.")
@click.option("--tenant", default="default", show_default=True, help="Whose devices.")
@click.option(
    "--trust",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Public key whose bundles are taken from now on; kept in the folder.",
)
@click.option(
    "--auto-enroll",
    is_flag=True,
    help="Take in any device that reports (embedded broker only; for trials).",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every transition.")
def serve(
    data: Path,
    database: str,
    broker: str,
    broker_port: int,
    broker_user: str,
    broker_password_file: Path | None,
    host: str,
    port: int,
    tenant: str,
    trust: tuple[Path, ...],
    auto_enroll: bool,
    verbose: bool,
) -> None:
    """Run controller, depot and API, and a broker when none is named, until Ctrl-C.

    \b
    Example:
      edgepack fleet serve --trust release.pub
      edgepack fleet serve --broker mqtts://broker.example:8883
    """
    from edgepack.fleet.actions import Fleet
    from edgepack.fleet.broker import LIMITS
    from edgepack.fleet.serve import ServeSettings
    from edgepack.fleet.serve import serve as run

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    password = ""
    if broker_password_file is not None:
        password = broker_password_file.read_text().partition("\n")[0]

    def ready(running: Fleet, url: str) -> None:
        click.echo(f"fleet '{tenant}' serves at {url}, token in {data / 'token'}", err=True)
        click.echo(f"broker: {running.broker_url}", err=True)
        if not broker:
            click.echo(f"note: {LIMITS}", err=True)
        if not running.trusted:
            click.echo("note: no key is trusted yet, so no bundle is taken (--trust)", err=True)

    run(
        ServeSettings(
            data=data,
            database=database,
            broker=broker,
            broker_port=broker_port,
            broker_user=broker_user,
            broker_password=password,
            host=host,
            port=port,
            tenant=tenant,
            trust=trust,
            auto_enroll=auto_enroll,
        ),
        ready,
    )


@fleet.command()
@click.option("--group", default="", help="Only this group.")
@_asks
def devices(group: str, data: Path, url: str, as_json: bool) -> None:
    """List devices: what each runs, on which provider, and how it fares.

    \b
    Example:
      edgepack fleet devices --group cameras
    """
    client = FleetClient(data, url)
    found = client.get("/v1/devices", tuple[DeviceView, ...], group=group)
    info = client.get("/v1/info", FleetInfo)
    _print(found, as_json, lambda: show.devices_table(found, info, time.time()))


@fleet.command()
@_asks
def info(data: Path, url: str, as_json: bool) -> None:
    """Show the fleet's counters: messages, bytes sent, pace.

    \b
    Example:
      edgepack fleet info --json
    """
    found = FleetClient(data, url).get("/v1/info", FleetInfo)
    _print(
        found,
        as_json,
        lambda: "\n".join(f"{name}: {value}" for name, value in msgspec.to_builtins(found).items()),
    )


@fleet.command()
@click.argument("device")
@click.option("--group", required=True, help="The device's group.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder to write; copy it to the device.",
)
@_asks
def enroll(device: str, group: str, output: Path, data: Path, url: str, as_json: bool) -> None:
    """Take a device into the fleet and write its settings, keys and certificate.

    \b
    Example:
      edgepack fleet enroll cam-7 --group cameras -o cam-7/
      edgepack-agent --config cam-7/agent.toml run
    """
    client = FleetClient(data, url)
    enrollment = enroll_device(client, device=device, group=group, folder=output)
    document = {"device": device, "group": group, "config": str(output / "agent.toml")}
    _print(
        document,
        as_json,
        lambda: f"{enrollment.device} is enrolled in group {group}: {output / 'agent.toml'}",
    )


@fleet.command("broker-config")
@click.option("--host", "hosts", multiple=True, required=True, help="Name or address; repeatable.")
@click.option("--port", default=8883, show_default=True, help="Where mosquitto listens.")
@click.option("--tenant", default="default", show_default=True, help="Whose topics.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder to write.",
)
@_data
@_json
def broker_config(
    hosts: tuple[str, ...], port: int, tenant: str, output: Path, data: Path, as_json: bool
) -> None:
    """Write mosquitto.conf, access rules and a server certificate for this fleet.

    \b
    Example:
      edgepack fleet broker-config --host broker.example -o broker/
      mosquitto -c broker/mosquitto.conf
      edgepack fleet serve --broker mqtts://broker.example:8883
    """
    folder = DataFolder(data)
    config = write_broker_folder(folder, folder=output, hosts=hosts, port=port, tenant=tenant)
    document = {"config": str(config), "broker": f"mqtts://{hosts[0]}:{port}"}
    _print(
        document,
        as_json,
        lambda: f"mosquitto -c {config}\nedgepack fleet serve --broker {document['broker']}",
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def rollout() -> None:
    """Start, watch, pause and abort rollouts.

    \b
    Example:
      edgepack rollout start model-1.2.0.edgepack --group cameras --waves 1,10%,100%
      edgepack rollout watch r1
    """


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
            self.fail(f"{value!r} is no share such as 10% or 0.1", param, ctx)
        if not 0 <= number <= 1:
            self.fail(f"{value!r} is not between 0% and 100%", param, ctx)
        return number


@rollout.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--group", default="", help="To this group.")
@click.option("--device", "names", multiple=True, help="To this device; repeatable.")
@click.option("--all", "everybody", is_flag=True, help="To every device.")
@click.option(
    "--waves",
    default="1,10%,100%",
    show_default=True,
    help="Devices addressed in all after each wave.",
)
@click.option(
    "--soak", default=10.0, show_default=True, help="Seconds a model serves before its commit."
)
@click.option(
    "--deadline", default=900.0, show_default=True, help="Seconds until a device counts as silent."
)
@click.option(
    "--max-failures",
    type=Share(),
    default="10%",
    show_default=True,
    help="Share of failed and silent devices of a wave that is let pass.",
)
@click.option(
    "--min-sample",
    default=5,
    show_default=True,
    help="Decided devices before a wave under way is judged.",
)
@click.option(
    "--on-breach",
    type=click.Choice(["pause", "abort"]),
    default="pause",
    show_default=True,
    help="What happens when more fail.",
)
@_asks
def start(
    bundle: Path,
    group: str,
    names: tuple[str, ...],
    everybody: bool,
    waves: str,
    soak: float,
    deadline: float,
    max_failures: float,
    min_sample: int,
    on_breach: Any,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Upload a bundle and roll it out, wave by wave.

    \b
    Example:
      edgepack rollout start model-1.2.0.edgepack --group cameras
      edgepack rollout start model-1.2.0.edgepack --device cam-7 --soak 60
    """
    selector = _selector(group, names, everybody)
    parse_waves(waves)
    client = FleetClient(data, url)
    release = _upload(client, bundle)
    request = RolloutRequest(
        digest=release.bundle.digest,
        selector=selector,
        waves=waves,
        soak_s=soak,
        deadline_s=deadline,
        max_failed_share=max_failures,
        min_sample=min_sample,
        on_breach=on_breach,
    )
    view = client.post("/v1/rollouts", RolloutView, request)
    _print(view, as_json, lambda: _started(view))


def _started(view: RolloutView) -> str:
    count = len(view.assignments)
    return (
        f"{view.rollout}: {view.bundle.name} {view.bundle.version} goes to {count} "
        f"{'device' if count == 1 else 'devices'} in {view.wave_count} "
        f"{'wave' if view.wave_count == 1 else 'waves'}\n"
        f"edgepack rollout watch {view.rollout}"
    )


def _selector(group: str, names: tuple[str, ...], everybody: bool) -> Selector:
    if sum((bool(group), bool(names), everybody)) != 1:
        raise click.UsageError("name the devices: one of --group, --device, --all")
    if group:
        return Selector(kind="group", group=group)
    return Selector(kind="all") if everybody else Selector(kind="devices", devices=names)


def _upload(client: FleetClient, bundle: Path) -> ReleaseView:
    if bundle.is_file():
        return client.upload("/v1/releases", ReleaseView, bundle)
    if not bundle.is_dir():
        raise FleetError(
            "there is no such bundle",
            found_in=str(bundle),
            remedy="edgepack build MODEL.onnx --profile cpu --key release.key -o FILE.edgepack",
        )
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        archive = Path(folder) / "bundle.edgepack"
        pack(bundle, archive)
        return client.upload("/v1/releases", ReleaseView, archive)


@rollout.command("list")
@_asks
def list_rollouts(data: Path, url: str, as_json: bool) -> None:
    """List all rollouts, the newest first.

    \b
    Example:
      edgepack rollout list
    """
    found = FleetClient(data, url).get("/v1/rollouts", tuple[RolloutView, ...])
    _print(found, as_json, lambda: show.rollouts_table(found))


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@_asks
def status(name: str, data: Path, url: str, as_json: bool) -> None:
    """Show a rollout, its devices and the latency they report.

    \b
    Example:
      edgepack rollout status r1
    """
    view = FleetClient(data, url).get(rollout_path(name), RolloutView)
    _print(view, as_json, lambda: show.rollout_panel(view))


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@_asks
def watch(name: str, data: Path, url: str, as_json: bool) -> None:
    """Watch a rollout until it ends or pauses; exit code 0 when it finished.

    \b
    Example:
      edgepack rollout watch r1
    """
    client = FleetClient(data, url)

    def look() -> RolloutView:
        return client.get(rollout_path(name), RolloutView)

    if sys.stdout.isatty() and not as_json:
        view = _watch_live(look)
    else:
        view = _watch_lines(look, as_json)
    if view.state != "FINISHED":
        sys.exit(1)


def _watch_live(look: Callable[[], RolloutView]) -> RolloutView:
    view = look()
    with Live(show.rollout_panel(view), console=_console(), auto_refresh=False) as live:
        while view.state not in STOPPED:
            time.sleep(WATCH_S)
            view = look()
            live.update(show.rollout_panel(view), refresh=True)
    return view


def _watch_lines(look: Callable[[], RolloutView], as_json: bool) -> RolloutView:
    shown: Any = None
    while True:
        view = look()
        key = (view.state, view.wave, view.counts, view.because)
        if key != shown and as_json:
            click.echo(msgspec.json.encode(msgspec.structs.replace(view, assignments=())))
        elif key != shown:
            click.echo(
                f"{show.stamp(time.time())} {view.rollout} {view.state} "
                f"wave {view.wave}/{view.wave_count}: {show.counts_line(view)}; {view.because}"
            )
        shown = key
        if view.state in STOPPED:
            return view
        time.sleep(WATCH_S)


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@_asks
def pause(name: str, data: Path, url: str, as_json: bool) -> None:
    """Offer the release to nobody more; devices that are at it go on.

    \b
    Example:
      edgepack rollout pause r1
    """
    _act(name, "/pause", data, url, as_json)


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@_asks
def resume(name: str, data: Path, url: str, as_json: bool) -> None:
    """Go on after a pause; the failures so far are accepted, further ones are not.

    \b
    Example:
      edgepack rollout resume r1
    """
    _act(name, "/resume", data, url, as_json)


@rollout.command()
@click.argument("name", metavar="ROLLOUT")
@click.option(
    "--rollback", is_flag=True, help="Also send devices that committed back to what they ran."
)
@_asks
def abort(name: str, rollback: bool, data: Path, url: str, as_json: bool) -> None:
    """End a rollout; devices that have not decided keep what they ran before.

    \b
    Example:
      edgepack rollout abort r1 --rollback
    """
    _act(name, f"/abort?recall={'all' if rollback else 'undecided'}", data, url, as_json)


def _act(name: str, action: str, data: Path, url: str, as_json: bool) -> None:
    view = FleetClient(data, url).post(rollout_path(name, action), RolloutView)
    _print(view, as_json, lambda: show.rollout_panel(view))


@click.command()
@click.option("--devices", "count", default=20, show_default=True, help="How many.")
@click.option("--group", default="simulated", show_default=True, help="Their group.")
@click.option("--prefix", default="sim", show_default=True, help="Ids are PREFIX-1, PREFIX-2 …")
@click.option("--fail-rate", type=Share(), default="0%", help="Share that fails its probe.")
@click.option("--silent-rate", type=Share(), default="0%", help="Share that says nothing.")
@click.option("--seed", default=0, show_default=True, help="Of all that is random.")
@click.option("--for", "for_s", type=float, help="Seconds to run; until Ctrl-C when not given.")
@_asks
def simulate(
    count: int,
    group: str,
    prefix: str,
    fail_rate: float,
    silent_rate: float,
    seed: int,
    for_s: float | None,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Enrol simulated devices and run them over the real broker.

    They speak the real protocol and check every chunk, but run no model.

    \b
    Example:
      edgepack simulate --devices 200 --fail-rate 2%
      edgepack rollout start model-1.2.0.edgepack --group simulated
    """
    from edgepack.fleet.simulate import SimulateSettings
    from edgepack.fleet.simulate import simulate as run

    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())

    def tell(states: dict[str, int]) -> None:
        click.echo(", ".join(f"{n} {state}" for state, n in states.items()), err=True)

    settings = SimulateSettings(
        count=count,
        group=group,
        prefix=prefix,
        fail_rate=fail_rate,
        silent_rate=silent_rate,
        seed=seed,
    )
    states = run(FleetClient(data, url), settings, stopping=stopping, for_s=for_s, show=tell)
    if as_json:
        click.echo(msgspec.json.encode(states))
