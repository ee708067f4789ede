"""The report of a build: attempts, measurements and decisions; `page` makes HTML of the report.

The report inside a bundle has no times, so that the same inputs give the same bytes; the report
next to the bundle has times, and the rehearsal's results. Fields are only ever added, each with a
default, so that a report of an older release is still read.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from edgepack.bundle.feedback import Evidence
from edgepack.bundle.manifest import (
    Accuracy,
    FileEntry,
    GoldenAgreement,
    GoldenTolerance,
    Placement,
    Requirements,
    Toolchain,
)
from edgepack.number_format import format_latency, format_metric
from edgepack.packager.runtime.inspection import Inspection
from edgepack.packager.runtime.unassigned_nodes import UnassignedNode
from edgepack.packager.search.attempts import Attempt, SensitiveNode
from edgepack.tasks.tokens.agreement import AtPositions
from edgepack.text import counted

REPORT_FORMAT = 1
_SAME_SPEED = 0.02

Positions = tuple[AtPositions, ...] | msgspec.UnsetType
"""What chains of tokens showed; unset of what is not a decoder."""


class ReportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the bundle."""

    path: str
    size_bytes: int
    sha256: str


def reported_files(entries: Iterable[FileEntry]) -> tuple[ReportedFile, ...]:
    """Return files of a bundle for the report, which tells no chunks."""
    return tuple(
        ReportedFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)
        for file in entries
    )


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Medians on the build host, or on the slowest board, milliseconds, measured in pairs.

    None if the model cannot run here or if its time is meaningless (simulators). Never part of the
    bundle's bytes.

    Attributes:
        latency_ms, float_latency_ms: Of the published model, and of the float model.
        speedup, speedup_low, speedup_high: Speedup of the best quantized model over the float
            model, and the 99 % interval; None without a quantized model.
        outcome: `faster`, `not faster` or `undecided`, against the profile's preference; "" without
            a race.
    """

    latency_ms: float | None
    float_latency_ms: float | None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    outcome: str = ""


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the agent's probe of a variant on this host.

    Attributes:
        ran: Whether the variant could run on this machine.
        because: Observation, or the reason for no run.
        latency_ms: Median of the probe's runs, milliseconds; None without a run, or for a
            simulator, whose time is meaningless.
        is_simulator: Whether a simulator ran the variant.
    """

    ran: bool
    because: str
    latency_ms: float | None = None
    is_simulator: bool = False


class BoardResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a variant on a board.

    Attributes:
        board: Host, as the user named it; "" in the report inside the bundle.
        arch, machine, cpu_count, os, python, runtime: Facts of the board: machine name as in
            `uname -m`, SoC or processor, number of processors, system, Python, ONNX Runtime.
        provider: Provider of the variant there, and `provider_version` its release if known.
        metric, accuracy, budget: Verdict on all held-out samples, computed on the board.
        passed: Whether the verdict is within the budget and the outputs are those of the CPU's
            stand-in, apart from rounding.
        placement: How many nodes the provider took there.
        latency_ms, float_latency_ms: Medians of races on the board, milliseconds, of one thread;
            None without a race. Only in the report next to the bundle, like all that follows.
        golden: Result of the agent's probe there; "" before the probe.
        probe_ms: Median of the probe's runs, milliseconds.
        losses: How often the connection was lost, after which the build continued.
    """

    board: str = ""
    arch: str
    machine: str
    cpu_count: int
    os: str
    python: str
    runtime: str
    provider: str
    provider_version: str = ""
    metric: str
    accuracy: float
    budget: float
    passed: bool
    placement: Placement
    latency_ms: float | None = None
    float_latency_ms: float | None = None
    golden: str = ""
    probe_ms: float | None = None
    losses: int = 0

    def without_times(self) -> "BoardResult":
        """Return the part that the report inside the bundle has."""
        return replace(
            self,
            board="",
            latency_ms=None,
            float_latency_ms=None,
            golden="",
            probe_ms=None,
            losses=0,
        )


class MeasuredVariant(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a variant, rejected or not.

    Attributes:
        precision, accuracy, confidence, placement: See `VariantFacts`.
        size_bytes: Size of its model.
        attempts: Attempts of the search.
        notes: Important decisions, a sentence each; times, which would make two builds of the same
            inputs differ, only in the report next to the bundle.
        sensitive_nodes: The nodes that cost the most, worst first; empty where none was ranked.
        inspection: A look inside the best lowered candidate; None where nothing was lowered.
        left_nodes: Nodes that the provider left to the CPU here, with its reasons.
        positions: Of a decoder, its agreement with the float model step by step.
        boards: Results of the boards that proved the variant (`--prove`), in their order.
    """

    precision: str
    size_bytes: int
    accuracy: Accuracy
    confidence: dict[str, float] = {}
    placement: Placement
    attempts: tuple[Attempt, ...]
    notes: tuple[str, ...]
    sensitive_nodes: tuple[SensitiveNode, ...] = ()
    inspection: Inspection | None = None
    left_nodes: tuple[UnassignedNode, ...] = ()
    positions: Positions = msgspec.UNSET
    boards: tuple[BoardResult, ...] = ()


