"""Options that commands of devices and hosts have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def keys_option(help: str, *, required: bool = False) -> Callable[..., Any]:
    """Return the option for trusted public keys."""
    kind = click.Path(path_type=Path)
    return click.option(
        "--key", "key_paths", type=kind, multiple=True, required=required, help=help
    )


def folder_option(help: str) -> Callable[..., Any]:
    """Return the option for the folder to write."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("-o", "--output", type=kind, required=True, help=help)
