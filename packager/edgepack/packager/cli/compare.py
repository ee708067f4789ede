"""The command `edgepack compare`."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from edgepack.bundle.accuracy_words import DETECTION_F1, describe_accuracy
from edgepack.bundle.manifest import Accuracy
from edgepack.json_text import json_text
from edgepack.number_format import (
    format_bytes,
    format_latency,
    format_metric,
)
from edgepack.packager.cli.option_values import json_option
from edgepack.packager.cli.text_table import plain, print_table
from edgepack.packager.comparison.differences import compare as compare_bundles
from edgepack.packager.comparison.inside import CLEARLY_DB, InsideComparison
from edgepack.packager.comparison.result import (
    Comparison,
    Difference,
    FileState,
    Presence,
    Transfer,
    VariantComparison,
    VariantSide,
)
from edgepack.packager.graph.model_files import keep_runtime_quiet
from edgepack.text import counted, printable, printable_lines

_side = click.Path(path_type=Path)
_MOST_LISTED = 8
_UNKNOWN = "not known"
_PRESENCE: dict[Presence, str] = {"both": "", "only a": " (only A)", "only b": " (only B)"}


@click.command()
@click.argument("a", type=_side)
@click.argument("b", type=_side)
@json_option
def compare(a: Path, b: Path, as_json: bool) -> None:
    """Show the differences between two bundles, or two reports of builds.

    A and B are bundles (archive or folder) or report.json files. For two bundles the number of
    bytes is shown that a device with A still has to fetch for B. The manifests are trusted: verify
    other people's bundles with edgepack verify.

    \b
    Example:
      edgepack compare ocr-1.2.0.edgepack ocr-1.3.0.edgepack
      edgepack compare old.edgepack.report.json new.edgepack.report.json --json
    """
    keep_runtime_quiet()
    comparison = compare_bundles(a, b)
    if as_json:
        click.echo(json_text(comparison))
        return
    _print(comparison)


def _print(comparison: Comparison) -> None:
    for side, path in (("A", comparison.a), ("B", comparison.b)):
        click.echo(f"{side}  {click.style(printable(path), bold=True)}")
    click.echo(f"\n{_verdict(comparison)}\n")
    _print_variants(comparison.variants)
    click.echo(printable_lines(_lines(comparison)))


def _verdict(comparison: Comparison) -> str:
    changed = [file for file in comparison.files if file.state != "equal"]
    if comparison.equal_for_devices:
        if not changed and not comparison.differences:
            return f"{_green('Equal')}: every file has the same bytes."
        return (
            f"{_green('Equal for devices')}: models, golden samples and hooks have the same bytes, "
            "only facts about the build differ."
        )
    if comparison.equal_for_devices is None:
        return f"{_green('Equal models')}: a report does not tell of golden samples and hooks."
    equal = len(comparison.files) - len(changed)
    word = click.style("Different", fg="yellow")
    return f"{word}: {equal} of {counted(len(comparison.files), 'file')} equal."


def _green(words: str) -> str:
    return click.style(words, fg="green")


def _print_variants(variants: tuple[VariantComparison, ...]) -> None:
    columns: list[tuple[str, Callable[[VariantSide], str]]] = [
        ("precision", lambda side: side.precision + (", degraded" if side.degraded else "")),
        ("size", lambda side: format_bytes(side.size_bytes)),
        ("accuracy kept (budget)", lambda side: _accuracy(side.accuracy)),
        ("nodes placed", lambda side: side.placement.words),
        ("quantized nodes", _quantized),
    ]
    if any(side and side.latency_ms is not None for pair in variants for side in (pair.a, pair.b)):
        columns.append(("latency", _latency))
    headings = ("variant", *(heading for heading, _ in columns), "to fetch")
    rows = [
        plain(
            variant.name + _PRESENCE[variant.presence],
            *(_pair(variant, tell) for _, tell in columns),
            _to_fetch(variant.transfer),
        )
        for variant in variants
    ]
    print_table(headings, rows, right=())
    click.echo(click.style("= is equal in both, otherwise A → B", dim=True))


def _pair(variant: VariantComparison, tell: Callable[[VariantSide], str]) -> str:
    a, b = (tell(side) if side else "" for side in (variant.a, variant.b))
    if a and b:
        return f"= {a}" if a == b else f"{a} → {b}"
    return a or b


def _accuracy(accuracy: Accuracy) -> str:
    if accuracy.metric == DETECTION_F1:
        return f"{describe_accuracy(accuracy)} (≥ {format_metric(accuracy.budget)})"
    return f"{accuracy.metric} {format_metric(accuracy.value)} (≥ {format_metric(accuracy.budget)})"


def _quantized(side: VariantSide) -> str:
    if side.quantized_nodes is None or side.float_nodes is None:
        return _UNKNOWN
    return f"{side.quantized_nodes} of {side.quantized_nodes + side.float_nodes}"


def _latency(side: VariantSide) -> str:
    return _UNKNOWN if side.latency_ms is None else format_latency(side.latency_ms, None)


def _to_fetch(transfer: Transfer | None) -> str:
    if transfer is None:
        return "-"
    if not transfer.fetch_chunks:
        return "nothing"
    return f"{format_bytes(transfer.fetch_bytes)} ({transfer.share:.1%})"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield ""
    told = [_difference("bundle", difference) for difference in comparison.differences]
    told += [line for variant in comparison.variants for line in _variant_lines(variant)]
    if told:
        yield from (*told, "")
    for state in ("changed", "added", "removed", "equal"):
        yield from _file_line(comparison, state)
    transfer = comparison.transfer
    if transfer is not None and comparison.head_bytes is not None:
        yield (
            f"transfer  a device that holds all of A fetches {transfer.fetch_chunks:,} of "
            f"{transfer.wanted_chunks:,} chunks for all of B: "
            f"{format_bytes(transfer.fetch_bytes)} of {format_bytes(transfer.wanted_bytes)} "
            f"({transfer.share:.1%}), and manifest and signature, "
            f"{format_bytes(comparison.head_bytes)}"
        )
    else:
        yield "transfer  not known: a report has no chunks of files"


def _variant_lines(variant: VariantComparison) -> Iterator[str]:
    for difference in variant.differences:
        yield _difference(variant.name, difference)
    for what, names in (
        ("float in A, quantized in B", variant.quantized_only_in_b),
        ("quantized in A, float in B", variant.quantized_only_in_a),
        ("nodes only in A", variant.nodes_only_in_a),
        ("nodes only in B", variant.nodes_only_in_b),
    ):
        if names:
            yield f"{variant.name}: {what}: {_listed(names)}"
    if variant.inside is not None:
        yield from _inside_lines(variant.name, variant.inside)
    for side, notes in (("A", variant.notes_only_in_a), ("B", variant.notes_only_in_b)):
        for note in notes:
            yield f"{variant.name}: {side} only: {note}"


def _inside_lines(name: str, inside: InsideComparison) -> Iterator[str]:
    if inside.a_median_db != inside.b_median_db or inside.worse or inside.better:
        yield (
            f"{name}: error of {inside.shared_layers} layers: median SQNR "
            f"{inside.a_median_db:.1f} dB → {inside.b_median_db:.1f} dB"
        )
    for what, changes in (("worse", inside.worse), ("better", inside.better)):
        if changes:
            layers = _listed(
                f"{one.node} ({one.a_sqnr_db:.1f} dB → {one.b_sqnr_db:.1f} dB)" for one in changes
            )
            yield f"{name}: layers {what} by {CLEARLY_DB:g} dB or more in B: {layers}"
    if inside.ranges:
        ranges = _listed(
            f"{one.tensor} ({one.a_low:.3g}…{one.a_high:.3g} → {one.b_low:.3g}…{one.b_high:.3g})"
            for one in inside.ranges
        )
        yield f"{name}: ranges that are clearly wider or narrower in B: {ranges}"


def _difference(subject: str, difference: Difference) -> str:
    a, b = difference.a or "none", difference.b or "none"
    return f"{subject}: {difference.what}: {a} → {b}"


def _file_line(comparison: Comparison, state: FileState) -> Iterator[str]:
    found = [file for file in comparison.files if file.state == state]
    if found:
        yield f"{state:<8}  {counted(len(found), 'file')}: {_listed(file.path for file in found)}"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MOST_LISTED} more" if len(every) > _MOST_LISTED else ""
    return ", ".join(every[:_MOST_LISTED]) + more
