"""The `edgepack` command: everything a host does, each group loaded only when it is called.

The device's command is `edgepack-agent` (`edgepack.agent.cli`).
"""

import importlib
import sys

import click

from edgepack.errors import EdgepackError

_COMMANDS = {
    "build": ("edgepack.packager.cli", "build"),
    "init": ("edgepack.packager.cli", "init"),
    "profiles": ("edgepack.packager.cli", "profiles"),
    "inspect": ("edgepack.bundle.cli", "inspect"),
    "verify": ("edgepack.bundle.cli", "verify"),
    "unpack": ("edgepack.bundle.cli", "unpack"),
    "keys": ("edgepack.bundle.cli", "keys"),
    "fleet": ("edgepack.fleet.cli", "fleet"),
    "rollout": ("edgepack.fleet.cli", "rollout"),
    "simulate": ("edgepack.fleet.cli", "simulate"),
}
_EXTRAS = {
    "onnx": "host",
    "rich": "host",
    "jinja2": "host",
    "onnxruntime": "cpu",
    "sqlalchemy": "fleet",
    "starlette": "fleet",
    "uvicorn": "fleet",
    "iotcore": "fleet",
}


class LazyGroup(click.Group):
    """Lists all commands but imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name]
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get((error.name or "").split(".")[0])
            if extra is None:
                raise
            raise EdgepackError(
                f"'edgepack {cmd_name}' needs the package {error.name}, which is not installed",
                remedy=f"pip install 'edgepack[{extra}]'",
            ) from error
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{attribute} is no command")
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="edgepack")
def cli() -> None:
    """Prepare ONNX models for edge hardware, sign them, and roll them out to a fleet.

    \b
    Example:
      edgepack build model.onnx --profile cpu --profile qnn-htp \\
          --calibration samples/ --key release.key -o model-1.0.0.edgepack
    """


def main() -> None:
    """Runs the command; an `EdgepackError` becomes a message on stderr and exit code 1."""
    try:
        cli()
    except EdgepackError as error:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
