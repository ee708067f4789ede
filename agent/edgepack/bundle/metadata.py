"""edgepack's own part of the manifest: the content of `additional_metadata.edgepack`.

Constraints on numbers and digests hold when a manifest is decoded; structs built in memory are
trusted.
"""

from typing import Annotated, Literal

import msgspec

from edgepack.bundle.adapters import AdapterFacts
from edgepack.bundle.generation import GENAI_CONFIG, GOLDEN_TEXTS, TOKENIZER, Generation
from edgepack.stages.loops import StageName
from edgepack.stages.wiring import Wiring
from edgepack.tasks.description import NOTHING_KNOWN, ModelDescription, TaskOutputs

FORMAT_VERSION = 1
FORMAT_MINOR = 0
"""Version of edgepack's own part of the manifest; see `edgepack.versions`."""

MAX_CHUNK_BYTES = 120 * 1024
"""A chunk with its header stays under a broker limit of 128 KiB."""

MAX_TENSOR_NAME = 200
TensorName = Annotated[str, msgspec.Meta(max_length=MAX_TENSOR_NAME)]

MAX_FEATURES = 256
"""Features of drift that a device adds up, at most."""

Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""Lower-case hex digest."""

Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\Z")]
"""Name of a model or variant; it also names a folder."""

MAX_WORDS = 200
Text = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z", max_length=MAX_WORDS)]
"""What commands print: one line, without control characters."""

Board = Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z0-9_][A-Za-z0-9._-]{0,99})?\Z")]
"""Kind of board; "" for every kind."""

FirmwareVersion = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._+:~-]{0,99}\Z")]
"""Version of a firmware, as the device's installer prints the version."""

MAX_FIRMWARE = 64
"""Firmware artefacts of a bundle, at most: one for each kind of board."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Release = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class SealedKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content key of a bundle, sealed for a recipient by HPKE.

    Attributes:
        recipient: `key_id` of the recipient's public key.
        sealed: HPKE's encapsulated key and ciphertext, base64.
    """

    recipient: Sha256
    sealed: Annotated[bytes, msgspec.Meta(max_length=1000)]


class Encryption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Encryption of a bundle's variants and golden samples.

    Attributes:
        method: The only method; see `encrypted_files` and `recipients`.
        keys: Sealed keys, in the order of the recipients' ids.
    """

    method: Literal["hpke, aes-256-gcm in segments of 64 KiB"] = (
        "hpke, aes-256-gcm in segments of 64 KiB"
    )
    keys: Annotated[tuple[SealedKey, ...], msgspec.Meta(min_length=1)]


class ChunkIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chunk index: the cuts of a file, and the digest of each piece.

    Attributes:
        sizes: int, bytes, a size per chunk, in file order; each at most 120 KiB; sum = file size.
        sha256: Concatenated SHA-256 digests (32 bytes a chunk), base64.
    """

    sizes: tuple[Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES)], ...]
    sha256: bytes


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """File of the bundle, with its chunks.

    Attributes:
        path: POSIX path relative to the bundle's root.
        size_bytes: Length of the file.
        sha256: Lower-case hex digest of the whole file.
        chunks: The cut; every file of a bundle except manifest and signature has a cut.
    """

    path: str
    size_bytes: Count
    sha256: Sha256
    chunks: ChunkIndex


