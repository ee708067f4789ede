"""Common options of commands, and conversion of `edgepack build` options from text to values."""

from functools import partial

import click

from edgepack.errors import BuildError

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read `--shape INPUT=1,3,320,320`.

    Raises:
        BuildError: The text is not a shape, or names no input.
    """
    refusal = partial(BuildError, found_in="--shape", remedy="--shape images=1,3,320,320")
    name, _, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(","))
    except ValueError as error:
        raise refusal(f"'{text}' is not a shape") from error
    if not name:
        raise refusal(f"'{text}' names no input")
    return name, shape


def parse_toolchain(text: str) -> tuple[str, str]:
    """Read `--toolchain PROFILE=PYTHON`.

    Raises:
        BuildError: PROFILE or PYTHON is missing.
    """
    profile, _, python = text.partition("=")
    if not profile or not python:
        raise BuildError(
            f"'{text}' names no toolchain",
            found_in="--toolchain",
            remedy="--toolchain openvino-cpu=device/bin/python",
        )
    return profile, python
