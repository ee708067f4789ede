"""The commands `edgepack build` and `edgepack init`."""

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast, get_args

import click

from edgepack.bundle.keys import is_open_to_others
from edgepack.durable import write_file
from edgepack.errors import BuildError
from edgepack.json_text import json_text
from edgepack.packager.cli.option_values import json_option, parse_shape, parse_toolchain
from edgepack.packager.cli.progress_bar import show_progress
from edgepack.packager.cli.summary import print_summary
from edgepack.packager.config.build_file import CONFIG_FILE
from edgepack.packager.config.template import template
from edgepack.packager.config.trusted_code import (
    NamedCode,
    TrustedCode,
    TrustedCodeFile,
    UntrustedCodeError,
)
from edgepack.packager.pipeline.build_options import BuildOptions, Option
from edgepack.packager.pipeline.describe_model import describe_model
from edgepack.packager.pipeline.publication import BuildResult
from edgepack.packager.pipeline.request import derive_request
from edgepack.packager.profiles.schema import Preference
from edgepack.packager.progress import BuildStep
from edgepack.packager.samples.files import RANDOM_PREFIX
from edgepack.packager.samples.recurrence import possible_states
from edgepack.packager.search.combinations import parse_searched
from edgepack.packager.search.journal import journal_folder
from edgepack.packager.source.fixed_inputs import parse_value
from edgepack.packager.source.huggingface.folder import open_source
from edgepack.packager.source.shape_advice import example_shapes
from edgepack.packager.stages.any_model import build_any
from edgepack.text import printable

_path = click.Path(path_type=Path)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that `BuildOptions` declares."""
    for name, hint in reversed(BuildOptions.__annotations__.items()):
        kind, option = get_args(hint)
        is_flag = kind in (bool, TrustedCode)
        words: dict[str, Any] = {"help": option.help, "envvar": option.envvar}
        if is_flag:
            words |= {"is_flag": True}
        else:
            words |= {"multiple": option.multiple, "metavar": option.metavar}
            words |= {"type": _click_type(kind, option)}
        flags = option.flags or (f"--{name.replace('_', '-')}",)
        command = click.option(*flags, name, **words)(command)
    return command


def _click_type(kind: Any, option: Option) -> click.ParamType[Any]:
    if option.path:
        return _path
    if kind == Preference | None:
        return click.Choice(get_args(Preference))
    return click.INT if kind == int | None else click.STRING


@click.command()
@click.argument("model", type=_path, required=False)
@_options
@json_option
def build(model: Path | None, config: Path | None, as_json: bool, **given: Any) -> None:
    """Make a signed bundle from an ONNX model.

    MODEL is an .onnx file, a local Hugging Face model folder (which needs the extra
    huggingface), or a pipeline.toml that names several graphs. With --adapter it is the folder
    that the base was built from, or left out.

    Each profile gives a variant. A profile that cannot meet its accuracy budget refuses, with the
    numbers, and then nothing is written.

    \b
    Example:
      edgepack keys generate -o release
      edgepack build ocr.onnx --profile cpu --profile qnn-htp \\
          --calibration samples/ --key release.key -o ocr-1.2.0.edgepack
    """
    if config is None and Path(CONFIG_FILE).is_file():
        click.echo(f"using ./{CONFIG_FILE}", err=True)
        config = Path(CONFIG_FILE)
    given |= {
        "config": config,
        "shapes": dict(map(parse_shape, given["shapes"])),
        "values": dict(map(parse_value, given["values"])),
        "toolchains": dict(map(parse_toolchain, given["toolchains"])),
        "search": tuple(map(parse_searched, given["search"])),
    }
    stop = _Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    confirmed = TrustedCodeFile()
    given["trust_config"] = given["trust_config"] or confirmed.read()
    while True:
        try:
            result = _build(model, cast(BuildOptions, given), stop)
            break
        except UntrustedCodeError as error:
            if not _confirm(error.code):
                raise
            confirmed.add(error.code)
            given["trust_config"] = (*given["trust_config"], *error.code)
    if as_json:
        document = {
            "output": result.output,
            "digest": result.digest,
            "report_html": result.report_html,
            "report": result.report,
            "bill_of_materials_lacks": result.unsaid,
        }
        click.echo(json_text(document))
        return
    print_summary(result)


class _Stop:
    """The end by way of every `finally`, so that a stopped build leaves nothing behind.

    Attributes:
        signal: The signal that came; None before.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. Nothing is printed, since a print may be under way."""
        self.signal = signal.Signals(number)
        self.check()

    def check(self) -> None:
        """Raise if a signal came: Python drops what a handler raises in a finalizer."""
        if self.signal is not None:
            raise SystemExit(128 + self.signal)


def _build(model: Path | None, options: BuildOptions, stop: _Stop) -> BuildResult:
    """Build a bundle and show progress.

    Raises:
        EdgepackError: See `build_bundle`.
        SystemExit: A signal came. Any error after it, such as that of a file which was left half
            written, comes from the stop.
    """
    request = derive_request(model, options)
    if is_open_to_others(Path(request.key)):
        click.echo(
            f"warning: other users of this machine may read {request.key}: chmod 600 {request.key}",
            err=True,
        )
    try:
        with show_progress() as progress:

            def stoppable(step: BuildStep) -> None:
                progress(step)
                stop.check()

            return build_any(request, stoppable)
    except BaseException:
        if stop.signal is None:
            raise
        click.echo(f"stopped by {stop.signal.name}", err=True)
        _tell_what_is_kept(request.output)
        raise SystemExit(128 + stop.signal) from None


def _confirm(code: Sequence[NamedCode]) -> bool:
    """Ask at the terminal whether code that files name may run; False without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    click.echo("These files name code to run, or files for a provider:", err=True)
    for entry in code:
        click.echo(f"  {printable(str(entry))}", err=True)
    return click.confirm("Use these, now and in later builds in this folder?", err=True)


