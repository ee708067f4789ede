"""The commands of `edgepack-agent`; `assembly` puts the program together.

Each command imports its parts: a help text starts in a tenth of the time of a daemon.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from edgepack.agent.cli.doctor import doctor
from edgepack.agent.cli.models import bench, eim, env, explain, generate, infer
from edgepack.agent.cli.options import (
    DEFAULT_CONFIG,
    config_option,
    json_option,
    log_to_stderr,
    show_status,
    state_dir_option,
)
from edgepack.agent.cli.other_fleet import other_fleet
from edgepack.agent.cli.service import service, setup
from edgepack.agent.config import read_config
from edgepack.agent.state.lock import lock_when_disk_works
from edgepack.command_options import folder_option
from edgepack.core_files import forbid_core_files
from edgepack.durable import is_disk_fault
from edgepack.errors import EdgepackError
from edgepack.json_text import json_text
from edgepack.key_place import check_key_place, into_work_tree_option
from edgepack.quick_exit import run_to_exit
from edgepack.setting_options import Number
from edgepack.text import counted


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="edgepack")
def cli() -> None:
    """Run models on this device: receive updates, verify updates here, report health.

    \b
    Example:
      edgepack-agent run --config /etc/edgepack/agent.toml
    """


@cli.command()
@config_option
@click.option("--verbose", is_flag=True, help="Log more than transitions.")
def run(config_path: Path, verbose: bool) -> None:
    """Run the agent until SIGTERM or Ctrl-C; SIGHUP reloads the settings.

    
    Example:
      edgepack-agent run --config /etc/edgepack/agent.toml
    """
    # A reload that comes during the start must not end the agent.
    signal.signal(signal.SIGHUP, lambda *_: None)
    from edgepack.agent.runtime.heap import keep_heap_small

    keep_heap_small()
    from edgepack.agent.cli.assembly import run_daemon
    from edgepack.agent.daemon.service_manager import find_service_manager
    from edgepack.agent.update.updater import DISK_RETRY_S

    manager = find_service_manager()
    log_to_stderr(verbose=verbose)
    config = read_config(config_path)
    with lock_when_disk_works(Path(config.state_dir), DISK_RETRY_S, manager.waiting):
        run_daemon(config, config_path, manager)


@cli.command()
@config_option
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
def serve(config_path: Path, until_stdin_ends: bool) -> None:
    """Serve this device's models to programs in any language, until SIGTERM or Ctrl-C.

    The protocol is the Open Inference Protocol v2, on a unix socket and, if [server] names a port,
    on loopback. An agent with enabled = true in [server] runs this command.

    \b
    Example:
      edgepack-agent serve --config /etc/edgepack/agent.toml
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Else it ends a server that still starts.
    from edgepack.agent.server.running import run_server

    log_to_stderr(verbose=False)
    run_server(read_config(config_path), until_stdin_ends=until_stdin_ends)


@cli.command()
@click.argument("package", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_CONFIG.parent,
    show_default=True,
    help="Where the settings, the key and the certificate are to lie.",
)
@into_work_tree_option
@json_option
def enroll(package: Path, folder: Path, as_json: bool) -> None:
    """Set this device up from PACKAGE, the file that edgepack fleet enroll wrote.

    If the package has no key, the device makes a key and requests a certificate from the fleet. A
    device that is enrolled again keeps its settings, if still valid, and its state.

    \b
    Example:
      edgepack-agent enroll cam-7.enrol --folder /etc/edgepack
    """
    from edgepack.agent.enrolment.installation import install_package
    from edgepack.agent.enrolment.package import read_package

    check_key_place(folder)
    given = read_package(package)
    done = install_package(given, folder)
    if as_json:
        click.echo(json_text({"device": done.device, "config": str(done.config)}))
        return
    click.echo(f"this is {done.device}: edgepack-agent run --config {done.config}")
    if done.before is not None:
        click.echo(
            f"note: the settings did not fit any more, and are new; the old: {done.before}",
            err=True,
        )
    if given.key:
        click.echo(f"note: {package} holds the device's private key: delete it", err=True)


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@config_option
@click.option(
    "--soak",
    "soak_s",
    type=Number(min=0),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Time that the new model must serve without a failure before its commit.",
)
@click.option("--rollback", is_flag=True, help="Go back to the release committed before.")
@click.option(
    "--metadata",
    metavar="FOLDER|URL",
    help="The fleet's metadata; default: the folder 'metadata' next to BUNDLE.",
)
@json_option
def install(
    bundle: Path,
    config_path: Path,
    soak_s: float,
    rollback: bool,
    metadata: str | None,
    as_json: bool,
) -> None:
    """Install BUNDLE, a folder or an archive, without a network.

    A running agent carries the order out, and no application fails an inference. The order runs
    through the same checks, the same probe and the same switch as a rollout. The other models of
    this device are unchanged. A device that trusts its fleet's root installs only releases of the
    fleet, by the metadata that edgepack export wrote next to BUNDLE.

    
    Example:
      edgepack-agent install ocr-1.2.0.edgepack --config agent.toml --soak 0
    """
    from edgepack.agent.cli.local_device import local_device
    from edgepack.agent.update.local_install import LocalLink, local_offer

    with local_device(config_path, bundle) as device, device.verified(bundle, metadata) as verified:
        offer = local_offer(verified, soak_s=soak_s, rollback=rollback)
        link = LocalLink(verified)
        device.carry_out(link, offer.bundle.name, offer)
    show_status(device.state_dir, as_json=as_json)
    if link.is_restarting:
        click.echo("note: the new agent is on trial: start the agent, which proves it", err=True)


