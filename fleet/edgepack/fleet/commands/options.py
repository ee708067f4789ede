"""Options that the fleet's commands have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgepack.fleet.client.connection import (
    DATA_VARIABLE,
    DEFAULT_URL,
    TOKEN_VARIABLE,
    URL_VARIABLE,
)
from edgepack.fleet.data_folder import default_root

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=DATA_VARIABLE,
    default=default_root,
    show_default="~/.local/share/edgepack/fleet",
    help=f"The fleet's folder. [env: {DATA_VARIABLE}]",
)
url_option = click.option(
    "--url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    help=f"Where the fleet serves. [env: {URL_VARIABLE}; token: --data or {TOKEN_VARIABLE}]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Options of every command that asks a running fleet."""
    return data_option(url_option(json_option(command)))


class Share(click.ParamType[float]):
    """A share, as `10%` or `0.1`."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is no share such as 10% or 0.1", param, ctx)
        if not 0 <= number <= 1:
            self.fail(f"{value!r} is not between 0% and 100%", param, ctx)
        return number