class VariantReport(MeasuredVariant, frozen=True, kw_only=True):
    """Variant that passed its gates, or was published degraded.

    Attributes:
        name, provider, device: See `Variant`.
        profile, profile_sha256, degraded, requires, toolchain, agreements, tolerances: See
            `VariantFacts`.
        size_bytes: All its files together.
        recipe: The profile's passes in words.
        float_because: Why the float model replaces a quantized model; "" for a quantized model.
        timing, rehearsal: Only in the report next to the bundle.
    """

    name: str
    profile: str
    provider: str
    device: str
    degraded: bool
    requires: Requirements
    toolchain: Toolchain
    tolerances: dict[str, GoldenTolerance]
    agreements: tuple[GoldenAgreement, ...] = ()
    recipe: tuple[str, ...]
    files: tuple[ReportedFile, ...]
    profile_sha256: str = ""
    float_because: str = ""
    timing: Timing | None = None
    rehearsal: Rehearsed | None = None


class RefusedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile that no variant was made for, with the reason and the remedy.

    Attributes:
        best: Result of the best candidate; None if rejected before any measurement.
        is_unfinished: Whether the time of the build ended before its first candidate was finished.
    """

    profile: str
    problem: str
    remedy: str
    best: MeasuredVariant | None = None
    is_unfinished: bool = False


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """The source model."""

    file: str
    sha256: str
    size_bytes: int
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node_count: int


class SamplesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a build: numbers and sources.

    `captured_count` of the calibration samples were captured by devices. `preprocessing` says for
    each input how files became values, and which values. `series_steps` samples are a series, of a
    model with a state; 0 for single samples.
    """

    calibration_count: int
    search_count: int
    held_out_count: int
    golden_count: int
    golden_bytes: int
    is_random: bool
    captured_count: int = 0
    captured_sha256: str = ""
    preprocessing: tuple[str, ...] = ()
    series_steps: int = 0


class BudgetProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A tighter accuracy budget, supported by measurements of devices.

    Attributes:
        profile: Name of the profile.
        task: Task of the budget.
        keep: Proposed share of the task.
        because: Measurement, place, and present budget.
    """

    profile: str
    task: str
    keep: float
    because: str

    @property
    def line(self) -> str:
        """Return the line for `[gates.accuracy]` of a profile."""
        return f"{self.task} = {{ keep = {self.keep} }}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report.

    Attributes:
        evidence: Measurements of these variants in earlier releases by a fleet.
        proposals: Budgets that the evidence supports; nothing was changed.
        responses: Drift that devices reported, and the build's response; shown first.
        choice: The variant that this machine would run, and the reason; only in the report next to
            the bundle.
        warnings: Problems that may make every number worthless; shown first.
    """

    format: int = REPORT_FORMAT
    name: str
    version: str
    release: int
    created_at: str = ""
    model: ModelReport
    samples: SamplesReport
    variants: tuple[VariantReport, ...] = ()
    refused: tuple[RefusedProfile, ...]
    notes: tuple[str, ...]
    tools: dict[str, str]
    evidence: tuple[Evidence, ...] = ()
    proposals: tuple[BudgetProposal, ...] = ()
    responses: tuple[str, ...] = ()
    choice: str = ""
    warnings: tuple[str, ...] = ()


def latency_text(variant: VariantReport) -> str:
    """Return the variant's time for people: the measured median, else the rehearsal's."""
    timing, rehearsal = variant.timing, variant.rehearsal
    if timing and timing.latency_ms is not None:
        return format_latency(timing.latency_ms, timing.float_latency_ms)
    if rehearsal is None or not rehearsal.ran:
        return "not run here"
    if rehearsal.is_simulator or rehearsal.latency_ms is None:
        return "simulator"
    return format_latency(rehearsal.latency_ms, None)


def describe_board(result: BoardResult) -> str:
    """Return a board's result in words, with the hardware and the measurements."""
    times = ""
    if result.latency_ms is not None:
        times = f", {format_latency(result.latency_ms, result.float_latency_ms)} on 1 thread"
    probe = "" if result.probe_ms is None else f", probe {format_latency(result.probe_ms, None)}"
    lost = f"; connection lost {counted(result.losses, 'time')}" if result.losses else ""
    return (
        f"{result.arch}, {result.machine}, {counted(result.cpu_count, 'CPU')}, ONNX Runtime "
        f"{result.runtime}: {result.metric} {format_metric(result.accuracy)} of "
        f"{format_metric(result.budget)}, {result.placement.words} nodes{times}{probe}{lost}"
    )


def speed_text(variant: VariantReport) -> str:
    """Return the speed against the float model in words; "" if not measured."""
    timing = variant.timing
    if timing is None or not timing.latency_ms or not timing.float_latency_ms:
        return ""
    ratio = timing.float_latency_ms / timing.latency_ms
    if abs(ratio - 1) < _SAME_SPEED:
        return "as fast as float"
    return f"{ratio:.2f}× the float model's speed"


def encode_report(report: Report) -> bytes:
    """Return the report as JSON, keys in a fixed order."""
    content = msgspec.json.encode(report, order="deterministic")
    return msgspec.json.format(content, indent=2) + b"\n"
