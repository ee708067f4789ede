"""Options that several commands share."""

import logging
import sys
from pathlib import Path

import click

DEFAULT_CONFIG = Path("/etc/edgepack/agent.toml")

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="EDGEPACK_AGENT_CONFIG",
    default=DEFAULT_CONFIG,
    show_default=True,
    show_envvar=True,
    help="The agent's settings.",
)
state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The agent's state folder, instead of settings.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def log_to_stderr(*, verbose: bool) -> None:
    """Log transitions to standard error; everything if `verbose`."""
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )


def show_status(state_dir: Path, *, as_json: bool) -> None:
    """Print the status of the device."""
    from edgepack.agent.cli.describe import describe_status
    from edgepack.agent.update.status import read_status
    from edgepack.json_text import json_text

    found = read_status(state_dir)
    click.echo(json_text(found) if as_json else describe_status(found))
