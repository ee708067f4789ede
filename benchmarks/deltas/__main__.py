"""Measurement of the wire cost of updates: `python -m benchmarks.deltas`."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx

from benchmarks.deltas.forms import costs, read_model
from benchmarks.deltas.updates import Side, Update, updates
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.packager import build
from edgepack.packager.bundling.deltas import write_deltas

VARIANTS = {"fp32": "fp32", "int8": "cpu"}
CARRIED = "chunks, or delta"
COLUMNS = (
    *("all, zstd", "chunks", CARRIED, "chunks, zlib", "XOR, zlib"),
    *("difference, zlib", "difference, lzma", "bsdiff4", "zstd, old as dictionary"),
)
"""What the tables show; the JSON has it all."""

_PROFILE = """
[profile]
name = "{name}"
extends = "{parent}"
summary = "One way of quantizing; any accuracy will do, so that nothing else is tried"
{quantize}
[gates]
float_instead = []

[gates.accuracy.any]
keep = 0.0
"""
_QUANTIZE = """
[[pass]]
name = "quantize"
ranges = ["minmax"]
"""
PAGE = """\
# Updates, measured

What an update of a model costs on the wire, by what changed and by how it is sent. Made by
`make bench-deltas`; [the numbers](deltas.json) as JSON.

Each model is trained for real and built twice by edgepack. Shares are of the new model file.
*Chunks* is what edgepack sends: the chunks of the bundle's format that the device does not have.
*Chunks, or delta* is what it sends where the new bundle was built with `--delta-from` the old one.
The columns after it send those same chunks in fewer bytes, each by itself: compressed as they are,
XORed with the old bytes of the same tensor, or subtracted as integers, both sorted into planes of
bytes. bsdiff and zstd with the old file as dictionary (`--patch-from`) see both whole files.

{tables}
"""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of an update.

    Attributes:
        model, what, variant: Model, change and variant.
        bytes: Size of each form.
    """

    model: str
    what: str
    variant: str
    bytes: dict[str, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deltas", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for the page and the JSON")
    given = parser.parse_args(arguments)
    measured: list[Measured] = []
    for update in updates():
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as folder:
            measured += measure(update, Path(folder))
        took_s = time.monotonic() - started
        print(f"{update.model}: {update.what}: {took_s:.0f} s", file=sys.stderr, flush=True)
        if given.output is not None:
            _write(given.output, measured)
    print(tables(measured))
    return 0


def _write(folder: Path, measured: Sequence[Measured]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    numbers = msgspec.json.format(msgspec.json.encode(measured))
    (folder / "deltas.json").write_bytes(numbers + b"\n")
    (folder / "README.md").write_text(PAGE.format(tables=tables(measured)))


def measure(update: Update, folder: Path) -> list[Measured]:
    """Build both sides and count the bytes, for each variant.

    Args:
        update: The update.
        folder: For all files; must be empty.
    """
    write_key_pair(generate_key(), folder / "release")
    profiles = []
    for name, parent in VARIANTS.items():
        quantize = "" if parent == "fp32" else _QUANTIZE
        profiles.append(folder / f"{name}.toml")
        profiles[-1].write_text(_PROFILE.format(name=name, parent=parent, quantize=quantize))
    for number, side in enumerate((update.old, update.new)):
        _build(side, folder / f"bundle-{number}", profiles, folder / "release.key", number + 1)
    manifests = [
        decode_manifest((folder / f"bundle-{number}" / MANIFEST_FILE).read_bytes())
        for number in (0, 1)
    ]
    variants = manifests[1].variants
    deltas = write_deltas(folder / "bundle-1", "measured", variants, folder / "bundle-0")
    sent = {delta.variant: delta.sent_bytes for delta in deltas}
    found = []
    for name in VARIANTS:
        sides = []
        for number, manifest in enumerate(manifests):
            variant = manifest.variant(name)
            path = f"{variant.folder}/{variant.model_file}"
            (entry,) = [entry for entry in variant.facts.files if entry.path == path]
            sides.append(read_model(folder / f"bundle-{number}", entry))
        bytes_ = {**costs(*sides), CARRIED: sent[name]}
        found.append(Measured(model=update.model, what=update.what, variant=name, bytes=bytes_))
    return found


def _build(side: Side, output: Path, profiles: Sequence[Path], key: Path, release: int) -> None:
    model = output.with_name(f"{output.name}.onnx")
    onnx.save(side.model, model)
    build(
        model,
        profiles=profiles,
        calibration=side.samples,
        shapes=side.shapes,
        name="measured",
        version=f"1.{release}.0",
        release=release,
        key=key,
        output=output,
    )


def tables(measured: Sequence[Measured]) -> str:
    """Return two Markdown tables a model: a table for each variant, a row for each update."""
    found = []
    for model in dict.fromkeys(one.model for one in measured):
        for variant in VARIANTS:
            rows = [one for one in measured if (one.model, one.variant) == (model, variant)]
            found.append(f"## {model}, {variant}\n\n{_table(rows)}")
    return "\n\n".join(found)


def _table(rows: Sequence[Measured]) -> str:
    names = COLUMNS
    lines = [
        f"| update | all of it, kB | {' | '.join(names)} |",
        f"| --- | ---: |{' ---: |' * len(names)}",
    ]
    for row in rows:
        whole = row.bytes["all of it"]
        cells = [f"{row.bytes[name] / whole:.1%}" for name in names]
        lines.append(f"| {row.what} | {whole / 1e3:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
