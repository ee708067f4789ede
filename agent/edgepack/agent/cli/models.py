"""Commands about a serving model."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgepack.agent.cli.options import DEFAULT_CONFIG, config_option, json_option, state_dir_option
from edgepack.errors import DeviceError
from edgepack.json_text import json_text
from edgepack.setting_options import Number

if TYPE_CHECKING:
    from edgepack.pictures.results import TextLine


@click.command()
@click.argument("name")
@config_option
@state_dir_option
@json_option
def env(name: str, config_path: Path, state_dir: Path | None, as_json: bool) -> None:
    """Print path, provider, options and digest of model NAME, for an application's own runtime.

    The lines are assignments for a shell. The files' digests are checked first. The path belongs to
    a release: ask again after an update, for example in a hook.

    \b
    Example:
      eval "$(edgepack-agent env ocr)" && my-runtime "$EDGEPACK_MODEL_PATH"
    """
    from edgepack.agent.model_commands.environment import read_serving_files, shell_lines

    found = read_serving_files(_place(config_path, state_dir), name)
    click.echo(json_text(found) if as_json else shell_lines(found))


@click.command()
@click.argument("name")
@config_option
@state_dir_option
@json_option
def explain(name: str, config_path: Path, state_dir: Path | None, as_json: bool) -> None:
    """Show why a release, variant and provider of model NAME serve, with all candidates.

    \b
    Example:
      edgepack-agent explain ocr
    """
    from edgepack.agent.model_commands.explanation import describe_explanation
    from edgepack.agent.model_commands.explanation import explain as find

    found = find(_place(config_path, state_dir), name)
    click.echo(json_text(found) if as_json else describe_explanation(found))


@click.command()
@click.argument("name")
@config_option
@state_dir_option
@click.option(
    "--seconds",
    type=Number(min=0.1, max=600),
    default=3.0,
    show_default=True,
    help="Length of the measurement.",
)
@json_option
def bench(
    name: str, config_path: Path, state_dir: Path | None, seconds: float, as_json: bool
) -> None:
    """Measure the latency of model NAME's serving variant on this device.

    Golden samples run in a process of their own, next to the applications. The result shows the
    latencies now, at the probe before the switch, and of applications in the last hour.

    \b
    Example:
      edgepack-agent bench ocr --seconds 10
    """
    from edgepack.agent.model_commands.bench import describe_bench, measure
    from edgepack.text import printable_lines

    place, threads = _place(config_path, state_dir), _threads(config_path)
    found = measure(place, name, seconds=seconds, threads=threads)
    click.echo(json_text(found) if as_json else printable_lines(describe_bench(found)))


@click.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@config_option
@state_dir_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the whole outputs (.npz).",
)
@json_option
def infer(
    name: str,
    file: Path,
    config_path: Path,
    state_dir: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run model NAME on FILE: a picture, a sound (.wav), or arrays (.npz by name, .npy for one).

    A picture or a sound is prepared as the bundle states. The inference counts in no statistics.

    \b
    Example:
      edgepack-agent infer meters photo.jpg
      edgepack-agent infer speech words.wav
      edgepack-agent infer ocr line.npy
    """
    from edgepack.agent.model_commands.inference import infer as run
    from edgepack.agent.runtime.child import redirect_stdout
    from edgepack.text import printable_lines

    place, threads = _place(config_path, state_dir), _threads(config_path)
    with redirect_stdout() as answer:  # Native libraries print, too.
        found, outputs = run(place, name, file, threads=threads)
        if output is not None:
            from edgepack.bundle.plain_arrays import encode_arrays
            from edgepack.durable import write_file

            try:
                write_file(output, encode_arrays(outputs), lasting=False)
            except OSError as error:
                raise DeviceError(
                    f"the outputs cannot be written: {error.strerror}",
                    found_in=str(output),
                    remedy="name a file in a folder that exists and may be written",
                ) from error
        lines = [
            f"{found.name} {found.version}: {found.variant} on {found.provider}, "
            f"{found.latency_ms:.3g} ms"
        ]
        lines += [f"{one.name}  {one.score:.3f}" for one in found.labels]
        for box in found.boxes:
            corners = f"{box.left:.0f}, {box.top:.0f} to {box.right:.0f}, {box.bottom:.0f}"
            lines.append(f"{box.name}  {box.score:.3f}  {corners}")
        lines += map(_line, found.lines)
        if found.text is not None and not found.lines:
            lines.append(found.text or "no text")
        for one in () if found.lines else found.outputs:
            shape = ", ".join(map(str, one.shape))
            lines.append(f"{one.name}  {one.dtype} [{shape}]  {_first(one.values)}")
        text = json_text(found) if as_json else printable_lines(lines)
        answer.write(text.encode() + b"\n")
    sys.stdout.flush()


