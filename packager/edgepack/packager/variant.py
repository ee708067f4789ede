"""What a profile's recipe yields for one model: the prepared variant and how it came about.

`Attempt`, `Culprit` and `RefusedVariant` stand in reports too: fields are only ever added to them,
each with a default.
"""

from pathlib import Path

import msgspec

from edgepack.bundle.manifest import Accuracy, GoldenTolerance, Placement, Requirements, Toolchain
from edgepack.errors import BuildError
from edgepack.packager.judging.inspection import Inspection
from edgepack.packager.judging.untaken import UntakenNode


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate that was tried on the way, for the report.

    Attributes:
        what: The settings in words, e.g. "a8w8 per-channel, MinMax, 4 float nodes".
        accuracy: Value of the gate's metric on the search samples.
        size_bytes: Size of the candidate.
        because: Why it was tried, or why it was left.
        float_nodes: How many nodes stayed float that could have been lowered; None where nodes
            are not counted.
        raised_nodes: How many nodes were given more bits so as not to stay float; None where a node
            that costs too much stays float.
        is_best: Whether it is the one that went on to the gates.
        latency_ms: Median on the build host, milliseconds; None where it was not measured. Never
            part of the bundle's bytes.
    """

    what: str
    accuracy: float
    size_bytes: int
    because: str
    float_nodes: int | None = None
    raised_nodes: int | None = None
    is_best: bool = False
    latency_ms: float | None = None


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """A node that costs accuracy.

    Attributes:
        name: The node.
        noise: What lowering it alone does to the outputs: root-mean-square error over
            root-mean-square, mean over the outputs.
    """

    name: str
    noise: float


class PreparedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that passed its gates, on disk but not yet in a bundle.

    Attributes:
        name: Profile name, which names the variant.
        folder: Folder that holds its files (model, external data, context binaries).
        model_file: The model inside `folder`.
        profile, profile_sha256, precision: See `VariantFacts`.
        provider, device, compatibility_string, session_options, provider_options: See `Variant`.
        requires, toolchain, accuracy, placement, tolerances, degraded: See `VariantFacts`.
        latency_ms: Median on the build host, milliseconds; None where it cannot run here or
            where its time says nothing (simulators). Never part of the bundle's bytes.
        float_latency_ms: The float model's, measured interleaved with it.
        attempts: What was tried.
        culprits: The nodes that cost the most, worst first; empty where none had to be ranked.
        inspection: A look inside the best lowered candidate; None where nothing was lowered.
        left_nodes: Nodes that the provider left to the CPU here, with its reasons.
        notes: Decisions a person should know of, one sentence each; no times, which would make
            two builds of the same inputs differ.
        timed_notes: The same with times; never part of the bundle's bytes.
    """

    name: str
    folder: Path
    model_file: str
    profile: str
    profile_sha256: str
    precision: str
    provider: str
    device: str
    compatibility_string: str
    session_options: dict[str, str]
    provider_options: dict[str, str]
    requires: Requirements
    toolchain: Toolchain
    accuracy: Accuracy
    placement: Placement
    tolerances: dict[str, GoldenTolerance]
    degraded: bool
    latency_ms: float | None
    float_latency_ms: float | None
    attempts: tuple[Attempt, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    inspection: Inspection | None = None
    left_nodes: tuple[UntakenNode, ...] = ()
    notes: tuple[str, ...] = ()
    timed_notes: tuple[str, ...] = ()


class RefusedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a variant that its gates refused, for the report.

    Attributes:
        precision, accuracy, placement, attempts, culprits, inspection, left_nodes, notes: See
            `PreparedVariant`.
        size_bytes: Size of its model.
    """

    precision: str
    size_bytes: int
    accuracy: Accuracy
    placement: Placement
    attempts: tuple[Attempt, ...]
    culprits: tuple[Culprit, ...]
    inspection: Inspection | None
    left_nodes: tuple[UntakenNode, ...]
    notes: tuple[str, ...]


class VariantRefusedError(BuildError):
    """A gate refused a variant.

    Args:
        problem, found_in, remedy: See `EdgepackError`.
        variant: What is known of it.
    """

    def __init__(
        self, problem: str, *, found_in: str | None, remedy: str | None, variant: RefusedVariant
    ) -> None:
        super().__init__(problem, found_in=found_in, remedy=remedy)
        self.variant = variant
