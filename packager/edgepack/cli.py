"""The `edgepack` command: all commands of a host, each group loaded only on demand.

The device's command is `edgepack-agent` (`edgepack.agent.cli`).
"""

import gc
import importlib
import os
import sys
from typing import Any, NamedTuple, NoReturn

import click

from edgepack.agent.runtime.quiet_loading import without_log_lines
from edgepack.core_files import forbid_core_files
from edgepack.errors import EdgepackError
from edgepack.quick_exit import run_to_exit

_OBJECTS_A_COLLECTION = 50_000
"""New objects after which Python looks for cycles. After each 700, its default, that took 7 % of
the processor time of a small build (80 ms), and freed nothing."""

_LINEAR_ALGEBRA = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's library computes in one thread. With several the last digits depend on their number, and
on a busy machine they wait for each other by computing: rounding a detector's weights by GPTQ
took 83 s of processor time on two CPUs, and takes 31 s. Who sets the variable is not overruled."""


class _Entry(NamedTuple):
    """A command: its module, summary, and required extra."""

    module: str
    summary: str
    extra: str = "host"


_COMMANDS = {
    "build": _Entry("edgepack.packager.cli.build", "Make a signed bundle from an ONNX model."),
    "agent-release": _Entry(
        "edgepack.packager.cli.agent_release", "Make a release of the device agent itself."
    ),
    "init": _Entry("edgepack.packager.cli.build", "Write an edgepack.toml for a model."),
    "profiles": _Entry("edgepack.packager.cli.profiles", "List and show hardware profiles."),
    "compare": _Entry(
        "edgepack.packager.cli.compare", "Show what differs between two bundles or reports."
    ),
    "delta": _Entry("edgepack.packager.cli.delta", "Show what an update costs on the wire."),
    "inspect": _Entry("edgepack.bundle.cli", "Show what a bundle holds."),
    "verify": _Entry("edgepack.bundle.cli", "Check a bundle's signature and every file."),
    "unpack": _Entry("edgepack.bundle.cli", "Turn an archive into a directory."),
    "push": _Entry("edgepack.registry.cli", "Send a bundle to an OCI registry."),
    "pull": _Entry("edgepack.registry.cli", "Take a bundle from a registry or a web server."),
    "keys": _Entry("edgepack.bundle.keys_cli", "Generate and show signing keys."),
    "fleet": _Entry(
        "edgepack.fleet.commands.fleet", "Serve a fleet, enrol and list its devices.", "fleet"
    ),
    "publish": _Entry(
        "edgepack.fleet.commands.publishing", "Release a bundle: sign and list it.", "fleet"
    ),
    "withdraw": _Entry("edgepack.fleet.commands.publishing", "List a release no more.", "fleet"),
    "export": _Entry(
        "edgepack.fleet.commands.publishing", "Write a release for devices offline.", "fleet"
    ),
    "rollout": _Entry(
        "edgepack.fleet.commands.rollout", "Start, watch, pause and abort rollouts.", "fleet"
    ),
    "simulate": _Entry(
        "edgepack.fleet.commands.simulate", "Run many simulated devices against a fleet.", "fleet"
    ),
}
_OWN_EXTRAS = {"onnxruntime": "cpu", "pkcs11": "pkcs11"}
"""Packages that no command's extra brings: a host chooses its provider, and where keys are."""

_NEEDED = (
    *("onnx", "onnx_ir", "onnxscript", "rich", "jinja2", "packaging"),
    *("sqlalchemy", "starlette", "uvicorn", "iotcore", "websockets"),
)


class LazyGroup(click.Group):
    """Lists all commands but imports only the called command.

    Imported modules stay to the end: the garbage collector skips them, also at Python's exit, which
    took 70 ms of a small build.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, which may import its modules only here."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise _missing(ctx.invoked_subcommand or "", error) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = _COMMANDS[cmd_name].module
        try:
            with without_log_lines():  # of ONNX Runtime, which commands of the packager load
                command = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
            gc.freeze()
        except ModuleNotFoundError as error:
            raise _missing(cmd_name, error) from error
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{cmd_name} is not a command")
        return command


def _missing(command: str, error: ModuleNotFoundError) -> Exception:
    """Return the error for a package that is not installed; return other errors unchanged."""
    package = (error.name or "").split(".")[0]
    entry = _COMMANDS.get(command)
    if entry is None or package not in (*_NEEDED, *_OWN_EXTRAS):
        return error
    return EdgepackError(
        f"'edgepack {command}' needs the package {package}, which is not installed",
        remedy=f"pip install 'edgepack[{_OWN_EXTRAS.get(package, entry.extra)}]'",
    )


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="edgepack")
def cli() -> None:
    """Prepare ONNX models for edge hardware, sign bundles, and roll bundles out to a fleet.

    \b
    Example:
      edgepack build model.onnx --profile cpu --profile qnn-htp \\
          --calibration samples/ --key release.key -o model-1.0.0.edgepack
    """


def run_command() -> None:
    """Run the command; an `EdgepackError` becomes a message on stderr and exit code 1.

    A system error about a file or folder of the command is reported likewise.
    """
    forbid_core_files()
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    for name, value in _LINEAR_ALGEBRA.items():
        os.environ.setdefault(name, value)  # read when a command loads NumPy
    color = False if os.environ.get("NO_COLOR") else None  # None: where it goes to a terminal
    try:
        _check_arguments(sys.argv[1:])
        cli(color=color)
    except (EdgepackError, OSError) as error:
        said = error if isinstance(error, EdgepackError) else _of_system(error)
        mark = click.style("error:", fg="red", bold=True)
        click.echo(f"{mark} {said}", err=True, color=color)
        sys.exit(1)


def main() -> NoReturn:
    """Run the command and end the process."""
    run_to_exit(run_command)


def _check_arguments(words: list[str]) -> None:
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise EdgepackError(
                "an argument has bytes that are not UTF-8",
                found_in=word,
                remedy="rename the file or folder",
            )


def _of_system(error: OSError) -> EdgepackError:
    place = None if error.filename is None else os.fsdecode(error.filename)
    remedy = "check who owns it, its mode and your umask" if place else None
    return EdgepackError(error.strerror or str(error), found_in=place, remedy=remedy)


if __name__ == "__main__":
    main()
