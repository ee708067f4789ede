"""The commands `edgepack fleet enroll` and `edgepack fleet revocations`."""

from datetime import datetime
from pathlib import Path

import click

from edgepack.agent.enrolment.package import SUFFIX
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.completion import group_names
from edgepack.fleet.commands.options import asks, read_labels
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.devices import PackagedDevice
from edgepack.key_place import check_key_place, into_work_tree_option
from edgepack.setting_options import Number
from edgepack.text import counted

MAX_TOKEN_HOURS = 720


@click.command()
@click.argument("device")
@click.option("--group", required=True, shell_complete=group_names, help="The device's group.")
@click.option("--label", "words", metavar="KEY=VALUE", multiple=True, help="A label; repeatable.")
@click.option(
    "--replace", is_flag=True, help="Of a known id: end its credentials, give it new ones."
)
@click.option(
    "--package",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write, for edgepack-agent setup; DEVICE.enrol when not given.",
)
@click.option(
    "--enrol-at",
    default="",
    metavar="URL",
    help="Where the device reaches this fleet: it makes its key itself and gets a certificate.",
)
@click.option(
    "--enrol-ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="PEM of whose https certificate the device shall believe there; else its system's.",
)
@click.option(
    "--valid",
    "valid_hours",
    type=Number(0, MAX_TOKEN_HOURS, min_open=True),
    default=24.0,
    show_default=True,
    help="Hours in which it must come there.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="URL",
    help="Where it fetches bundles before it asks the broker, instead of what the fleet serves "
    "with; repeatable.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Instead of the file, write the folder that a device runs from.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_STATE_DIR,
    show_default=True,
    help="Where the device keeps its state.",
)
@into_work_tree_option
@asks
def enroll(
    device: str,
    group: str,
    words: tuple[str, ...],
    replace: bool,
    package: Path | None,
    enrol_at: str,
    enrol_ca: Path | None,
    valid_hours: float,
    sources: tuple[str, ...],
    output: Path | None,
    state_dir: Path,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Enrol a device and write a single file for its setup.

    With --enrol-at the device makes its private key itself; otherwise the file holds the key, so
    protect the file like a password.

    \b
    Example:
      edgepack fleet enroll cam-7 --group cameras --label site=berlin
      edgepack fleet enroll cam-8 --group cameras --enrol-at https://fleet.example:8600
      edgepack fleet enroll cam-9 --group cameras --source oci://registry.example/models/m
      sudo edgepack-agent setup cam-7.enrol
    """
    if output is not None or not enrol_at:
        check_key_place(output or package or Path(f"{device}.enrol"))
    client = FleetClient(url, data=data)
    labels = read_labels(words)
    if output is not None:
        if package is not None or enrol_at:
            raise click.UsageError("-o writes a folder, and no package")
        folder = client.enroll(
            device,
            group=group,
            labels=labels,
            replace=replace,
            folder=output,
            state_dir=state_dir,
            sources=sources,
        )
        print_result(
            folder,
            as_json,
            lambda shown: f"{shown.device} is enrolled in group {shown.group}: {shown.config}",
        )
        return
    made = client.enroll_package(
        device,
        group=group,
        package=package or Path(f"{device}{SUFFIX}"),
        enrol_at=enrol_at,
        enrol_authority=enrol_ca,
        valid_s=valid_hours * 3600,
        state_dir=state_dir,
        labels=labels,
        replace=replace,
        sources=sources,
    )
    print_result(made, as_json, _packaged)


def _packaged(shown: PackagedDevice) -> str:
    lines = [
        f"{shown.device} is enrolled in group {shown.group}: {shown.package}",
        f"on the device: sudo edgepack-agent setup {shown.package.name}",
    ]
    if shown.expires_at is not None:
        until = datetime.fromtimestamp(shown.expires_at).astimezone()
        lines.append(f"it gets its certificate until {until:%Y-%m-%d %H:%M %Z}, once")
    return "\n".join(lines)


@click.command()
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
    """Write the list of revoked certificates; the broker reads the list at a SIGHUP.

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
