"""The commands `edgepack build` and `edgepack init`."""

import shlex
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast, get_args

import click

from edgepack.bundle.accuracy_words import describe_float
from edgepack.bundle.keys import is_open_to_others
from edgepack.durable import write_file
from edgepack.errors import BuildError
from edgepack.json_text import json_text
from edgepack.number_format import (
    format_bytes,
    format_metric,
    format_size_change,
)
from edgepack.packager.cli.option_values import json_option, parse_shape, parse_toolchain
from edgepack.packager.cli.progress_bar import show_progress
from edgepack.packager.cli.text_table import print_table
from edgepack.packager.config.build_file import CONFIG_FILE
from edgepack.packager.config.template import template
from edgepack.packager.config.trusted_code import (
    NamedCode,
    TrustedCode,
    TrustedCodeFile,
    UntrustedCodeError,
)
from edgepack.packager.pipeline.describe_model import describe_model
from edgepack.packager.pipeline.publication import BuildResult
from edgepack.packager.pipeline.request import BuildOptions, Option, derive_request
from edgepack.packager.profiles.schema import Preference
from edgepack.packager.progress import BuildStep
from edgepack.packager.provenance.minimum_elements import MINIMUM_ELEMENTS
from edgepack.packager.reports.reasons import sum_up
from edgepack.packager.reports.report import VariantReport, describe_board, latency_text
from edgepack.packager.search.combinations import parse_searched
from edgepack.packager.search.journal import journal_folder
from edgepack.packager.source.fixed_inputs import parse_value
from edgepack.packager.source.huggingface.folder import open_source
from edgepack.packager.source.shape_advice import example_shapes
from edgepack.packager.stages.any_model import build_any
from edgepack.packager.wording import short_provider
from edgepack.text import printable, printable_lines

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

    The file declares the model's inputs (as images, if their shapes fit images), with every key
    explained. With samples the file declares the task of each output too, as edgepack build
    recognizes tasks.

    \b
    Example:
      edgepack init ocr.onnx
      edgepack init ocr.onnx --calibration samples
    """
    with show_progress() as progress, tempfile.TemporaryDirectory(prefix="edgepack-") as work:
        source = open_source(model, {}, {}, Path(work), progress)
        shapes = example_shapes(source)
        given = (model, calibration, Path(work), progress)
        described, possible = describe_model(*given) if calibration else (None, {})
    text = template(model.name, source.inputs, shapes, described, possible, calibration)
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


def _as_argument(path: Path) -> str:
    """Return a path as an argument for a shell, never as an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def _tell_what_is_kept(output: Path) -> None:
    folder = journal_folder(output)
    if folder.is_dir():
        click.echo(f"what was measured is in {folder}: the same command goes on there", err=True)


_HEADINGS = ("profile", "size", "accuracy kept", "nodes", "latency")
_RIGHT = ("size", "nodes", "latency")
_PROBED = (
    "In this environment, by an agent's probe (single runs of golden samples; the table has the "
    "times of races)"
)


def print_summary(result: BuildResult) -> None:
    """Print the report's verdict, the variants, notes, and the next command."""
    report = result.report
    title = click.style(printable(f"{report.name} {report.version}"), bold=True)
    click.echo(
        f"\n{title} (release {report.release}), float model {format_bytes(report.model.size_bytes)}"
    )
    for response in report.responses:
        click.echo(_wrapped(f"feedback: {response}"))
    mark = click.style("warning", fg="yellow")
    for warning in report.warnings:
        click.echo(_wrapped(f"warning: {warning}").replace("warning", mark, 1))
    click.echo(f"{_wrapped(sum_up(report))}\n")
    rows = [_row(variant, report.model.size_bytes) for variant in report.variants]
    print_table(_HEADINGS, rows, right=_RIGHT)
    click.echo()
    for refused in report.refused:
        state = "not finished" if refused.is_unfinished else "refused"
        words = _wrapped(f"{state} {refused.profile}: {refused.problem}")
        click.echo(words.replace(state, click.style(state, fg="yellow"), 1))
        if refused.remedy:
            click.echo(_wrapped(f"  try: {refused.remedy}"))
    for words in report.samples.preprocessing:
        click.echo(_wrapped(f"- Evaluated with input {words}."))
    for note in _notes(result):
        click.echo(_wrapped(f"- {note}"))
    for proposal in report.proposals:
        click.echo(_wrapped(f"- {proposal.profile} may need a tighter budget: {proposal.because}."))
        click.echo("  in a profile that extends it, below [gates.accuracy]:")
        click.echo(printable_lines(proposal.line.splitlines()))
    click.echo(f"\n{_wrapped(f'{_PROBED}: {report.choice}')}")
    bundle = click.style(str(result.output), bold=True)
    click.echo(f"bundle  {bundle}  sha256:{result.digest[:16]}…")
    click.echo(f"report  {result.report_html}")
    if result.unsaid:
        said, most = len(MINIMUM_ELEMENTS) - len(result.unsaid), len(MINIMUM_ELEMENTS)
        click.echo(
            f"bill    {said} of {most} minimum elements; "
            "more with [about] and [datasets] in edgepack.toml"
        )
    click.echo(f"next    edgepack rollout start {shlex.quote(str(result.output))} --group GROUP")


def _wrapped(words: str) -> str:
    """Wrap words to the width of the terminal; a piped line stays whole, for searches.

    The words may hold names of the model's nodes and tensors, and are made printable.
    """
    words = printable(words)
    if not sys.stdout.isatty():
        return words
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(
        words,
        width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def _row(variant: VariantReport, source_bytes: int) -> tuple[tuple[str, str], ...]:
    """Return the cells of a variant, each of up to two lines."""
    mark = ", degraded" if variant.degraded else ""
    provider = short_provider(variant.provider, variant.device)
    accuracy = variant.accuracy
    beside = f", {words}" if (words := describe_float(accuracy)) else ""
    latency, _, ratio = latency_text(variant).partition(" (")
    return (
        (variant.name, f"{provider}, {variant.precision}{mark}"),
        (format_bytes(variant.size_bytes), format_size_change(variant.size_bytes, source_bytes)),
        (
            format_metric(accuracy.value),
            f"{accuracy.metric} ≥ {format_metric(accuracy.budget)}{beside}",
        ),
        (variant.placement.words, ""),
        (latency, f"{ratio.rstrip(')')} as fast" if ratio else ""),
    )


def _notes(result: BuildResult) -> Iterable[str]:
    yield from result.report.notes
    for variant in result.report.variants:
        for note in variant.notes:
            yield f"{variant.name}: {note}"
        for board in variant.boards:
            yield f"{variant.name} on board {board.board}: {describe_board(board)}."
        if variant.rehearsal and not variant.rehearsal.ran and variant.placement.verified:
            yield f"{variant.name}: {variant.rehearsal.because}"
