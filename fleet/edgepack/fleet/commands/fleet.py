"""The commands `edgepack fleet …`; some, and `rollout` and `simulate`, have files of their own."""

import os
import shlex
import time
from pathlib import Path

import click

from edgepack.command_options import folder_option
from edgepack.fleet.broker.settings.write import KINDS, write_broker_folder
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands import show
from edgepack.fleet.commands.audit import audit
from edgepack.fleet.commands.devices import devices
from edgepack.fleet.commands.enrolment import enroll, revocations
from edgepack.fleet.commands.feedback import feedback
from edgepack.fleet.commands.keys import init, keys
from edgepack.fleet.commands.latency import latency
from edgepack.fleet.commands.options import PORT, asks, check_data_folder, data_option, json_option
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.commands.releases import releases
from edgepack.fleet.commands.samples import capture, samples
from edgepack.fleet.commands.serve import serve
from edgepack.fleet.commands.tokens import tokens
from edgepack.fleet.commands.webhooks import webhooks
from edgepack.fleet.data_folder import MAX_CONTROLLERS, DataFolder
from edgepack.key_place import check_key_place, into_work_tree_option

NUMBER = click.IntRange(0, 10**15)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def fleet() -> None:
    """Serve a fleet, enrol and list its devices.

    \b
    Example:
      edgepack fleet serve --trust release.pub
      edgepack fleet enroll cam-7 --group cameras
    """


fleet.add_command(audit)
fleet.add_command(capture)
fleet.add_command(feedback)
fleet.add_command(devices)
fleet.add_command(enroll)
fleet.add_command(revocations)
fleet.add_command(latency)
fleet.add_command(init)
fleet.add_command(keys)
fleet.add_command(releases)
fleet.add_command(samples)
fleet.add_command(serve)
fleet.add_command(tokens)
fleet.add_command(webhooks)


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
    """List events of devices and rollouts, oldest first.

    \b
    Example:
      edgepack fleet events --after 1200 --json
    """
    found = FleetClient(url, data=data).events(after=after, limit=limit)
    print_result(found, as_json, lambda shown: show.events_table(shown, time.time()))


@fleet.command("broker-config")
@click.argument("kind", type=click.Choice(tuple(KINDS)), default="mosquitto")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    help="Name or address of the broker, or of each of its nodes; repeatable.",
)
@click.option("--port", type=PORT, default=8883, show_default=True, help="Where it listens.")
@click.option("--tenant", default="default", show_default=True, help="Whose topics.")
@click.option(
    "--controllers",
    type=click.IntRange(1, MAX_CONTROLLERS),
    default=1,
    show_default=True,
    help="Controllers that share a PostgreSQL and this folder.",
)
@folder_option("Folder to write.")
@into_work_tree_option
@data_option
@json_option
def broker_config(
    kind: str,
    hosts: tuple[str, ...],
    port: int,
    tenant: str,
    controllers: int,
    output: Path,
    data: Path,
    as_json: bool,
) -> None:
    """Write a broker's settings, access rules and server certificate for this fleet.

    For mosquitto unless another KIND is named. The tests of edgepack run mosquitto and ejabberd
    with these settings, and neither EMQX nor HiveMQ.

    \b
    Example:
      edgepack fleet broker-config --host broker.example -o broker/
      mosquitto -c broker/mosquitto.conf
      edgepack fleet serve --broker mqtts://broker.example:8883
      edgepack fleet broker-config ejabberd --host one.example --host two.example -o broker/
    """
    check_key_place(output)
    check_data_folder(data)
    config = write_broker_folder(
        DataFolder(data),
        kind=kind,
        folder=output,
        hosts=hosts,
        port=port,
        tenant=tenant,
        controllers=controllers,
    )
    is_cluster = kind != "mosquitto"
    nodes = ",".join(f"{host}:{port}" for host in (hosts if is_cluster else hosts[:1]))
    document = {"config": str(config), "broker": f"mqtts://{nodes}"}
    if not KINDS[kind].is_run_here:
        click.echo(
            f"note: no {kind} was ever run with these settings; try them before you rely on them",
            err=True,
        )
    if os.geteuid() == 0 and (user := KINDS[kind].user):
        click.echo(
            f"note: {kind} started by root continues as the user {user}, who must own the folder: "
            f"chown -R {user} {shlex.quote(str(config.parent))}",
            err=True,
        )
    start = KINDS[kind].start.format(config=config, folder=config.parent)
    print_result(
        document,
        as_json,
        lambda _: f"{start}\nedgepack fleet serve --broker {document['broker']}",
    )
