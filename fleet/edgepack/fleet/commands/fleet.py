"""The commands `edgepack fleet …`; some, and `rollout` and `simulate`, have files of their own."""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.fleet.broker.mosquitto import are_outdated, write_broker_folder
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands import show
from edgepack.fleet.commands.audit import audit
from edgepack.fleet.commands.devices import devices
from edgepack.fleet.commands.feedback import feedback
from edgepack.fleet.commands.keys import init, keys
from edgepack.fleet.commands.latency import latency
from edgepack.fleet.commands.options import asks, data_option, json_option, read_labels
from edgepack.fleet.commands.printing import LogFormatter, print_result
from edgepack.fleet.commands.releases import releases
from edgepack.fleet.commands.tokens import tokens
from edgepack.fleet.data_folder import MAX_CONTROLLERS, DataFolder
from edgepack.text import counted

if TYPE_CHECKING:
    from edgepack.fleet.server.fleet import Fleet

PORT, NUMBER = click.IntRange(0, 65535), click.IntRange(0, 10**15)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def fleet() -> None:
    """Serve a fleet, enrol and list its devices.

    \b
    Example:
      edgepack fleet serve --trust release.pub
      edgepack fleet enroll cam-7 --group cameras -o cam-7/
    """


fleet.add_command(audit)
fleet.add_command(feedback)
fleet.add_command(devices)
fleet.add_command(latency)
fleet.add_command(init)
fleet.add_command(keys)
fleet.add_command(releases)
fleet.add_command(tokens)


@fleet.command()
@data_option
@click.option(
    "--database",
    envvar="EDGEPACK_FLEET_DATABASE",
    default="",
    help="postgresql:// URL; SQLite in the folder when not given. [env: EDGEPACK_FLEET_DATABASE]",
)
@click.option(
    "--broker", default="", help="mqtt:// or mqtts:// URL; an embedded broker when not given."
)
@click.option(
    "--broker-port", type=PORT, default=1883, show_default=True, help="Port of the embedded broker."
)
@click.option("--broker-user", default="", help="User name at the broker.")
@click.option(
    "--broker-password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File whose first line is the password.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the API listens.")
@click.option("--port", type=PORT, default=8600, show_default=True, help="Where the API listens.")
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM of the API's certificate and those above it: served by https.",
)
@click.option(
    "--tls-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM of its private key.",
)
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
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(1, 600),
    default=5.0,
    show_default=True,
    help="Of several controllers on a PostgreSQL another one leads so many seconds after the "
    "leader died.",
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
    tls_cert: Path | None,
    tls_key: Path | None,
    tenant: str,
    trust: tuple[Path, ...],
    auto_enroll: bool,
    lease_s: float,
    verbose: bool,
) -> None:
    """Run controller, depot and API, and a broker when none is named, until Ctrl-C.

    \b
    Example:
      edgepack fleet serve --trust release.pub
      edgepack fleet serve --broker mqtts://broker.example:8883
      edgepack fleet serve --host 0.0.0.0 --tls-cert fleet.crt --tls-key fleet.key
    """
    # Database, web server and broker are loaded for this command only: the others start at once.
    from edgepack.fleet.broker.embedded import LIMITS
    from edgepack.fleet.dashboard.routes import dashboard_routes
    from edgepack.fleet.server.serve import ServeSettings, is_loopback
    from edgepack.fleet.server.serve import serve as run

    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    password = ""
    if broker_password_file is not None:
        password = broker_password_file.read_text().partition("\n")[0]

    def ready(running: "Fleet", url: str) -> None:
        click.echo(f"fleet '{tenant}' serves at {url}, token in {data / 'token'}", err=True)
        click.echo(f"dashboard: {url}/ (edgepack fleet login prints a link into it)", err=True)
        click.echo(f"broker: {running.broker_url}", err=True)
        if not broker:
            click.echo(f"note: {LIMITS}", err=True)
        if running.broker_is_tls and are_outdated(running.folder):
            click.echo(
                "note: the broker's settings were written by an earlier edgepack: write them again "
                "(edgepack fleet broker-config) and restart the broker",
                err=True,
            )
        if tls_cert is None and not is_loopback(host):
            click.echo(
                f"note: what goes to {host} and from it, tokens too, can be read on its way: "
                "serve it by https (--tls-cert, --tls-key)",
                err=True,
            )
        if kept := running.repository.keys_at_hand():
            click.echo(
                f"note: keys that belong elsewhere ({', '.join(kept)}) lie in "
                f"{running.repository.offline}: move that folder off this machine, and name it "
                "with --keys when you sign (edgepack fleet keys)",
                err=True,
            )
        for warning in running.repository.warnings():
            click.echo(f"note: {warning}", err=True)
        if not running.trust.keys:
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
            tls_cert=tls_cert,
            tls_key=tls_key,
            tenant=tenant,
            trust=trust,
            auto_enroll=auto_enroll,
            lease_s=lease_s,
        ),
        dashboard_routes,
        ready,
    )


