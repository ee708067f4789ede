"""The command `edgepack simulate`."""

import signal
import threading
from pathlib import Path

import click

from edgepack.bandwidth import Bandwidth
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.options import Rate, asks
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.wording import numbers_line
from edgepack.fleet.simulation.behaviour import parse_change
from edgepack.fleet.simulation.simulate import SimulateSettings
from edgepack.fleet.simulation.simulate import simulate as run
from edgepack.setting_options import Number, Share


@click.command()
@click.option(
    "--devices", "count", type=click.IntRange(1), default=20, show_default=True, help="How many."
)
@click.option("--group", default="simulated", show_default=True, help="Their group.")
@click.option("--prefix", default="sim", show_default=True, help="Ids are PREFIX-1, PREFIX-2 …")
@click.option("--fail-rate", type=Share(), default="0%", help="Share that fails its probe.")
@click.option("--silent-rate", type=Share(), default="0%", help="Share that says nothing.")
@click.option(
    "--worse",
    multiple=True,
    metavar="CLASS:GATE=NUMBER",
    help="What releases after a device's first change of what that hardware class measures: "
    "sim-arm-a76:p95=1.3 (times), sim-x86-vnni:drift=0.6 (more); repeatable.",
)
@click.option("--loss", type=Share(), default="0%", help="Share of the chunks that get lost.")
@click.option(
    "--takes",
    type=Rate(),
    default="",
    help="What each device takes a second, such as 1MB/s; all that comes when not given.",
)
@click.option("--seed", default=0, show_default=True, help="Of all that is random.")
@click.option(
    "--for", "for_s", type=Number(min=0), help="Seconds to run; until Ctrl-C when not given."
)
@asks
def simulate(
    count: int,
    group: str,
    prefix: str,
    fail_rate: float,
    silent_rate: float,
    worse: tuple[str, ...],
    loss: float,
    takes: Bandwidth,
    seed: int,
    for_s: float | None,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Enrol simulated devices and run the devices over the real broker.

    Simulated devices use the real protocol and check every chunk, but run no model.

    \b
    Example:
      edgepack simulate --devices 200 --fail-rate 2%
      edgepack rollout start model-1.2.0.edgepack --group simulated
      edgepack simulate --devices 30 --worse sim-arm-a76:p95=1.3
      edgepack simulate --devices 50 --loss 5%
    """
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())

    def tell(states: dict[str, int]) -> None:
        click.echo(numbers_line(states), err=True)

    settings = SimulateSettings(
        count=count,
        group=group,
        prefix=prefix,
        fail_rate=fail_rate,
        silent_rate=silent_rate,
        seed=seed,
        changes=tuple(map(parse_change, worse)),
        loss=loss,
        takes_bytes_per_s=takes.bytes_per_s or 0.0,
    )
    states = run(FleetClient(url, data=data), settings, stopping=stopping, for_s=for_s, show=tell)
    print_result(states, as_json, numbers_line)
