"""The commands `edgepack fleet devices …`."""

import sys
import time
from pathlib import Path

import click

from edgepack.fleet.client.connection import ask_patiently
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands import show
from edgepack.fleet.commands.completion import device_names, group_names
from edgepack.fleet.commands.options import Duration, asks, read_labels
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.commands.show_device import device_panel
from edgepack.fleet.documents.devices import RemovedDevice
from edgepack.fleet.documents.logs import LogView
from edgepack.fleet.documents.wording import labels_line
from edgepack.text import counted, printable_lines
from edgepack.wire.orders import MAX_LOG_LINES

_LOOK_S = 0.5


@click.group(invoke_without_command=True)
@click.option("--group", default="", shell_complete=group_names, help="Only this group.")
@click.option("--where", default="", help="Only those that labels and facts mean.")
@asks
@click.pass_context
def devices(
    context: click.Context, group: str, where: str, data: Path, url: str, as_json: bool
) -> None:
    """List devices with release, provider and state.

    --where is made of `key=value` and `key!=value`, `and`, `or`, `not` and parentheses; a key is a
    label, or a fact: agent, arch, cpu, cpu_feature, device, group, hardware_class, online (yes or
    no), os, provider, python, runtime, soc.

    \b
    Example:
      edgepack fleet devices --group cameras
      edgepack fleet devices --where 'soc=QCS6490 and site=berlin'
      edgepack fleet devices show cam-7
    """
    if context.invoked_subcommand is not None:
        if group or where:
            raise click.UsageError(f"'{context.invoked_subcommand}' takes device ids, no filter")
        return
    client = FleetClient(url, data=data)
    found, info = client.devices(group, where=where), client.info()
    print_result(found, as_json, lambda shown: show.devices_table(shown, info, time.time()))


@devices.command("show")
@click.argument("device", shell_complete=device_names)
@asks
def show_one(device: str, data: Path, url: str, as_json: bool) -> None:
    """Show a device: labels, facts, models, providers, rollouts.

    \b
    Example:
      edgepack fleet devices show cam-7
    """
    found = FleetClient(url, data=data).device(device)
    print_result(found, as_json, lambda shown: device_panel(shown, time.time()))


@devices.command("log")
@click.argument("device", shell_complete=device_names)
@click.option(
    "--lines",
    type=click.IntRange(1, MAX_LOG_LINES),
    default=200,
    show_default=True,
    help="Lines, at most.",
)
@click.option(
    "--wait",
    type=Duration(),
    default="1m",
    show_default=True,
    help="Wait so long at most for the device; exit code 1 if no line came.",
)
@click.option("--last", is_flag=True, help="Show the lines of the last request, and ask nothing.")
@asks
def show_log(
    device: str, lines: int, wait: float, last: bool, data: Path, url: str, as_json: bool
) -> None:
    """Show the last lines of the log of a device's agent.

    The device removes secrets. Its own settings may forbid the request ([logs] send). A device that
    is away answers within an hour: --last shows the answer.

    \b
    Example:
      edgepack fleet devices log cam-7
      edgepack fleet devices log cam-7 --lines 50 --wait 5m
      edgepack fleet devices log cam-7 --last
    """
    client = FleetClient(url, data=data)
    found = client.device_log(device) if last else client.request_log(device, lines=lines)
    until = time.monotonic() + wait
    while not last and found.state == "ASKED" and time.monotonic() < until:
        time.sleep(_LOOK_S)
        found = ask_patiently(lambda: client.device_log(device))
    print_result(found, as_json, _log_lines)
    if found.state != "RECEIVED":
        sys.exit(1)


def _log_lines(found: LogView) -> str:
    reasons = {
        "NONE": "no request was made: edgepack fleet devices log DEVICE makes one",
        "ASKED": "the device has not answered yet: look again with --last",
        "EXPIRED": "the device did not answer in time",
        "REFUSED": f"the device refused: {found.because}",
        "RECEIVED": "the log of the agent has no line",
    }
    return printable_lines(found.lines or (reasons[found.state],))


@devices.command()
@click.argument("names", metavar="DEVICE...", nargs=-1, required=True, shell_complete=device_names)
@click.option("--group", required=True, shell_complete=group_names, help="Their new group.")
@asks
def move(names: tuple[str, ...], group: str, data: Path, url: str, as_json: bool) -> None:
    """Move devices to another group; the devices get the group's releases and finish running
    updates first.

    \b
    Example:
      edgepack fleet devices move cam-7 cam-8 --group doors
    """
    found = FleetClient(url, data=data).move_devices(names, group)
    print_result(found, as_json, lambda shown: f"{counted(len(shown), 'device')} in group {group}")


@devices.command()
@click.argument(
    "words", metavar="DEVICE... KEY=VALUE...", nargs=-1, required=True, shell_complete=device_names
)
@asks
def label(words: tuple[str, ...], data: Path, url: str, as_json: bool) -> None:
    """Set labels of devices; `KEY=` removes a label.

    \b
    Example:
      edgepack fleet devices label cam-7 cam-8 site=berlin floor=2
      edgepack fleet devices label cam-7 floor=
    """
    names = tuple(word for word in words if "=" not in word)
    labels = read_labels(tuple(word for word in words if "=" in word))
    if not names or not labels:
        raise click.UsageError("name devices and labels: cam-7 site=berlin")
    found = FleetClient(url, data=data).label_devices(names, labels)
    print_result(
        found,
        as_json,
        lambda shown: "\n".join(f"{one.device}: {labels_line(one.labels)}" for one in shown),
    )


@devices.command()
@click.argument("names", metavar="DEVICE...", nargs=-1, required=True, shell_complete=device_names)
@asks
def remove(names: tuple[str, ...], data: Path, url: str, as_json: bool) -> None:
    """Remove devices from the fleet: ignore their messages and revoke their certificates.

    The broker learns that from the list that `edgepack fleet revocations` writes.

    \b
    Example:
      edgepack fleet devices remove cam-7
      edgepack fleet revocations -o broker/ca.crl
    """
    client = FleetClient(url, data=data)
    found = client.remove_devices(names)
    is_tls = client.info().broker_is_tls
    print_result(found, as_json, lambda shown: _removed(shown, is_tls=is_tls))


def _removed(devices: tuple[RemovedDevice, ...], *, is_tls: bool) -> str:
    lines = [f"{one.device} is removed" for one in devices]
    if any(one.certificate for one in devices):
        lines.append("edgepack fleet revocations -o broker/ca.crl  tells the broker")
    for one in devices:
        if is_tls and not one.certificate and not one.had_none:
            lines += [
                f"note: the certificate of {one.device} is not revoked: it was issued before the "
                "fleet kept their numbers, and the broker lets it in until it expires",
                f"  edgepack fleet revocations --revoke {one.device}/device.crt -o broker/ca.crl"
                "  ends it; the file is in the folder that the device was set up from",
            ]
    return "\n".join(lines)
