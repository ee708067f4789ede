"""Variants that passed their gates, before they lie in a bundle."""

from pathlib import Path

import msgspec

from edgepack.bundle.manifest import (
    Accuracy,
    GoldenTolerance,
    Placement,
    PlainRuntime,
    Requirements,
    Toolchain,
)
from edgepack.packager.metrics.inspection import Inspection
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.reports.report import Positions, RefusedProfile
from edgepack.packager.runtime.unassigned_nodes import UnassignedNode
from edgepack.packager.search.attempts import Attempt, SensitiveNode


class PreparedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that passed its gates, on disk but not yet in a bundle.

    Attributes:
        name: Profile name, which names the variant.
        folder: Folder that holds its files (model, external data, context binaries).
        model_file: The model inside `folder`.
        profile, profile_sha256, precision: See `VariantFacts`.
        provider, device, compatibility_string, session_options, provider_options: See `Variant`.
        requires, toolchain, accuracy, placement, tolerances, degraded: See `VariantFacts`.
        plain_runtime: Likewise; None where it is not known.
        latency_ms: Median on the build host, milliseconds; None where it cannot run here or
            where its time says nothing (simulators). Never part of the bundle's bytes.
        float_latency_ms: The float model's, measured interleaved with it.
        attempts: What was tried.
        sensitive_nodes: The nodes that cost the most, worst first; empty where none was ranked.
        inspection: A look inside the best lowered candidate; None where nothing was lowered.
        left_nodes: Nodes that the provider left to the CPU here, with its reasons.
        notes: Decisions a person should know of, one sentence each; no times, which would make
            two builds of the same inputs differ.
        timed_notes: The same with times; never part of the bundle's bytes.
        float_because: Why it is the float model in place of a quantized one; "" where it is not.
        positions: Of a decoder, how it agrees with the float model step by step.
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
    plain_runtime: PlainRuntime | None = None
    latency_ms: float | None
    float_latency_ms: float | None
    attempts: tuple[Attempt, ...] = ()
    sensitive_nodes: tuple[SensitiveNode, ...] = ()
    inspection: Inspection | None = None
    left_nodes: tuple[UnassignedNode, ...] = ()
    notes: tuple[str, ...] = ()
    timed_notes: tuple[str, ...] = ()
    float_because: str = ""
    positions: Positions = msgspec.UNSET


class PreparedVariants(msgspec.Struct, frozen=True, kw_only=True):
    """What was prepared.

    Attributes:
        variants: In the order of preference.
        profiles: Each profile that was asked for, with the settings that its variant was made with.
        refused: Profiles that no variant was made for; only where others are built all the same.
    """

    variants: tuple[PreparedVariant, ...]
    profiles: tuple[Profile, ...]
    refused: tuple[RefusedProfile, ...] = ()
