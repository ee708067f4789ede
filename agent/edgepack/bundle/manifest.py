"""The manifest of a bundle: typed values, and their file.

`manifest.json` is an ONNX Runtime model package manifest (schema 1.0, layout "portable"): a single
component, `model`, with variants that name their execution provider, device and model file. A model
of several graphs has a component for each graph, and its variants name a variant of each component.
edgepack's additions are in `additional_metadata.edgepack`, which ONNX Runtime ignores. The
signature covers the file.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from edgepack.bundle.features import check_features
from edgepack.bundle.generation import Generation, check_assets
from edgepack.bundle.golden_pictures import GOLDEN_FILE, golden_pictures, is_golden
from edgepack.bundle.metadata import (
    FORMAT_MINOR,
    FORMAT_VERSION,
    Accuracy,
    BundleFacts,
    ChunkIndex,
    Encryption,
    Feature,
    FileEntry,
    Firmware,
    FixedDecoder,
    GoldenAgreement,
    GoldenTolerance,
    Name,
    Pipeline,
    PipelineVariant,
    Placement,
    PlainRuntime,
    Requirements,
    SealedKey,
    Toolchain,
    VariantFacts,
)
from edgepack.bundle.paths import check_path
from edgepack.bundle.shared_files import FIRMWARE_FOLDER, HOOKS_FOLDER
from edgepack.bundle.strict_json import convert_json, parse_json, without_unknown
from edgepack.errors import BundleError
from edgepack.stages.wiring import Wiring, WiringError, check_pictures, find_lists

__all__ = [
    "COMPONENT",
    "FIRMWARE_FOLDER",
    "FORMAT_MINOR",
    "FORMAT_VERSION",
    "GOLDEN_FILE",
    "HOOKS_FOLDER",
    "MANIFEST_FILE",
    "SIGNATURE_FILE",
    "Accuracy",
    "BundleFacts",
    "ChunkIndex",
    "Encryption",
    "Feature",
    "FileEntry",
    "Firmware",
    "FixedDecoder",
    "Generation",
    "GoldenAgreement",
    "GoldenTolerance",
    "Manifest",
    "Pipeline",
    "PipelineVariant",
    "Placement",
    "PlainRuntime",
    "Requirements",
    "SealedKey",
    "Toolchain",
    "Variant",
    "VariantFacts",
    "decode_manifest",
    "encode_manifest",
    "is_golden",
]

MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "model.sig"
COMPONENT = "model"

MAX_MANIFEST_BYTES = 16 * 1024 * 1024
"""About 300,000 chunks, 20 GB of model."""

_SCHEMA_VERSION = "1.0"
_LAYOUT = "portable"
_SHA256_BYTES = 32
_CPU_PROVIDER = "CPUExecutionProvider"
_METADATA = "additional_metadata"


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Variant: data for ONNX Runtime to run the model, and edgepack's facts.

    Attributes:
        name: Its name, the key in the manifest.
        provider: Execution provider, e.g. `QNNExecutionProvider`.
        device: `cpu`, `gpu` or `npu`.
        compatibility_string: The provider's own token for precompiled contexts, or "".
        model_file: Path of the model inside `model/<name>/`.
        session_options: ONNX Runtime session config entries.
        provider_options: Options of the execution provider.
        facts: edgepack's facts.
        component: Component of the package: the stage, for a graph of a pipeline.
        parts: Of a pipeline's variant, the variants of its stages, in their order; else empty.
            Provider, device and options are then those of the first stage that is not on the CPU.
        wiring: Of a pipeline's variant, what joins its parts.
    """

    name: str
    provider: str
    device: str
    compatibility_string: str = ""
    model_file: str = "model.onnx"
    session_options: dict[str, str] = {}
    provider_options: dict[str, str] = {}
    facts: VariantFacts
    component: str = COMPONENT
    parts: tuple["Variant", ...] = ()
    wiring: Wiring | None = None

    @property
    def folder(self) -> str:
        """POSIX path of the variant's folder inside the bundle; of a pipeline's, of all parts."""
        if self.parts:
            return COMPONENT
        own = self.name if self.component == COMPONENT else f"{self.component}.{self.name}"
        return f"{COMPONENT}/{own}"

    @property
    def graphs(self) -> tuple["Variant", ...]:
        """The variants that each are a graph: the parts of a pipeline, or the variant itself."""
        return self.parts or (self,)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole manifest: the bundle's facts and its variants in the order of preference."""

    facts: BundleFacts
    variants: tuple[Variant, ...]

    def variant(self, name: str) -> Variant:
        """Return the variant of that name; raises `KeyError` when there is none."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)

    def memory_bytes(self, name: str) -> int:
        """Return the memory of a variant: its files, and the cache of a full context of texts.

        ONNX Runtime holds weights in about their size on the disk; further memory depends on the
        provider.
        """
        generation = self.facts.generation
        cache = generation.cache_bytes if generation is not None else 0
        return sum(entry.size_bytes for entry in self.variant(name).facts.files) + cache

    def is_encrypted(self, path: str) -> bool:
        """Return True for variants, golden samples and pictures of an encrypted bundle."""
        if self.facts.encryption is None:
            return False
        return path.startswith(f"{COMPONENT}/") or is_golden(path)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file of the bundle but the manifest and the signature."""
        return self.facts.files + tuple(
            entry for graph in self.graphs for entry in graph.facts.files
        )

    @property
    def graphs(self) -> tuple[Variant, ...]:
        """Every graph: its files are in a slot all together, or not at all."""
        every = (graph for variant in self.variants for graph in variant.graphs)
        return tuple({graph.folder: graph for graph in every}.values())


