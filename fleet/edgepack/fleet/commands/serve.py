"""The command `edgepack fleet serve`."""

import logging
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgepack.fleet.broker.settings.write import are_outdated
from edgepack.fleet.commands.options import TYPES, check_data_folder, data_option
from edgepack.fleet.commands.printing import LogFormatter
from edgepack.fleet.commands.repeated_records import RepeatedRecords
from edgepack.fleet.server.settings import SETTINGS, Network, ServeSettings
from edgepack.key_place import into_work_tree_option
from edgepack.setting_options import options_of, values_of

if TYPE_CHECKING:
    from edgepack.fleet.server.fleet import Fleet


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


@click.command()
@data_option
@options_of(SETTINGS, TYPES | {Network: NetworkAddress()})
@into_work_tree_option
@click.option("-v", "--verbose", is_flag=True, help="Log every transition.")
def serve(data: Path, verbose: bool, **words: Any) -> None:
    """Run controller, depot and API, and a broker when none is named, until Ctrl-C.

    \b
    Example:
      edgepack fleet serve --trust release.pub
      edgepack fleet serve --broker mqtts://broker.example:8883
      edgepack fleet serve --broker wss://broker.example/mqtt --broker-proxy http://proxy:3128
      edgepack fleet serve --host 0.0.0.0 --tls-cert fleet.crt --tls-key fleet.key
      edgepack fleet serve --bandwidth 08:00-18:00=2MB/s,50MB/s
    """
    check_data_folder(data)
    # Database, web server and broker are loaded for this command only: the others start at once.
    from edgepack.fleet.dashboard.routes import dashboard_routes
    from edgepack.fleet.server.serve import serve as run

    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[RepeatedRecords(handler)])
    settings = ServeSettings(data=data, **values_of(SETTINGS, words))
    run(settings, dashboard_routes, lambda running, url: _report_start(settings, running, url))


def _report_start(settings: ServeSettings, running: "Fleet", url: str) -> None:
    """Print addresses of the running fleet, and notes on its settings."""
    from edgepack.fleet.broker.embedded import LIMITS
    from edgepack.fleet.server.listening import is_loopback

    token = settings.data / "token"
    click.echo(f"fleet '{settings.tenant}' serves at {url}, token in {token}", err=True)
    click.echo(f"dashboard: {url}/ (edgepack fleet login prints a link into it)", err=True)
    click.echo(f"broker: {running.broker_url}", err=True)
    notes = []
    if not settings.broker:
        notes.append(LIMITS)
    if running.broker_is_tls and are_outdated(running.folder):
        notes.append(
            "the broker's settings were written by an earlier edgepack: write them again "
            "(edgepack fleet broker-config) and restart the broker"
        )
    if settings.tls_cert is None and not is_loopback(settings.host):
        notes.append(
            f"what goes to {settings.host} and from it, tokens too, can be read on its way: "
            "serve it by https (--tls-cert, --tls-key)"
        )
    if kept := running.repository.keys_at_hand():
        notes.append(
            f"keys that belong elsewhere ({', '.join(kept)}) lie in "
            f"{running.repository.offline}: move that folder off this machine, and name it "
            "with --keys when you sign (edgepack fleet keys)"
        )
    notes += running.expiries.warnings()
    if not running.trust.keys:
        notes.append("no key is trusted yet, so no bundle is taken (--trust)")
    for note in notes:
        click.echo(f"note: {note}", err=True)