@click.command()
@click.argument("model", type=_path)
@click.option(
    "-o", "--output", type=_path, default=Path(CONFIG_FILE), show_default=True, help="The file."
)
@click.option(
    "--calibration",
    metavar="PATH",
    default="",
    help="Samples that show what the outputs mean, as for edgepack build.",
)
def init(model: Path, output: Path, calibration: str) -> None:
    """Write an edgepack.toml for a model.

    The file declares the model's inputs (as images, if their shapes fit images and no arrays are
    given), with every key explained. Comments ask about inputs that may be states. With samples the
    file declares the task of each output too, as edgepack build recognizes tasks.

    \b
    Example:
      edgepack init ocr.onnx
      edgepack init ocr.onnx --calibration samples
    """
    with show_progress() as progress, tempfile.TemporaryDirectory(prefix="edgepack-") as work:
        source = open_source(model, {}, {}, Path(work), progress)
        shapes = example_shapes(source)
        apart = Path(work) / "described"  # an export has a folder of its own
        apart.mkdir()
        given = (model, calibration, apart, progress)
        no_samples: tuple[None, dict[str, tuple[str, ...]], bool] = (None, {}, False)
        described, possible, are_arrays = describe_model(*given) if calibration else no_samples
    beside = _relative_to(output.parent, calibration)
    states = possible_states(source)
    text = template(
        model.absolute().name,
        source.inputs,
        shapes,
        described,
        possible,
        beside,
        states,
        are_arrays=are_arrays,
    )
    if output.exists():
        raise BuildError(f"{output} is there already", remedy="name another file with -o")
    try:
        write_file(output, text.encode())
    except OSError as error:
        raise BuildError(
            f"cannot write {output}: {error.strerror}",
            remedy="name a file in a folder that exists and that you may write to, with -o",
        ) from error
    click.echo(f"Wrote {output}. Complete [inputs] and [calibration], then:")
    named = "" if output == Path(CONFIG_FILE) else f" --config {_as_argument(output)}"
    click.echo(f"  edgepack build {_as_argument(model)}{named} --key release.key")


def _relative_to(folder: Path, calibration: str) -> str:
    """Return the path of samples as a file in the folder names the samples."""
    if not calibration or calibration.startswith(RANDOM_PREFIX) or Path(calibration).is_absolute():
        return calibration
    return os.path.relpath(calibration, folder)


def _as_argument(path: Path) -> str:
    """Return a path as an argument for a shell, never as an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def _tell_what_is_kept(output: Path) -> None:
    folder = journal_folder(output)
    if folder.is_dir():
        click.echo(f"what was measured is in {folder}: the same command goes on there", err=True)
