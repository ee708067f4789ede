"""The command `edgepack delta`."""

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from edgepack.errors import BundleError
from edgepack.json_text import json_text
from edgepack.number_format import format_bytes
from edgepack.packager.cli.option_values import json_option
from edgepack.packager.cli.text_table import plain, print_table
from edgepack.packager.comparison.differences import compare
from edgepack.packager.comparison.result import Transfer, VariantComparison
from edgepack.packager.comparison.tensors import TensorChange, TensorComparison
from edgepack.packager.graph.model_files import keep_runtime_quiet
from edgepack.text import counted, printable

_side = click.Path(path_type=Path)
_MOST_LISTED = 8


class VariantDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of an update for a device that runs a variant.

    Attributes:
        name: The variant of the new bundle.
        is_new: Whether the old bundle has none of that name.
        transfer, tensors: See `VariantComparison`.
        wire_bytes: Bytes sent to the device: missing chunks, or the delta of the new bundle, and
            manifest and signature.
    """

    name: str
    is_new: bool
    transfer: Transfer
    tensors: TensorComparison | None
    wire_bytes: int


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of an update.

    Attributes:
        old, new: Given paths.
        variants: Variants of the new bundle.
        head_bytes: Manifest and signature, which every device fetches.
    """

    old: str
    new: str
    variants: tuple[VariantDelta, ...]
    head_bytes: int


@click.command()
@click.argument("old", type=_side)
@click.argument("new", type=_side)
@json_option
def delta(old: Path, new: Path, as_json: bool) -> None:
    """Show the bytes on the wire of an update between two bundles.

    For each variant: the chunks of a device with OLD, the changed tensors, and the remaining bytes
    to fetch. The manifests are trusted: verify other people's bundles with edgepack verify.
    edgepack compare shows all other differences.

    \b
    Example:
      edgepack delta ocr-1.2.0.edgepack ocr-1.3.0.edgepack
    """
    keep_runtime_quiet()
    found = _measure(old, new)
    if as_json:
        click.echo(json_text(found))
        return
    _print(found)


def _measure(old: Path, new: Path) -> Delta:
    comparison = compare(old, new)
    if comparison.head_bytes is None:
        raise BundleError(
            "a report has no chunks of files",
            found_in=f"{old}, {new}",
            remedy="give the bundles of the reports",
        )
    return Delta(
        old=comparison.a,
        new=comparison.b,
        variants=tuple(_variants(comparison.variants, comparison.head_bytes)),
        head_bytes=comparison.head_bytes,
    )


def _variants(variants: tuple[VariantComparison, ...], head_bytes: int) -> Iterator[VariantDelta]:
    for variant in variants:
        if variant.transfer is not None:
            yield VariantDelta(
                name=variant.name,
                is_new=variant.presence != "both",
                transfer=variant.transfer,
                tensors=variant.tensors,
                wire_bytes=_fetched(variant.transfer) + head_bytes,
            )


def _fetched(transfer: Transfer) -> int:
    found = transfer.with_delta_bytes
    return transfer.fetch_bytes if found is None else min(found, transfer.fetch_bytes)


def _print(found: Delta) -> None:
    new = click.style(printable(found.new), bold=True)
    click.echo(f"{printable(found.old)} → {new}\n")
    headings = ("variant", "chunks unchanged", "tensors changed", "over the wire", "of all")
    rows = [plain(*_cells(one, found.head_bytes)) for one in found.variants]
    print_table(headings, rows, right=headings[3:])
    click.echo(
        f"\nmanifest and signature, {format_bytes(found.head_bytes)}, are counted in. Devices that "
        "lack the same chunks get them by one broadcast."
    )
    for one in found.variants:
        if one.tensors is not None and one.tensors.changes:
            click.echo(printable(f"{one.name}: {_listed(one.tensors.changes)}"))


def _cells(one: VariantDelta, head_bytes: int) -> tuple[str, ...]:
    transfer = one.transfer
    kept = transfer.wanted_chunks - transfer.fetch_chunks
    is_by_delta = _fetched(transfer) < transfer.fetch_bytes
    whole = transfer.wanted_bytes + head_bytes
    return (
        one.name + (" (new)" if one.is_new else ""),
        f"{kept:,} of {transfer.wanted_chunks:,}",
        _tensors(one),
        format_bytes(one.wire_bytes) + (" by delta" if is_by_delta else ""),
        f"{one.wire_bytes / whole:.1%}" if whole else "-",
    )


def _tensors(one: VariantDelta) -> str:
    if one.tensors is None:
        return "-" if one.is_new else "not known"
    return f"{len(one.tensors.changes):,} of {one.tensors.equal + len(one.tensors.changes):,}"


def _listed(changes: tuple[TensorChange, ...]) -> str:
    told = ", ".join(map(_told, changes[:_MOST_LISTED]))
    rest = len(changes) - _MOST_LISTED
    return told + (f" and {counted(rest, 'more tensor')}" if rest > 0 else "")


def _told(change: TensorChange) -> str:
    if change.a_bytes is None:
        return f"{change.name} (added, {format_bytes(change.b_bytes or 0)})"
    if change.b_bytes is None:
        return f"{change.name} (removed)"
    return f"{change.name} ({format_bytes(change.b_bytes)})"