@click.command()
@click.argument("name")
@click.argument("prompt")
@config_option
@state_dir_option
@click.option(
    "--max-tokens",
    type=Number(min=1, max=2**24),
    default=200,
    show_default=True,
    help="New tokens, at most.",
)
@click.option(
    "--temperature",
    type=Number(min=0, max=100),
    help="Divisor of the logits; 0 takes the likeliest token.",
)
@click.option("--seed", type=Number(min=0, max=2**53), help="Start of the random numbers.")
@click.option("--stop", multiple=True, help="A text that ends the answer; repeatable.")
@click.option("--adapter", metavar="NAME", help="Adapter that writes with the model.")
@click.option("--raw", is_flag=True, help="Continue PROMPT, without the chat template.")
@json_option
def generate(
    name: str,
    prompt: str,
    config_path: Path,
    state_dir: Path | None,
    max_tokens: float,
    temperature: float | None,
    seed: float | None,
    stop: tuple[str, ...],
    adapter: str | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Answer PROMPT by model NAME, which writes texts.

    A release with a chat template answers PROMPT as a message. The text counts in no statistics.

    \b
    Example:
      edgepack-agent generate chat "Name a river." --max-tokens 50
    """
    from edgepack.agent.generation.texts import TextRequest
    from edgepack.agent.model_commands.text import write_text
    from edgepack.agent.runtime.child import redirect_stdout
    from edgepack.text import printable

    request = TextRequest(
        prompt=prompt,
        max_tokens=int(max_tokens),
        temperature=temperature,
        seed=None if seed is None else int(seed),
        stop=stop,
        adapter=adapter,
    )
    place, threads = _place(config_path, state_dir), _threads(config_path)
    with redirect_stdout() as answer:  # Native libraries print, too.

        def show(text: str) -> None:
            if not as_json:
                lines = map(printable, text.split("\n"))
                answer.write("\n".join(lines).encode(errors="replace"))
                answer.flush()

        found = write_text(place, name, request, show, is_chat=not raw, threads=threads)
        answer.write((json_text(found) if as_json else "").encode() + b"\n")
    sys.stdout.flush()
    if not as_json:
        click.echo(
            f"{found.completion_tokens} tokens of {found.name} {found.version}, the first after "
            f"{found.first_token_ms:.3g} ms, then {found.tokens_per_s:.3g} a second",
            err=True,
        )


@click.command()
@click.argument("name")
@config_option
@state_dir_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The program to write, NAME.eim by default.",
)
@click.option("--listen", type=click.Path(path_type=Path), hidden=True)
def eim(
    name: str,
    config_path: Path,
    state_dir: Path | None,
    output: Path | None,
    listen: Path | None,
) -> None:
    """Write a program for the Linux runners of Edge Impulse, which serves model NAME.

    The program runs on this device, and follows the updates of the model.

    \b
    Example:
      edgepack-agent eim defects -o defects.eim
    """
    from edgepack.agent.cli.other_fleet import agent_program, write_program
    from edgepack.agent.model_commands.serving import find_runnable

    place = _place(config_path, state_dir).resolve()
    if listen is not None:
        from edgepack.agent.model_commands.eim import serve_eim

        serve_eim(name, place, listen, threads=_threads(config_path))
        return
    find_runnable(place, name)
    command = shlex.join([*agent_program(), "eim", name, "--state-dir", str(place), "--listen"])
    output = output or Path(f"{name}.eim")
    write_program(output, f'#!/bin/sh\nexec {command} "$1"\n')
    click.echo(f"wrote {output}")


def _line(line: "TextLine") -> str:
    """Return a line of a page as text: its characters, its score, and its box."""
    across, down = zip(*line.corners, strict=True)
    box = f"{min(across):.0f}, {min(down):.0f} to {max(across):.0f}, {max(down):.0f}"
    return f"{line.text}  {line.score:.3f}  {box}"


def _first(values: list[object]) -> str:
    """Return the first values of an output, as text; None stands for NaN and infinity."""
    shown = (
        "not finite" if one is None else f"{one:.6g}" if isinstance(one, float) else str(one)
        for one in values[:8]
    )
    return " ".join(shown) + (" …" if len(values) > 8 else "")


def _place(config_path: Path, state_dir: Path | None) -> Path:
    """Return the state folder of an option, of the settings, or the default."""
    from edgepack.agent.config import read_config
    from edgepack.agent.state.models import DEFAULT_STATE_DIR

    if state_dir is not None:
        return state_dir
    if config_path == DEFAULT_CONFIG and not config_path.exists():
        return DEFAULT_STATE_DIR
    return Path(read_config(config_path).state_dir)


def _threads(config_path: Path) -> int:
    """Return the threads of the settings; 0 if this user cannot read the settings."""
    from edgepack.agent.config import read_config
    from edgepack.errors import EdgepackError

    try:
        return read_config(config_path).providers.threads
    except EdgepackError:
        return 0
