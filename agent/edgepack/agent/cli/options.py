"""Options that several commands share."""

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