class Requirements(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Requirements of a variant on a device. Empty means "any".

    Attributes:
        arch: Machine names as in `uname -m` (`x86_64`, `aarch64`); any name fits.
        cpu_features: Flags as in `/proc/cpuinfo`; all are required.
        soc: SoC names or model numbers; any name fits.
        runtime: Version range of ONNX Runtime, e.g. `>=1.23,<2`.
        drivers: Version range by driver or firmware name, as devices report drivers.
    """

    arch: tuple[str, ...] = ()
    cpu_features: tuple[str, ...] = ()
    soc: tuple[str, ...] = ()
    runtime: str = ""
    drivers: dict[str, str] = {}


class Toolchain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Toolchain that made the variant.

    Attributes:
        onnxruntime: Version of ONNX Runtime that measured (and compiled) the variant.
        tools: Other tools and their versions (onnx, edgepack, the QNN SDK …).
        compiled_for: SoC or architecture of a precompiled context, else empty.
    """

    onnxruntime: str
    tools: dict[str, str] = {}
    compiled_for: str = ""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accuracy of a variant on held-out samples, compared with the float model.

    Attributes:
        metric: Name of the metric the accuracy gate judged (`top1_agreement`, `cosine` …).
        value: The variant's value.
        float_value: The float model's value of the same metric (1.0 for agreement metrics).
        budget: The least value that the gate accepted.
        sample_count: Held-out samples measured.
        provider: Provider that the variant was measured on.
        details: Further metrics by name (`sqnr_db`, `max_abs_error` …).
        weak: Why the value is weak evidence of the model's task accuracy; "" if the value is
            sufficient.
    """

    metric: Text
    value: float
    float_value: float
    budget: float
    sample_count: Count
    provider: str
    details: dict[str, float] = {}
    weak: str = ""


class GoldenTolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tolerance of an output's values against the float model's, for any meaning of the output.

    Attributes:
        cosine_min: Least cosine similarity over the output of all golden samples, flattened.
        nrmse_max: Greatest root-mean-square error over the float output's root-mean-square.
    """

    cosine_min: float
    nrmse_max: float


class GoldenAgreement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Share of a task that a device must keep on the golden samples.

    Attributes:
        part: The outputs and their task.
        keep: Least share of the task, see `edgepack.tasks.contract.Agreement`.
    """

    part: TaskOutputs
    keep: Annotated[float, msgspec.Meta(ge=0, le=1)]


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Placement of nodes on the provider at build time, as ONNX Runtime reported.

    Attributes:
        provider: Provider the variant is for.
        taken: Nodes of the provider.
        total: Nodes of the graph after ONNX Runtime's own optimizations.
        left: Operator types that went elsewhere, with their number.
        verified: Whether the provider really ran on the build host; False means "not run here".
    """

    provider: str
    taken: Count
    total: Count
    left: dict[str, Count] = {}
    verified: bool

    @property
    def words(self) -> str:
        """Return the nodes that the provider took, e.g. `42/42`, or `not known`."""
        return f"{self.taken}/{self.total}" if self.verified else "not known"


class PlainRuntime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of a variant in plain ONNX Runtime, on a single provider: no agent sets anything.

    Attributes:
        releases: Tested releases of ONNX Runtime; releases that are never right are left out if
            others are.
        right: Whether all releases keep the variant's accuracy with `session_options`.
        session_options: Required session config entries; empty if ONNX Runtime's defaults suffice.
    """

    releases: tuple[Text, ...]
    right: bool
    session_options: dict[str, str] = {}


class FixedDecoder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Graphs with fixed shapes of a decoder: the model file takes many tokens, another file one.

    Attributes:
        step_file: Path of the graph for one token, inside `model/<variant>/`.
        window: Tokens that a token sees in layers with a window, itself included; 0 without such
            layers.
    """

    step_file: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    window: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0


class VariantFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """edgepack's facts of a variant (`additional_metadata.edgepack` of the variant).

    Attributes:
        profile: Name of the profile of the build.
        profile_sha256: Digest of the resolved profile.
        precision: `fp32`, `fp16`, `a8w8`, `a16w8`, `xint8` …, for people and reports.
        requires: Requirements on a device.
        toolchain: Toolchain that made the variant.
        files: Its files, under `model/<variant>/`.
        accuracy: Measured against the float model.
        agreements: Required shares of the outputs' tasks on a device.
        tolerances: By output name: how far values may be off there.
        placement: Nodes taken by the provider at build time.
        degraded: Whether a gate was overridden (`--allow-degraded`); agents reject such a variant
            unless their policy accepts degraded variants.
        plain_runtime: Result in ONNX Runtime by itself, on the CPU provider. Missing for a variant
            compiled ahead of time, or without time left.
        confidence: By the first output of a task: how much higher the variant's mean confidence is
            than the float model's.
        plain_provider: The same on the variant's provider. Not written where that is the CPU
            provider, or was not at hand.
        fixed_decoder: Graphs of a decoder with fixed shapes; None for other variants.
    """

    profile: Text
    profile_sha256: Sha256
    precision: Text
    requires: Requirements
    toolchain: Toolchain
    files: tuple[FileEntry, ...]
    accuracy: Accuracy
    agreements: tuple[GoldenAgreement, ...] = ()
    tolerances: dict[str, GoldenTolerance]
    placement: Placement
    degraded: bool = False
    plain_runtime: PlainRuntime | None = None
    plain_provider: PlainRuntime | None = None
    confidence: dict[TensorName, Annotated[float, msgspec.Meta(ge=-1, le=1)]] = {}
    fixed_decoder: FixedDecoder | None = None


class Feature(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Feature of inferences with its mean and spread over the build's samples.

    Attributes:
        tensor: The input, or the first output of the task's part.
        name: Name in the task's sketch; "" for all classes that are not features by themselves.
        kind: `class` (share or number of a class), `number`, or `spread` (of a number around
            `center`).
        words: The feature, for people: `share of 'cat'`.
        mean: Mean over the samples; of a spread, the spread.
        spread: Standard deviation of an inference, > 0.
        center: Mean of the number behind a spread.
        samples: Samples that have the feature.
        loss_by_confidence: Of a confidence: share of the task that is lost for each unit of fallen
            confidence, as samples that were spoilt on purpose showed; None if unknown.
    """

    tensor: TensorName
    name: Text
    kind: Literal["class", "number", "spread"] = "number"
    words: Text
    mean: float
    spread: float
    center: float = 0.0
    samples: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    loss_by_confidence: Annotated[float, msgspec.Meta(ge=0, le=1000)] | None = None

    @property
    def key(self) -> str:
        """Return a key that no other feature of the bundle has."""
        return f"{self.tensor}\n{self.kind}\n{self.name}"


class Firmware(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Firmware that one kind of devices must run for this release.

    Attributes:
        installer: Kind of artefact: `rauc`, `swupdate` …; `firmware.installer` of the device.
        compatible: Kind of board, `firmware.compatible` of the device; "" fits every board.
        version: Version that the running firmware must have.
        file: Path of the artefact in the bundle, below `firmware/`.
    """

    installer: Name
    compatible: Board = ""
    version: FirmwareVersion
    file: str

    @property
    def kind(self) -> str:
        """Installer and board, for people."""
        return f"{self.installer} {self.compatible}".rstrip()


class PipelineVariant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Variant of a pipeline: a variant for each of its stages, which are used together or not.

    Attributes:
        name: Its name.
        stages: By stage the name of the stage's variant.
        facts: Measured from the pipeline's inputs to its outputs; `files` are the stages'.
    """

    name: Name
    stages: dict[StageName, Name]
    facts: VariantFacts


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of a model that is made of several graphs: each graph is a component of the package.

    Attributes:
        wiring: The graphs and the host steps between the graphs.
        variants: In the order of preference.
    """

    wiring: Wiring
    variants: Annotated[tuple[PipelineVariant, ...], msgspec.Meta(min_length=1, max_length=64)]


class BundleFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """edgepack's facts of the whole bundle (`additional_metadata.edgepack` of the manifest).

    Attributes:
        format, minor: `FORMAT_VERSION` and `FORMAT_MINOR` of the writer.
        name: Model name, `[A-Za-z0-9._-]+`.
        version: Version of the model, for people (`1.2.0`).
        release: Release counter, 0 … 2**53; a device never accepts a lower counter, except for the
            slot that was committed before.
        created_at: RFC 3339 time in UTC, or "" when the build had none (a time would make
            two builds of the same inputs differ).
        source_sha256: Digest of the source model's bytes, external data included.
        tools: Versions of the build's tools.
        files: Files outside the variants: golden samples, hooks, firmware, reports, and the files
            for the generation of texts.
        firmware: Required firmware by kind of device; empty requires none.
        encryption: Encryption of the variants and golden samples; None for a plain bundle.
        description: Meaning of the model's outputs.
        reference: Features of the build's samples: of inputs, and of the float model's outputs by
            their tasks. Devices measure drift against these.
        generation: Facts of a model that generates texts; None for other models.
        adapter: Facts of an adapter for another bundle; None for a model that runs by itself, and
            not written then.
        pipeline: Facts of a model of several graphs; None for other models, and not written then.
    """

    format: int = FORMAT_VERSION
    minor: Count = FORMAT_MINOR
    name: Name
    version: Text
    release: Release
    created_at: Text = ""
    source_sha256: Sha256
    tools: dict[str, str] = {}
    files: tuple[FileEntry, ...]
    firmware: Annotated[tuple[Firmware, ...], msgspec.Meta(max_length=MAX_FIRMWARE)] = ()
    encryption: Encryption | None = None
    description: ModelDescription = NOTHING_KNOWN
    reference: Annotated[tuple[Feature, ...], msgspec.Meta(max_length=MAX_FEATURES)] = ()
    generation: Generation | None = None
    adapter: AdapterFacts | None = None
    pipeline: Pipeline | None = None

    @property
    def text_files(self) -> tuple[str, ...]:
        """Files at the bundle's root that the model's texts need; none for other models."""
        if self.generation is not None:
            return (GENAI_CONFIG, TOKENIZER)
        if self.description.text is not None:
            return (TOKENIZER, GOLDEN_TEXTS)
        described = self.description
        return () if described.sound is None and described.prompt is None else (TOKENIZER,)