class _OrtInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model_file: str
    session_options: dict[str, str] = {}
    provider_options: dict[str, str] = {}


class _Executors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ort: _OrtInfo


class _VariantMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    edgepack: VariantFacts


class _PackageVariant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    variant_directory: str
    ep: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_]{1,100}\Z")]
    executor_info: _Executors
    additional_metadata: _VariantMetadata
    device: Literal["cpu", "gpu", "npu"] | None = None
    compatibility_string: str = ""


class _Component(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    variants: dict[Name, Any]


class _Components(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: _Component


class _Stages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Components of a pipeline, by stage."""

    components: dict[Name, _Component]


class _BundleMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    edgepack: BundleFacts


class _Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: str
    package_name: str
    package_version: str
    layout: str
    components: _Components
    additional_metadata: _BundleMetadata


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `manifest.json`; the same manifest always gives the same bytes.

    Keys are sorted, except that variants stand in order of preference: ONNX Runtime breaks
    ties by that order, and so does edgepack.
    """
    facts = manifest.facts
    own = msgspec.to_builtins(facts, order="sorted")
    for key in ("adapter", "pipeline"):
        if own[key] is None:
            del own[key]
    components: dict[str, dict[str, Any]] = {}
    for graph in manifest.graphs:
        components.setdefault(graph.component, {})[graph.name] = _package(graph)
    package = {
        "additional_metadata": {"edgepack": own},
        "components": {name: {"variants": variants} for name, variants in components.items()},
        "layout": _LAYOUT,
        "package_name": facts.name,
        "package_version": facts.version,
        "schema_version": _SCHEMA_VERSION,
    }
    return msgspec.json.encode(package) + b"\n"


def decode_manifest(content: bytes) -> Manifest:
    """Read `manifest.json` and check every used value.

    Keys that edgepack does not know are passed over where its part says a newer minor version.

    Raises:
        BundleError: The file is too long, is not JSON, is of another format, or a key is missing,
            unknown, twice there, or has a value that does not fit; `found_in` names the key.
    """
    document = parse_json(content, limit_bytes=MAX_MANIFEST_BYTES, found_in=MANIFEST_FILE)
    _check_format(document)
    is_newer = _own_value(document, "minor", 0) > FORMAT_MINOR
    if is_newer:
        document = _without_newer(document, _BundleMetadata)
    stages = _take_stages(document)
    if stages:
        document = document | {"components": {COMPONENT: {"variants": {}}}}
    package = convert_json(document, _Package, found_in=MANIFEST_FILE)
    facts = package.additional_metadata.edgepack
    for key, found, expected in (
        ("schema_version", package.schema_version, _SCHEMA_VERSION),
        ("layout", package.layout, _LAYOUT),
        ("package_name", package.package_name, facts.name),
        ("package_version", package.package_version, facts.version),
    ):
        if found != expected:
            raise BundleError(
                f"{MANIFEST_FILE} has {found!r} as {key}, expected {expected!r}",
                found_in=f"{MANIFEST_FILE}, {key}",
            )
    components = stages or {COMPONENT: package.components.model}
    graphs = {
        component: tuple(
            _variant(
                name, _without_newer(value, _VariantMetadata) if is_newer else value, component
            )
            for name, value in one.variants.items()
        )
        for component, one in components.items()
    }
    if not all(graphs.values()):
        empty = next(name for name, variants in graphs.items() if not variants)
        raise BundleError(
            "the bundle has no variant", found_in=f"{MANIFEST_FILE}, components.{empty}.variants"
        )
    if facts.pipeline is None:
        variants = graphs[COMPONENT]
    else:
        variants = join_stages(facts.pipeline, graphs)
    manifest = Manifest(facts=facts, variants=variants)
    _check_files(manifest)
    golden_pictures(facts.files, found_in=f"{MANIFEST_FILE}, files")
    check_features(facts.reference, found_in=f"{MANIFEST_FILE}, reference")
    return manifest


def _take_stages(document: Any) -> dict[str, _Component]:
    """Return the components of a document that describes a pipeline; none of another document."""
    facts: Any = document
    for step in (_METADATA, "edgepack", "pipeline"):
        facts = facts.get(step) if isinstance(facts, dict) else None
    if facts is None:
        return {}
    return convert_json(
        {"components": document.get("components")}, _Stages, found_in=MANIFEST_FILE
    ).components


def join_stages(
    pipeline: Pipeline, graphs: Mapping[str, tuple[Variant, ...]]
) -> tuple[Variant, ...]:
    """Return the variants of a pipeline, each with a variant of every stage.

    Args:
        pipeline: The wiring, and the variants.
        graphs: Variants of each stage.

    Raises:
        BundleError: The wiring cannot run, a stage or a variant is missing or unused, or a name is
            there twice.
    """
    found_in = f"{MANIFEST_FILE}, {_METADATA}.edgepack.pipeline"
    try:
        find_lists(pipeline.wiring)
        check_pictures(pipeline.wiring)
    except WiringError as error:
        raise BundleError(str(error), found_in=f"{found_in}.wiring") from error
    names = [stage.name for stage in pipeline.wiring.stages]
    named = [variant.name for variant in pipeline.variants]
    used = {pair for variant in pipeline.variants for pair in variant.stages.items()}
    here = {(stage, graph.name) for stage, variants in graphs.items() for graph in variants}
    problem = ""
    if len(set(named)) != len(named):
        problem = f"two variants of the pipeline have a name: {', '.join(sorted(named))}"
    elif any(set(variant.stages) != set(names) for variant in pipeline.variants):
        problem = f"a variant does not name a variant for each of the {len(names)} stages"
    elif used != here:
        stage, name = min(used ^ here)
        what = "is used and not a component's" if (stage, name) in used else "is not used"
        problem = f"variant '{name}' of stage '{stage}' {what}"
    if problem:
        raise BundleError(problem, found_in=f"{found_in}.variants")
    by_name = {(stage, graph.name): graph for stage, own in graphs.items() for graph in own}
    return tuple(
        _join(variant, tuple(by_name[name, variant.stages[name]] for name in names), pipeline)
        for variant in pipeline.variants
    )


def _join(variant: PipelineVariant, parts: tuple[Variant, ...], pipeline: Pipeline) -> Variant:
    main = next((part for part in parts if part.provider != _CPU_PROVIDER), parts[0])
    first = f"{parts[0].folder}/{parts[0].model_file}".removeprefix(f"{COMPONENT}/")
    files = tuple(entry for part in parts for entry in part.facts.files)
    return Variant(
        name=variant.name,
        provider=main.provider,
        device=main.device,
        compatibility_string=main.compatibility_string,
        model_file=first,
        session_options=main.session_options,
        provider_options=main.provider_options,
        facts=replace(variant.facts, files=files),
        parts=parts,
        wiring=pipeline.wiring,
    )


def _package(variant: Variant) -> dict[str, Any]:
    ort: dict[str, Any] = {"model_file": variant.model_file}
    if variant.provider_options:
        ort["provider_options"] = dict(sorted(variant.provider_options.items()))
    if variant.session_options:
        ort["session_options"] = dict(sorted(variant.session_options.items()))
    package: dict[str, Any] = {
        "additional_metadata": {"edgepack": msgspec.to_builtins(variant.facts, order="sorted")}
    }
    if variant.compatibility_string:
        package["compatibility_string"] = variant.compatibility_string
    # ONNX Runtime 1.31.1 matches no device for its own CPU provider: with "cpu" here it finds
    # "no suitable model variant". There the provider says it all.
    if variant.provider != _CPU_PROVIDER:
        package["device"] = variant.device
    return package | {
        "ep": variant.provider,
        "executor_info": {"ort": ort},
        "variant_directory": variant.folder,
    }


def _check_format(document: Any) -> None:
    """State "another version" before anything else is found wrong with a newer bundle."""
    found = _own_value(document, "format", FORMAT_VERSION)
    if found != FORMAT_VERSION:
        raise BundleError(
            f"the bundle has format version {found}, this edgepack reads {FORMAT_VERSION}",
            found_in=f"{MANIFEST_FILE}, additional_metadata.edgepack.format",
            remedy="update edgepack",
        )


def _own_value(document: Any, key: str, default: int) -> int:
    """Return a number in edgepack's part of a document that nothing is known of yet."""
    found = document
    for step in (_METADATA, "edgepack", key):
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, int) else default


def _without_newer(document: Any, kind: type) -> Any:
    """Return a document without the keys that a newer edgepack added to its own part."""
    if not isinstance(document, dict) or _METADATA not in document:
        return document
    return document | {_METADATA: without_unknown(document[_METADATA], kind)}


def _variant(name: str, value: Any, component: str = COMPONENT) -> Variant:
    found_in = f"{MANIFEST_FILE}, components.{component}.variants.{name}"
    package = convert_json(value, _PackageVariant, found_in=found_in)
    ort = package.executor_info.ort
    device = "cpu" if package.ep == _CPU_PROVIDER else package.device
    if device is None or package.device not in (None, device):
        raise BundleError(
            f"variant '{name}' of {package.ep} has the device {package.device!r}",
            found_in=f"{found_in}.device",
        )
    variant = Variant(
        name=name,
        provider=package.ep,
        device=device,
        compatibility_string=package.compatibility_string,
        model_file=ort.model_file,
        session_options=ort.session_options,
        provider_options=ort.provider_options,
        facts=package.additional_metadata.edgepack,
        component=component,
    )
    if package.variant_directory != variant.folder:
        raise BundleError(
            f"variant '{name}' lies in {package.variant_directory!a}, expected '{variant.folder}'",
            found_in=f"{found_in}.variant_directory",
        )
    check_path(ort.model_file, found_in=f"{found_in}.executor_info.ort.model_file")
    fixed, names = variant.facts.fixed_decoder, {entry.path for entry in variant.facts.files}
    for file in (ort.model_file, *([fixed.step_file] if fixed else ())):
        if f"{variant.folder}/{file}" not in names:
            raise BundleError(
                f"the model file {file!a} of variant '{name}' is not among its files",
                found_in=f"{found_in}.executor_info.ort.model_file",
            )
    return variant


def _check_files(manifest: Manifest) -> None:
    seen: set[str] = {MANIFEST_FILE, SIGNATURE_FILE}
    for variant in manifest.graphs:
        found_in = (
            f"{MANIFEST_FILE}, components.{variant.component}.variants.{variant.name}"
            ".additional_metadata"
        )
        for entry in variant.facts.files:
            _check_entry(entry, seen, found_in=f"{found_in}.edgepack.files")
            if not entry.path.startswith(f"{variant.folder}/"):
                raise BundleError(
                    f"'{entry.path}' does not lie in '{variant.folder}/'",
                    found_in=f"{found_in}.edgepack.files",
                )
    found_in = f"{MANIFEST_FILE}, additional_metadata.edgepack.files"
    for entry in manifest.facts.files:
        _check_entry(entry, seen, found_in=found_in)
        if entry.path.startswith(f"{COMPONENT}/"):
            raise BundleError(
                f"'{entry.path}' lies in '{COMPONENT}/' but belongs to no variant",
                found_in=found_in,
            )
    _check_firmware(manifest.facts)
    sizes = ((entry.path, entry.size_bytes) for entry in manifest.facts.files)
    check_assets(manifest.facts.text_files, sizes, found_in=found_in)
    for path in seen:
        folders = path.split("/")[:-1]
        for depth in range(1, len(folders) + 1):
            if (folder := "/".join(folders[:depth])) in seen:
                raise BundleError(
                    f"'{folder}' is a file and the folder of '{path}' at once",
                    found_in=MANIFEST_FILE,
                )


def _check_firmware(facts: BundleFacts) -> None:
    found_in = f"{MANIFEST_FILE}, additional_metadata.edgepack.firmware"
    paths, kinds = {entry.path for entry in facts.files}, set()
    for one in facts.firmware:
        if one.file not in paths or not one.file.startswith(f"{FIRMWARE_FOLDER}/"):
            raise BundleError(
                f"the firmware {one.file!a:.200} is not among the bundle's files below "
                f"'{FIRMWARE_FOLDER}/'",
                found_in=found_in,
            )
        if (one.installer, one.compatible) in kinds:
            raise BundleError(f"two firmware artefacts are for {one.kind!r}", found_in=found_in)
        kinds.add((one.installer, one.compatible))


def _check_entry(entry: FileEntry, seen: set[str], *, found_in: str) -> None:
    check_path(entry.path, found_in=found_in)
    if entry.path in seen:
        raise BundleError(f"'{entry.path}' is listed twice", found_in=found_in)
    seen.add(entry.path)
    chunks = entry.chunks
    if sum(chunks.sizes) != entry.size_bytes:
        raise BundleError(
            f"the chunks of '{entry.path}' have {sum(chunks.sizes)} bytes together, "
            f"the file has {entry.size_bytes}",
            found_in=found_in,
        )
    if len(chunks.sha256) != _SHA256_BYTES * len(chunks.sizes):
        raise BundleError(
            f"'{entry.path}' has {len(chunks.sizes)} chunks but "
            f"{len(chunks.sha256) / _SHA256_BYTES:g} digests",
            found_in=found_in,
        )
