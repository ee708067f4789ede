"""Differences of two bundles or reports, equal facts, and the files that a device must fetch."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.update.fetching import wanted_files
from edgepack.bundle.chunks import chunk_digests
from edgepack.bundle.deltas import DELTA_FOLDER, delta_path
from edgepack.bundle.manifest import Manifest
from edgepack.bundle.provenance import BILL_FILE, PROVENANCE_FILE
from edgepack.packager.bundling.assemble import REPORT_HTML, REPORT_JSON
from edgepack.packager.comparison.inside import compare_inside
from edgepack.packager.comparison.reading import Compared, ComparedVariant, read_compared
from edgepack.packager.comparison.result import (
    Comparison,
    Difference,
    FileComparison,
    FileState,
    Transfer,
    VariantComparison,
)
from edgepack.packager.comparison.tensors import compare_tensors
from edgepack.packager.reports.report import ReportedFile

_FOR_PEOPLE = frozenset({REPORT_JSON, REPORT_HTML, PROVENANCE_FILE, BILL_FILE})
"""Files that no device fetches."""
_NEXT_SETTING = re.compile(r", (?=[a-z0-9_]+ )")


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare two bundles or reports; include the files that a device with `a` must fetch.

    The manifests are trusted: verify other people's bundles.

    Example:
        ```python
        from edgepack.packager import compare

        comparison = compare("ocr-1.2.0.edgepack", "ocr-1.3.0.edgepack")
        print(comparison.equal_for_devices, [variant.name for variant in comparison.variants])
        ```

    Args:
        a: A bundle (archive or folder), or a `report.json` file; a report knows nothing of single
            nodes and chunks.
        b: Another one.

    Returns:
        The differences; variants and files are matched by name.

    Raises:
        BundleError: A path is neither a bundle nor a report, or is damaged.
    """
    return compare_sides(read_compared(Path(a)), read_compared(Path(b)))


def compare_sides(a: Compared, b: Compared) -> Comparison:
    """Compare two sides; variants and files are matched by name."""
    first = {variant.name: variant for variant in a.variants}
    second = {variant.name: variant for variant in b.variants}
    names = list(dict.fromkeys([*first, *second]))
    files = _compare_files(a, b)
    variants = tuple(
        _compare_variant(name, first.get(name), second.get(name), a, b) for name in names
    )
    manifests = (a.manifest, b.manifest)
    return Comparison(
        a=str(a.path),
        b=str(b.path),
        differences=_differ(_facts(a), _facts(b)),
        variants=variants,
        files=files,
        transfer=_transfer(a, b, tuple(first), tuple(second)),
        head_bytes=b.head_bytes if a.manifest and b.manifest else None,
        equal_for_devices=_equal_for_devices(variants, files, knows_all=None not in manifests),
    )


def _compare_variant(
    name: str,
    a: ComparedVariant | None,
    b: ComparedVariant | None,
    old: Compared,
    new: Compared,
) -> VariantComparison:
    had, wanted = ((name,) if side else () for side in (a, b))
    comparison = VariantComparison(
        name=name,
        presence="only b" if a is None else "only a" if b is None else "both",
        a=a.side if a else None,
        b=b.side if b else None,
        transfer=_transfer(old, new, had, wanted) if b else None,
    )
    if a is None or b is None:
        return comparison
    comparison = replace(
        comparison,
        has_equal_files=_digests(a.files) == _digests(b.files),
        differences=_differ(*_settings(a, b)),
        notes_only_in_a=_missing(a.notes, b.notes),
        notes_only_in_b=_missing(b.notes, a.notes),
        inside=compare_inside(a.inspection, b.inspection),
        tensors=compare_tensors(a.tensors, b.tensors),
    )
    if a.nodes is None or b.nodes is None:
        return comparison
    every_a, every_b = a.nodes.quantized | a.nodes.float_, b.nodes.quantized | b.nodes.float_
    return replace(
        comparison,
        quantized_only_in_a=tuple(sorted(a.nodes.quantized & b.nodes.float_)),
        quantized_only_in_b=tuple(sorted(b.nodes.quantized & a.nodes.float_)),
        nodes_only_in_a=tuple(sorted(every_a - every_b)),
        nodes_only_in_b=tuple(sorted(every_b - every_a)),
    )


def _facts(side: Compared) -> dict[str, str]:
    return {
        "name": side.facts.name,
        "version": side.facts.version,
        "release": str(side.facts.release),
        "source model": f"sha256:{side.source_sha256[:16]}…",
        **{f"tool {name}": version for name, version in side.facts.tools.items()},
    }


