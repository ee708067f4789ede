"""The commands `edgepack fleet devices …`."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.client.connection import ask_patiently
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands import show
from edgepack.fleet.commands.completion import device_names, group_names
from edgepack.fleet.commands.options import Duration, asks, read_labels
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.commands.show import model_rows, styled
from edgepack.fleet.documents.devices import DeviceDetails, RemovedDevice
from edgepack.fleet.documents.logs import LogView
from edgepack.fleet.documents.releases import full_title
from edgepack.fleet.documents.wording import ago, failures_line, labels_line, numbers_line
from edgepack.text import counted, printable_lines
from edgepack.wire.drift_words import drift_lines
from edgepack.wire.orders import MAX_LOG_LINES
from edgepack.wire.reports import DeviceFacts

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


UNSIGNED = "it obeys orders that nobody signed, since it was enrolled before: enrol it again"


def device_panel(device: DeviceDetails, now: float) -> RenderableType:
    """Return the device's name, facts, models and rollouts."""
    head = Table(box=None, show_header=False, pad_edge=False)
    head.add_column(style="bold")
    head.add_column(overflow="fold")
    lines = [
        ("device", device.device),
        ("group", device.group),
        ("labels", labels_line(device.labels)),
        ("seen", "online" if device.online else ago(device.last_seen, now)),
        ("enrolled", ago(device.enrolled_at, now)),
        *([("certificate", _certificate(device, now))] if device.certificate else []),
        *([("trust", UNSIGNED)] if device.obeys_unsigned else []),
        *(_facts(device.facts) if device.facts else [("facts", "not reported yet")]),
        *(("warning", warning) for warning in device.warnings),
        *(
            (model.name, failures_line(model.outcomes))
            for model in device.models
            if (told := model.outcomes) and (told.failed or told.not_finite or told.bad_inputs)
        ),
        *(
            ("drift", f"{model.name}: {line}")
            for model in device.models
            for line in (drift_lines(model.drift) if model.drift else ())
        ),
        *([("dropped", numbers_line(device.dropped))] if device.dropped else []),
    ]
    for name, value in lines:
        head.add_row(name, Text(value))
    parts: list[RenderableType] = [head]
    if device.models:
        parts += [Text(""), model_rows(device.models)]
    if device.rollouts:
        parts += [Text(""), _rollouts(device)]
    return Group(*parts)


def _certificate(device: DeviceDetails, now: float) -> str:
    ends_at = device.certificate_ends_at
    if ends_at is None:
        return device.certificate
    ends = "ended" if ends_at <= now else "ends"
    day = datetime.fromtimestamp(ends_at, UTC).strftime("%Y-%m-%d")
    return f"{device.certificate}, {ends} on {day}"


def _facts(facts: DeviceFacts) -> list[tuple[str, str]]:
    providers = [
        f"{it.name.removesuffix('ExecutionProvider')}{' (simulated)' if it.is_simulator else ''}"
        for it in facts.providers
        if it.available
    ]
    return [
        ("hardware", facts.hardware_class),
        ("cpu", f"{facts.cpu_count} x {facts.cpu_model}, {facts.arch}"),
        ("soc", facts.soc or "–"),
        ("memory", f"{facts.memory_bytes / 2**30:.1f} GiB"),
        ("system", f"{facts.os}, Python {facts.python}, agent {facts.agent_version}"),
        ("firmware", facts.firmware or "–"),
        ("runtime", facts.runtime),
        ("providers", ", ".join(providers) or "none"),
    ]


def _rollouts(device: DeviceDetails) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("rollout", "bundle", "part", "because"):
        table.add_column(name, overflow="fold")
    for part in device.rollouts:
        table.add_row(
            part.rollout, Text(full_title(part.bundle)), styled(part.state), Text(part.because)
        )
    return table
