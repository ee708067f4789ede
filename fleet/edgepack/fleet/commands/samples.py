"""The commands `edgepack fleet capture` and `edgepack fleet samples …`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.command_options import folder_option
from edgepack.errors import FleetError
from edgepack.fleet.client.connection import ask_patiently
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.completion import model_names
from edgepack.fleet.commands.options import Duration, asks, selects
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.documents.samples import CaptureView, PulledSamples
from edgepack.key_place import check_key_place
from edgepack.text import counted
from edgepack.wire.orders import CAPTURE_REASONS, MAX_CAPTURE_SAMPLES, Reason

KEYS = "samples"
"""Name of the key pair in the fleet's folder, without its ending."""

_LOOK_S = 0.5


class Reasons(click.ParamType[tuple[Reason, ...]]):
    """Reasons of a choice, separated by commas."""

    name = "words"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Reason, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",") if word.strip()]
        if not words or (unknown := sorted(set(words) - set(CAPTURE_REASONS))):
            wrong = repr(unknown[0]) if words else "nothing"
            self.fail(f"{wrong} is none of {', '.join(CAPTURE_REASONS)}", param, ctx)
        return cast(tuple[Reason, ...], tuple(dict.fromkeys(words)))


@click.command()
@click.argument("model", shell_complete=model_names)
@click.option(
    "--samples",
    type=click.IntRange(1, MAX_CAPTURE_SAMPLES),
    default=200,
    show_default=True,
    help="Samples in total; each device gives an equal share.",
)
@click.option(
    "--of",
    type=Reasons(),
    default=",".join(CAPTURE_REASONS),
    show_default=True,
    help="Inputs that push the drift, answers in doubt, answers that differ in the shadow.",
)
@click.option(
    "--collect",
    type=Duration(),
    default="1h",
    show_default=True,
    help="How long devices choose, before they upload.",
)
@click.option(
    "--valid", type=Duration(), default="7d", show_default=True, help="When devices stop sending."
)
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Public key or certificate to encrypt to. [default: samples.pub in --data, made with its "
    "private key if missing]",
)
@click.option(
    "--wait",
    type=Duration(),
    help="Wait so long at most until the devices are done; exit code 1 if they are not.",
)
@selects
@asks
def capture(
    model: str,
    samples: int,
    of: tuple[Reason, ...],
    collect: float,
    valid: float,
    key: Path | None,
    wait: float | None,
    to: Selector | None,
    data: Path,
    url: str,
    as_json: bool,
) -> None:
    """Ask devices for inputs of a model that are worth the most to its next build.

    Each device's own settings must allow the upload ([capture] upload). The devices encrypt each
    sample to the public key. Without a selection, all devices that serve the model are asked.

    \b
    Example:
      edgepack fleet capture defects --samples 200 --of drift,doubt,shadow
      edgepack fleet capture defects --group cameras --collect 24h
      edgepack fleet samples pull defects -o captured
    """
    client = FleetClient(url, data=data)
    found = client.request_samples(
        model,
        key or _own_key(data),
        samples=samples,
        of=of,
        to=to or Selector(kind="all"),
        collect_s=collect,
        valid_s=valid,
    )
    until = time.monotonic() + (wait or 0.0)
    while wait is not None and not found.is_over and time.monotonic() < until:
        time.sleep(_LOOK_S)
        asked = ask_patiently(lambda: client.sample_requests(model))
        found = next((one for one in asked if one.capture == found.capture), found)
    print_result((found,), as_json, captures_table)
    if wait is not None and not found.is_over:
        sys.exit(1)


def _own_key(data: Path) -> Path:
    """Return the public key in the fleet's folder; make the pair if missing.

    Raises:
        EdgepackError: The folder cannot be written, or lies in a git work tree.
    """
    public = data / f"{KEYS}.pub"
    if not public.exists():
        check_key_place(data)
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise FleetError(
                f"the key of samples cannot be made: {error.strerror}",
                found_in=str(data),
                remedy="name a public key with --key",
            ) from error
        write_key_pair(generate_key(), data / KEYS)
    return public


@click.group(invoke_without_command=True)
@asks
@click.pass_context
def samples(context: click.Context, data: Path, url: str, as_json: bool) -> None:
    """List the requests for samples, and how far each device is.

    \b
    Example:
      edgepack fleet samples
      edgepack fleet samples pull defects -o captured
      edgepack fleet samples remove defects
    """
    if context.invoked_subcommand is None:
        print_result(FleetClient(url, data=data).sample_requests(), as_json, captures_table)


@samples.command()
@click.argument("model", shell_complete=model_names)
@folder_option("Folder to make.")
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Private key. [default: samples.key in --data]",
)
@asks
def pull(model: str, output: Path, key: Path | None, data: Path, url: str, as_json: bool) -> None:
    """Decrypt a model's samples into a folder, for the model's next build.

    \b
    Example:
      edgepack fleet samples pull defects -o captured
      edgepack build defects.onnx --calibration samples/ --captured captured …
      edgepack build defects.onnx --calibration captured …
    """
    client = FleetClient(url, data=data)
    print_result(client.pull_samples(model, output, key or data / f"{KEYS}.key"), as_json, _pulled)


@samples.command()
@click.argument("model", shell_complete=model_names)
@asks
def remove(model: str, data: Path, url: str, as_json: bool) -> None:
    """Delete a model's samples in the fleet.

    \b
    Example:
      edgepack fleet samples remove defects
    """
    gone = FleetClient(url, data=data).remove_samples(model)
    print_result(gone, as_json, lambda shown: f"{counted(shown.count, 'sample')} removed")


def captures_table(found: Sequence[CaptureView]) -> RenderableType:
    """Return a table with a row for each device of a request."""
    if not found:
        return "no request for samples: edgepack fleet capture MODEL makes one"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("request", "model", "of", "device", "state", "received", "waiting", "dropped", ""):
        is_number = name in ("received", "waiting", "dropped")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for one in found:
        for device in one.devices:
            table.add_row(
                one.capture,
                Text(one.model),
                ", ".join(one.of),
                Text(device.device),
                Text(device.state or "asked"),
                f"{device.received} of {one.share}",
                str(device.kept),
                str(device.dropped),
                Text(device.because),
            )
    return table


def _pulled(found: PulledSamples) -> str:
    left = [f"{found.duplicates} duplicates"] * (found.duplicates > 0)
    left += [f"{found.unreadable} unreadable"] * (found.unreadable > 0)
    left_out = f" ({', '.join(left)} left out)" if left else ""
    return (
        f"{counted(found.samples, 'sample')} in {found.folder}{left_out}\n"
        f"next: edgepack build … --captured {found.folder}, or --calibration {found.folder}"
    )
