"""The command `edgepack simulate`."""

import threading
from pathlib import Path
from typing import Any

import click

from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.options import TYPES, asks
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.wording import numbers_line
from edgepack.fleet.simulation.behaviour import Change, parse_change
from edgepack.fleet.simulation.simulate import SETTINGS, SimulateSettings
from edgepack.fleet.simulation.simulate import simulate as run
from edgepack.setting_options import Number, options_of, values_of
from edgepack.signals import call_on_signals


@click.command()
@options_of(SETTINGS, TYPES | {Change: click.types.FuncParamType(parse_change)})
@click.option(
    "--for", "for_s", type=Number(min=0), help="Seconds to run; until Ctrl-C when not given."
)
@asks
def simulate(for_s: float | None, data: Path, url: str, as_json: bool, **words: Any) -> None:
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
    call_on_signals(lambda _: stopping.set())

    def tell(states: dict[str, int]) -> None:
        click.echo(numbers_line(states), err=True)

    settings = SimulateSettings(**values_of(SETTINGS, words))
    states = run(FleetClient(url, data=data), settings, stopping=stopping, for_s=for_s, show=tell)
    print_result(states, as_json, numbers_line)
