"""Result of a comparison of two bundles or reports."""

from typing import Literal

import msgspec

from edgepack.bundle.manifest import Accuracy, Placement
from edgepack.packager.comparison.inside import InsideComparison
from edgepack.packager.comparison.tensors import TensorComparison

Presence = Literal["both", "only a", "only b"]
FileState = Literal["equal", "changed", "added", "removed"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference of a setting or fact, as text; "" for a side without a value."""

    what: str
    a: str
    b: str


class VariantSide(msgspec.Struct, frozen=True, kw_only=True):
    """Variant of a side; see `ComparedVariant`.

    Attributes:
        quantized_nodes, float_nodes: Numbers of nodes; None if unknown.
    """

    precision: str
    provider: str
    device: str
    degraded: bool
    size_bytes: int
    accuracy: Accuracy
    placement: Placement
    quantized_nodes: int | None
    float_nodes: int | None
    latency_ms: float | None


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Transfer for a device with A that fetches B, without manifest and signature.

    Attributes:
        wanted_bytes: Length of the needed files of B.
        fetch_bytes: Length of the chunks missing on the device, each counted once.
        wanted_chunks, fetch_chunks: The same in chunks.
        share: `fetch_bytes` / `wanted_bytes`; 0 where nothing is wanted.
        with_delta_bytes: Bytes to fetch if B carries a delta from A: the delta, and the chunks that
            do not follow from the delta; None without a delta.
    """

    wanted_bytes: int
    fetch_bytes: int
    wanted_chunks: int
    fetch_chunks: int
    share: float
    with_delta_bytes: int | None = None


class VariantComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a variant, by name.

    Attributes:
        name: Its name.
        presence: Sides that have the variant.
        a, b: The sides.
        has_equal_files: Whether all files have the same bytes; None if a side lacks the variant.
        differences: Settings and facts that differ.
        quantized_only_in_a, quantized_only_in_b: Nodes of both sides that are quantized only in A,
            or only in B; None if nodes are unknown.
        nodes_only_in_a, nodes_only_in_b: Nodes that the other side does not have; None as above.
        notes_only_in_a, notes_only_in_b: Decisions of a single build.
        inside: Errors of layers and ranges of scales, where both sides tell.
        tensors: Weights that differ; None where a side lacks the variant, for reports, and for
            models that are compiled ahead of time or encrypted.
        transfer: Transfer for a device that held this variant of A (golden samples and hooks, if A
            had none); None for a report, or without this variant in B.
    """

    name: str
    presence: Presence
    a: VariantSide | None
    b: VariantSide | None
    has_equal_files: bool | None = None
    differences: tuple[Difference, ...] = ()
    quantized_only_in_a: tuple[str, ...] | None = None
    quantized_only_in_b: tuple[str, ...] | None = None
    nodes_only_in_a: tuple[str, ...] | None = None
    nodes_only_in_b: tuple[str, ...] | None = None
    notes_only_in_a: tuple[str, ...] = ()
    notes_only_in_b: tuple[str, ...] = ()
    inside: InsideComparison | None = None
    tensors: TensorComparison | None = None
    transfer: Transfer | None = None


class FileComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a file, by path; the length is None for a side without the file."""

    path: str
    state: FileState
    a_bytes: int | None
    b_bytes: int | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison.

    Attributes:
        a, b: Given paths.
        differences: Facts of the whole that differ: name, version, source model, tools.
        variants: A's in their order, then the variants of B alone.
        files: Every file that both sides could know of, by path.
        transfer: Transfer for a device that held, and needs, every variant.
        head_bytes: Manifest and signature of B, which every device fetches besides; None for
            reports.
        equal_for_devices: Whether all models, golden samples, hooks and run settings of devices are
            equal. None if a report leaves the answer open.
    """

    a: str
    b: str
    differences: tuple[Difference, ...]
    variants: tuple[VariantComparison, ...]
    files: tuple[FileComparison, ...]
    transfer: Transfer | None
    head_bytes: int | None
    equal_for_devices: bool | None
