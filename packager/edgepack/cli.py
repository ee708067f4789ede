"""The `edgepack` command: everything a host does, each group loaded only when it is called.

The device's command is `edgepack-agent` (`edgepack.agent.cli`).
"""

import gc
import importlib
import sys
from typing import NamedTuple

import click

from edgepack.errors import EdgepackError

_OBJECTS_A_COLLECTION = 50_000
"""New objects after which Python looks for cycles. After each 700, its default, that took 7 % of
the processor time of a small build (80 ms), and freed nothing."""


class _Entry(NamedTuple):
    module: str
    summary: str


_COMMANDS = {
    "build": _Entry("edgepack.packager.cli", "Make a signed bundle from an ONNX model."),
    "init": _Entry("edgepack.packager.cli", "Write an edgepack.toml for a model."),
    "profiles": _Entry("edgepack.packager.profile.cli", "List and show hardware profiles."),
    "compare": _Entry(
        "edgepack.packager.comparison.cli", "Show what differs between two bundles or reports."
    ),
    "inspect": _Entry("edgepack.bundle.cli", "Show what a bundle holds."),
    "verify": _Entry("edgepack.bundle.cli", "Check a bundle's signature and every file."),
    "unpack": _Entry("edgepack.bundle.cli", "Turn an archive into a directory."),
    "keys": _Entry("edgepack.bundle.cli", "Generate and show signing keys."),
    "fleet": _Entry("edgepack.fleet.commands.fleet", "Serve a fleet, enrol and list its devices."),
    "rollout": _Entry("edgepack.fleet.commands.rollout", "Start, watch, pause and abort rollouts."),
    "simulate": _Entry(
        "edgepack.fleet.commands.simulate", "Run many simulated devices against a fleet."
    ),
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in _COMMANDS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = _COMMANDS[cmd_name].module
        try:
            command = getattr(importlib.import_module(module), cmd_name)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get((error.name or "").split(".")[0])
            if extra is None:
                raise
            raise EdgepackError(
                f"'edgepack {cmd_name}' needs the package {error.name}, which is not installed",
                remedy=f"pip install 'edgepack[{extra}]'",
            ) from error
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{cmd_name} is no command")
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
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    try:
        cli()
    except EdgepackError as error:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