@cli.command()
@click.argument("name")
@config_option
@json_option
def rollback(name: str, config_path: Path, as_json: bool) -> None:
    """Return to the previously committed release of model NAME, from its slot.

    
    Example:
      edgepack-agent rollback ocr --config agent.toml
    """
    from edgepack.agent.cli.local_device import local_device
    from edgepack.agent.update.local_install import LocalLink, rollback_offer

    with local_device(config_path) as device:
        device.carry_out(LocalLink(), name, rollback_offer(device.state_dir, name))
    show_status(device.state_dir, as_json=as_json)


@cli.command()
@click.argument("name")
@config_option
@json_option
def remove(name: str, config_path: Path, as_json: bool) -> None:
    """Remove model NAME with its files; older releases of NAME remain rejected.

    Adapters of NAME stop serving. Their files stay, and they serve again once their release of NAME
    is installed again.

    \b
    Example:
      edgepack-agent remove ocr --config agent.toml
    """
    from edgepack.agent.cli.local_device import local_device
    from edgepack.agent.state.outages import adapters_of
    from edgepack.agent.update.local_install import LocalLink, removal
    from edgepack.agent.update.transitions import title

    with local_device(config_path) as device:
        order = removal(device.state_dir, name)
        if adapters := [title(one.bundle) for one in adapters_of(device.state_dir, name)]:
            click.echo(
                f"without '{name}' its adapters do not serve: {', '.join(adapters)}", err=True
            )
        device.carry_out(LocalLink(), name, order)
    show_status(device.state_dir, as_json=as_json)


@cli.command()
@config_option
@state_dir_option
@json_option
def status(config_path: Path, state_dir: Path | None, as_json: bool) -> None:
    """Show each model: the serving release and the state of its latest update.

    \b
    Example:
      edgepack-agent status --state-dir /var/lib/edgepack --json
    """
    show_status(state_dir or Path(read_config(config_path).state_dir), as_json=as_json)


@cli.command()
@click.argument("name")
@config_option
@state_dir_option
@folder_option("Target folder; created if missing.")
@json_option
def samples(
    name: str, config_path: Path, state_dir: Path | None, output: Path, as_json: bool
) -> None:
    """Copy the inputs of model NAME that this device kept, for edgepack build --captured.

    Inputs are kept only if [capture] of the settings enables capture, and may be private.

    \b
    Example:
      edgepack-agent samples ocr -o captured --config agent.toml
    """
    from edgepack.agent.cli.samples import export_samples

    place = state_dir or Path(read_config(config_path).state_dir)
    count = export_samples(place, name, output)
    if as_json:
        click.echo(json_text({"model": name, "samples": count, "folder": str(output)}))
        return
    click.echo(f"{counted(count, 'sample')} of {name} in {output}")
    click.echo(f"next: edgepack build … --calibration SAMPLES --captured {output}")


@cli.command()
@json_option
def providers(as_json: bool) -> None:
    """Show the facts of this device and its execution providers.

    A missing provider is shown with the reason and with the package that installs the provider.

    \b
    Example:
      edgepack-agent providers
    """
    from edgepack.agent.cli.describe import describe_facts
    from edgepack.agent.runtime.facts import read_device_facts

    facts = read_device_facts()
    click.echo(json_text(facts) if as_json else describe_facts(facts))


for command in (bench, doctor, eim, env, explain, generate, infer, other_fleet, service, setup):
    cli.add_command(command)


def run_command() -> None:
    """Run the command; errors go to stderr, with exit code 1 (2 for wrong usage)."""
    forbid_core_files()
    os.umask(0o022)  # The state folder's own mode says who may look into it.
    try:
        cli(prog_name="edgepack-agent")
    except EdgepackError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if not is_disk_fault(error):
            raise
        from edgepack.agent.cli.local_device import disk_error

        click.echo(f"error: {disk_error(error, 'a file')}", err=True)
        sys.exit(1)


def main() -> NoReturn:
    """Run the command and end the process."""
    run_to_exit(run_command)