def _settings(a: ComparedVariant, b: ComparedVariant) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of both sides, without settings that only a single side records."""
    with_recipe = a.recipe is not None and b.recipe is not None
    with_options = a.options is not None and b.options is not None
    found = []
    for variant in (a, b):
        side = variant.side
        settings = {
            "provider": f"{side.provider} on {side.device}",
            "compiled for": variant.toolchain.compiled_for,
            "accuracy metric": side.accuracy.metric,
            "accuracy budget": f"{side.accuracy.budget:g}",
        }
        for key, value in msgspec.to_builtins(variant.requires).items():
            settings[f"needs {key}"] = str(value)
        if with_recipe:
            settings |= _recipe_settings(variant.recipe or ())
        if with_options:
            settings |= variant.options or {}
        found.append(settings)
    return found[0], found[1]


def _recipe_settings(recipe: tuple[str, ...]) -> dict[str, str]:
    """Split a recipe into settings: `quantize: ops compute, weights int8` becomes `quantize.ops`
    and `quantize.weights`.
    """
    settings = {}
    for line in recipe:
        name, _, words = line.partition(": ")
        settings[f"pass {name}"] = "yes"
        for entry in _NEXT_SETTING.split(words) if words else ():
            key, _, value = entry.partition(" ")
            settings[f"{name}.{key}"] = value
    return settings


def _differ(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Difference, ...]:
    return tuple(
        Difference(what=key, a=a.get(key, ""), b=b.get(key, ""))
        for key in dict.fromkeys([*a, *b])
        if a.get(key, "") != b.get(key, "")
    )


def _missing(of: tuple[str, ...] | None, there: tuple[str, ...] | None) -> tuple[str, ...]:
    if of is None or there is None:
        return ()
    return tuple(note for note in of if note not in there)


def _digests(files: tuple[ReportedFile, ...]) -> dict[str, str]:
    return {file.path: file.sha256 for file in files}


def _compare_files(a: Compared, b: Compared) -> tuple[FileComparison, ...]:
    with_shared = a.shared_files is not None and b.shared_files is not None
    first, second = (
        {
            file.path: file
            for file in (
                *((side.shared_files or ()) if with_shared else ()),
                *(file for variant in side.variants for file in variant.files),
            )
        }
        for side in (a, b)
    )
    compared = []
    for path in sorted(first.keys() | second.keys()):
        one, other = first.get(path), second.get(path)
        state: FileState
        if one is None:
            state = "added"
        elif other is None:
            state = "removed"
        else:
            state = "equal" if one.sha256 == other.sha256 else "changed"
        compared.append(
            FileComparison(
                path=path,
                state=state,
                a_bytes=one.size_bytes if one else None,
                b_bytes=other.size_bytes if other else None,
            )
        )
    return tuple(compared)


def _equal_for_devices(
    variants: tuple[VariantComparison, ...],
    files: tuple[FileComparison, ...],
    *,
    knows_all: bool,
) -> bool | None:
    if any(variant.differences or variant.presence != "both" for variant in variants):
        return False
    of_devices = (
        file
        for file in files
        if file.path not in _FOR_PEOPLE and not file.path.startswith(f"{DELTA_FOLDER}/")
    )
    if any(file.state != "equal" for file in of_devices):
        return False
    return True if knows_all else None


def _transfer(
    a: Compared,
    b: Compared,
    had: tuple[str, ...],
    wanted: tuple[str, ...],
) -> Transfer | None:
    """Return the counts of a device: a chunk that the device has, in any file, is not fetched."""
    held, offered = a.manifest, b.manifest
    if held is None or offered is None:
        return None
    there = {digest for entry in wanted_files(held, had) for digest in chunk_digests(entry.chunks)}
    lacking: dict[bytes, int] = {}
    wanted_bytes = wanted_chunks = 0
    for entry in wanted_files(offered, wanted):
        wanted_bytes += entry.size_bytes
        wanted_chunks += len(entry.chunks.sizes)
        for digest, size in zip(chunk_digests(entry.chunks), entry.chunks.sizes, strict=True):
            if digest not in there:
                lacking[digest] = size
    fetch_bytes = sum(lacking.values())
    return Transfer(
        wanted_bytes=wanted_bytes,
        fetch_bytes=fetch_bytes,
        wanted_chunks=wanted_chunks,
        fetch_chunks=len(lacking),
        share=round(fetch_bytes / wanted_bytes, 6) if wanted_bytes else 0.0,
        with_delta_bytes=_with_delta(a, b, offered, wanted, lacking),
    )


def _with_delta(
    a: Compared,
    b: Compared,
    offered: Manifest,
    wanted: tuple[str, ...],
    lacking: Mapping[bytes, int],
) -> int | None:
    """Return the fetched bytes with B's deltas from A; None without deltas."""
    paths = {delta_path(a.digest, name) for name in wanted} & b.deltas.keys()
    if not paths:
        return None
    made = frozenset().union(*(b.deltas[path] for path in paths))
    sizes = {entry.path: entry.size_bytes for entry in offered.facts.files}
    rest = sum(size for digest, size in lacking.items() if digest not in made)
    return rest + sum(sizes[path] for path in paths)
