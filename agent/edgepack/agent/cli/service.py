"""Commands that make the agent a service of the system."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from edgepack.agent.cli.options import json_option
from edgepack.json_text import json_text


@click.group()
def service() -> None:
    """Run the agent as a service of systemd.

    \b
    Example:
      sudo edgepack-agent service install
    """


@service.command()
@json_option
def install(as_json: bool) -> None:
    """Install unit, users and folders; run again after an update of edgepack.

    Settings, keys and state are unchanged, and the service is not started.

    \b
    Example:
      sudo edgepack-agent service install
    """
    from edgepack.agent.service.installation import UNIT, install_service

    _print_steps(install_service(_own_program()), f"{UNIT} is installed", as_json=as_json)


@service.command()
@json_option
def remove(as_json: bool) -> None:
    """Stop the service and remove unit, users' and folders' rules; settings and state stay.

    \b
    Example:
      sudo edgepack-agent service remove
    """
    from edgepack.agent.service.installation import UNIT, remove_service

    _print_steps(remove_service(), f"{UNIT} is removed", as_json=as_json)


@click.command()
@click.argument("package", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def setup(package: Path, as_json: bool) -> None:
    """Enrol this device with PACKAGE, install the service, and start it.

    PACKAGE is the file that edgepack fleet enroll wrote. The command can run again: it repeats only
    what is missing.

    \b
    Example:
      sudo edgepack-agent setup cam-7.enrol
    """
    from edgepack.agent.enrolment.package import read_package
    from edgepack.agent.service.setup import set_up

    given = read_package(package)
    _print_steps(set_up(given, _own_program()), "next: edgepack-agent doctor", as_json=as_json)
    if given.key:
        click.echo(f"note: {package} holds the device's private key: delete it", err=True)


def _print_steps(steps: Iterator[str], end: str, *, as_json: bool) -> None:
    """Print each step when done, so that a failure shows what was done before."""
    done = []
    for step in steps:
        done.append(step)
        if not as_json:
            click.echo(step)
    click.echo(json_text({"done": done}) if as_json else end)


def _own_program() -> Path:
    """Return the path of the command that runs now."""
    return Path(sys.argv[0]).absolute()