@fleet.command()
@asks
def info(data: Path, url: str, as_json: bool) -> None:
    """Show the fleet's counters: messages, bytes sent, pace.

    \b
    Example:
      edgepack fleet info --json
    """
    found = FleetClient(url, data=data).info()
    print_result(found, as_json, show.info_table)


@fleet.command()
@asks
def login(data: Path, url: str, as_json: bool) -> None:
    """Print a link that opens the dashboard once, without a token, for two minutes.

    \b
    Example:
      edgepack fleet login
    """
    found = FleetClient(url, data=data).login_link()
    print_result(found, as_json, lambda shown: shown.url)


@fleet.command()
@asks
def groups(data: Path, url: str, as_json: bool) -> None:
    """List the groups and how many devices each has.

    \b
    Example:
      edgepack fleet groups
    """
    found = FleetClient(url, data=data).groups()
    print_result(found, as_json, show.groups_table)


@fleet.command()
@click.option(
    "--after", type=NUMBER, default=0, show_default=True, help="Only events newer than this one."
)
@click.option("--limit", type=NUMBER, default=100, show_default=True, help="At most so many.")
@asks
def events(after: int, limit: int, data: Path, url: str, as_json: bool) -> None:
    """List what happened to devices and rollouts, oldest first.

    \b
    Example:
      edgepack fleet events --after 1200 --json
    """
    found = FleetClient(url, data=data).events(after=after, limit=limit)
    print_result(found, as_json, lambda shown: show.events_table(shown, time.time()))


@fleet.command()
@click.argument("device")
@click.option("--group", required=True, help="The device's group.")
@click.option("--label", "words", metavar="KEY=VALUE", multiple=True, help="A label; repeatable.")
@click.option(
    "--replace", is_flag=True, help="Of a known id: end its credentials, give it new ones."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder to write; copy it to the device.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_STATE_DIR,
    show_default=True,
    help="Where the device keeps its state.",
)
@asks
def enroll(
    device: str,
    group: str,
    words: tuple[str, ...],
    replace: bool,
    output: Path,
    state_dir: Path,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Take a device into the fleet and write its settings, keys and certificate.

    \b
    Example:
      edgepack fleet enroll cam-7 --group cameras --label site=berlin -o cam-7/
      edgepack-agent run --config cam-7/agent.toml
    """
    found = FleetClient(url, data=data).enroll(
        device,
        group=group,
        labels=read_labels(words),
        replace=replace,
        folder=output,
        state_dir=state_dir,
    )
    print_result(
        found,
        as_json,
        lambda shown: f"{shown.device} is enrolled in group {shown.group}: {shown.config}",
    )


@fleet.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File to write: ca.crl in the broker's folder.",
)
@click.option(
    "--revoke",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Revoke the certificate in this file first: one of which the fleet has no number.",
)
@asks
def revocations(output: Path, revoke: Path | None, data: Path, url: str, as_json: bool) -> None:
    """Write the list of revoked certificates for the broker, which reads it at a SIGHUP.

    \b
    Example:
      edgepack fleet revocations -o broker/ca.crl
      edgepack fleet revocations --revoke cam-7/device.crt -o broker/ca.crl
      kill -HUP $(pidof mosquitto)
    """
    client = FleetClient(url, data=data)
    if revoke is not None:
        client.revoke(revoke)
    found = client.revocations(output)
    print_result(
        found,
        as_json,
        lambda shown: f"{counted(shown.certificates, 'certificate')} revoked: {output}",
    )


@fleet.command("broker-config")
@click.option("--host", "hosts", multiple=True, required=True, help="Name or address; repeatable.")
@click.option("--port", type=PORT, default=8883, show_default=True, help="Where mosquitto listens.")
@click.option("--tenant", default="default", show_default=True, help="Whose topics.")
@click.option(
    "--controllers",
    type=click.IntRange(1, MAX_CONTROLLERS),
    default=1,
    show_default=True,
    help="Controllers that share a PostgreSQL and this folder.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder to write.",
)
@data_option
@json_option
def broker_config(
    hosts: tuple[str, ...],
    port: int,
    tenant: str,
    controllers: int,
    output: Path,
    data: Path,
    as_json: bool,
) -> None:
    """Write mosquitto.conf, access rules and a server certificate for this fleet.

    \b
    Example:
      edgepack fleet broker-config --host broker.example -o broker/
      mosquitto -c broker/mosquitto.conf
      edgepack fleet serve --broker mqtts://broker.example:8883
    """
    config = write_broker_folder(
        DataFolder(data),
        folder=output,
        hosts=hosts,
        port=port,
        tenant=tenant,
        controllers=controllers,
    )
    document = {"config": str(config), "broker": f"mqtts://{hosts[0]}:{port}"}
    print_result(
        document,
        as_json,
        lambda _: f"mosquitto -c {config}\nedgepack fleet serve --broker {document['broker']}",
    )
