"""Reader for `edgepack compare`: a bundle in either form, or a build's report.

A report knows less: nothing of single nodes, of provider options, or of how files are cut into
chunks. Unknown facts of a side are None, and are not compared.
"""

import json
from pathlib import Path

import msgspec
import onnx
from google.protobuf.message import DecodeError

from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.deltas import DELTA_FOLDER, read_records
from edgepack.bundle.forms import digest_of_folder, open_bundle, read_manifest
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    BundleFacts,
    Manifest,
    Requirements,
    Toolchain,
    Variant,
    VariantFacts,
)
from edgepack.decoding import convert_value
from edgepack.errors import BuildError, BundleError
from edgepack.packager.bundling.assemble import REPORT_JSON
from edgepack.packager.comparison.result import VariantSide
from edgepack.packager.comparison.tensors import TensorMark, mark_tensors
from edgepack.packager.graph.node_precision import NodePrecision, node_precision
from edgepack.packager.graph.stored_tensors import external_files
from edgepack.packager.reports.report import (
    REPORT_FORMAT,
    Report,
    ReportedFile,
    VariantReport,
    reported_files,
)
from edgepack.packager.runtime.inspection import Inspection

_MAX_REPORT_BYTES = 64 * 1024 * 1024


class ComparedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """Variant of a side.

    Attributes:
        name: See `Variant`.
        requires, toolchain: See `VariantFacts`.
        side: Shown facts of the variant.
        files: Its files.
        recipe: The profile's passes in words; None where a bundle carries no report.
        notes: Decisions of the build; None as above.
        options: Provider and session options by name; None in a report.
        nodes: Which nodes are quantized, and which float; None in a report, and for a model that
            was compiled ahead of time.
        tensors: Its weights by name; None in a report, and for a model that is compiled ahead of
            time or encrypted.
        inspection: The build's inspection; None if nothing was lowered, or in a report of an older
            release.
    """

    name: str
    side: VariantSide
    requires: Requirements
    toolchain: Toolchain
    files: tuple[ReportedFile, ...]
    recipe: tuple[str, ...] | None
    notes: tuple[str, ...] | None
    options: dict[str, str] | None
    nodes: NodePrecision | None
    tensors: dict[str, TensorMark] | None
    inspection: Inspection | None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Side of a comparison.

    Attributes:
        path: Given path.
        facts: Name, version, release and tools.
        source_sha256: Of the source model.
        variants: In the order of preference.
        shared_files: Files outside the variants; None in a report.
        manifest: The manifest, which knows the chunks; None in a report.
        head_bytes: Length of manifest and signature, which every device fetches.
        digest: The root digest, hex; "" for a report.
        deltas: By the path of each delta of the bundle: the chunks that follow from the delta.
    """

    path: Path
    facts: BundleFacts | Report
    source_sha256: str
    variants: tuple[ComparedVariant, ...]
    shared_files: tuple[ReportedFile, ...] | None
    manifest: Manifest | None
    head_bytes: int
    digest: str = ""
    deltas: dict[str, frozenset[bytes]] = {}


def read_compared(path: Path) -> Compared:
    """Read a bundle (folder or archive) or a `report.json`.

    The manifest is believed: no signature is verified.

    Raises:
        BundleError: The path is neither a bundle nor a report, or is damaged.
    """
    if path.is_file() and _is_json(path):
        return _from_report(path, _read_report(path))
    with open_bundle(path) as folder:
        return _from_bundle(path, folder)


def _is_json(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"{")


def _read_report(path: Path) -> Report:
    content = read_bounded(path, _MAX_REPORT_BYTES)
    try:
        document = json.loads(content)
        found = document.get("format") if isinstance(document, dict) else None
        report = convert_value(document, Report) if found == REPORT_FORMAT else None
    except (ValueError, msgspec.ValidationError) as error:
        raise _no_report(path, f": {error}") from error
    if report is None:
        raise _no_report(path, f" (format {REPORT_FORMAT})")
    return report


def _no_report(path: Path, because: str) -> BundleError:
    return BundleError(
        f"{path.name} is not a report of a build{because}",
        found_in=str(path),
        remedy="give a bundle, or the .report.json next to a bundle",
    )


def _from_report(path: Path, report: Report) -> Compared:
    return Compared(
        path=path,
        facts=report,
        source_sha256=report.model.sha256,
        variants=tuple(_compared(it, it, it.files, it) for it in report.variants),
        shared_files=None,
        manifest=None,
        head_bytes=0,
    )


def _from_bundle(path: Path, folder: Path) -> Compared:
    manifest = read_manifest(folder)
    report = folder / REPORT_JSON
    reported = {}
    if report.is_file():
        reported = {variant.name: variant for variant in _read_report(report).variants}
    facts = manifest.facts
    return Compared(
        path=path,
        facts=facts,
        source_sha256=facts.source_sha256,
        variants=tuple(
            _bundled_variant(folder, manifest, variant, reported.get(variant.name))
            for variant in manifest.variants
        ),
        shared_files=reported_files(facts.files),
        manifest=manifest,
        head_bytes=sum((folder / name).stat().st_size for name in (MANIFEST_FILE, SIGNATURE_FILE)),
        digest=digest_of_folder(folder, manifest),
        deltas={
            entry.path: frozenset(record.new for record in read_records(folder / entry.path))
            for entry in facts.files
            if entry.path.startswith(f"{DELTA_FOLDER}/")
        },
    )


def _bundled_variant(
    folder: Path, manifest: Manifest, variant: Variant, reported: VariantReport | None
) -> ComparedVariant:
    options = {
        **{f"provider {key}": value for key, value in variant.provider_options.items()},
        **{f"session {key}": value for key, value in variant.session_options.items()},
    }
    path = f"{variant.folder}/{variant.model_file}"
    nodes, tensors = (None, None) if manifest.is_encrypted(path) else _read_model(folder / path)
    files = reported_files(variant.facts.files)
    return _compared(variant, variant.facts, files, reported, options, nodes, tensors)


def _compared(
    variant: Variant | VariantReport,
    facts: VariantFacts | VariantReport,
    files: tuple[ReportedFile, ...],
    reported: VariantReport | None,
    options: dict[str, str] | None = None,
    nodes: NodePrecision | None = None,
    tensors: dict[str, TensorMark] | None = None,
) -> ComparedVariant:
    return ComparedVariant(
        name=variant.name,
        side=VariantSide(
            precision=facts.precision,
            provider=variant.provider,
            device=variant.device,
            degraded=facts.degraded,
            size_bytes=sum(file.size_bytes for file in files),
            accuracy=facts.accuracy,
            placement=facts.placement,
            quantized_nodes=len(nodes.quantized) if nodes else None,
            float_nodes=len(nodes.float_) if nodes else None,
            latency_ms=reported.timing.latency_ms if reported and reported.timing else None,
        ),
        requires=facts.requires,
        toolchain=facts.toolchain,
        files=files,
        recipe=reported.recipe if reported else None,
        notes=reported.notes if reported else None,
        options=options,
        nodes=nodes,
        tensors=tensors,
        inspection=reported.inspection if reported else None,
    )


def _read_model(path: Path) -> tuple[NodePrecision | None, dict[str, TensorMark] | None]:
    """Return nodes and weights; a model compiled ahead of time has neither."""
    try:
        model = onnx.load(path, load_external_data=False)
        nodes = node_precision(model)
        if nodes is None:
            return None, None
        external_files(path, model)
        return nodes, mark_tensors(model, path.parent)
    except (OSError, DecodeError, BuildError) as error:
        raise BundleError(
            f"'{path.name}' cannot be read as ONNX: {getattr(error, 'problem', error)}",
            found_in=str(path),
            remedy="fetch the bundle again, or build it again",
        ) from error
