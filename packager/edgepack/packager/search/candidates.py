"""Candidates of the search, and its result."""

from pathlib import Path

import msgspec

from edgepack.packager.gates.checks import Tried
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.quantization.contract import (
    CandidateSpec,
    NodeSensitivity,
    Origin,
    QuantizationMethod,
)
from edgepack.packager.quantization.savings import describe_share
from edgepack.packager.search.attempts import Attempt
from edgepack.text import counted

_NODES_SHOWN = 5


class CandidateMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """Measurement of a candidate, stored in journals.

    Attributes:
        verdict: Verdict of the accuracy gate on the search samples.
        size_bytes: Its size.
        lowered: Number of nodes that are lowered.
    """

    verdict: Verdict
    size_bytes: int
    lowered: int


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate: a lowered model.

    Attributes:
        label: Difference from other profiles' candidates, in words; "" for a single unchanged
            profile.
        verb: Effect on nodes, see `CandidateMaker`.
        spec: Specification of the candidate.
        high_precision_words: Name of a node of high precision, see `HighPrecision`.
        path: The model; only the best candidate's file is certain to exist.
        measured: Measurement.
        origin: Origin of the candidate.
        notes: Notes on the making for a person.
        sensitivities: Cost and savings of each node that can be lowered; empty if unknown.
    """

    label: str
    verb: str = "quantized"
    spec: CandidateSpec
    high_precision_words: str
    path: Path
    measured: CandidateMeasurement
    origin: Origin = msgspec.field(default_factory=Origin)
    notes: tuple[str, ...] = ()
    sensitivities: tuple[NodeSensitivity, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Verdict of the accuracy gate on the search samples."""
        return self.measured.verdict

    @property
    def key(self) -> str:
        """Key of the candidate, unique for its label."""
        return self.spec.key

    def is_same_as(self, other: "Candidate") -> bool:
        """Return True if both are made in the same way."""
        return (self.label, self.key) == (other.label, other.key)

    @property
    def method(self) -> QuantizationMethod:
        """Method of the candidate."""
        return self.spec.method

    @property
    def float_nodes(self) -> tuple[str, ...]:
        """Nodes that stayed float, in the order of promotion."""
        return self.spec.float_nodes

    @property
    def high_precision_nodes(self) -> tuple[str, ...]:
        """Nodes with more bits than the others that are not float, in the same order."""
        float_nodes = set(self.float_nodes)
        return tuple(name for name in self.spec.high_precision_nodes if name not in float_nodes)

    @property
    def total(self) -> int:
        """Number of nodes that can be lowered."""
        return self.measured.lowered + len(self.float_nodes)

    @property
    def words(self) -> str:
        """The settings, for reports."""
        total, method = self.total, self.method.words
        label = f"{self.label}: " if self.label else ""
        kinds = (
            (self.float_nodes, "float"),
            (self.high_precision_nodes, self.high_precision_words),
        )
        promoted = [(nodes, kind) for nodes, kind in kinds if nodes]
        if not promoted:
            return f"{label}{method}, {counted(total, 'node')} {self.verb}"
        (nodes, kind), *others = promoted
        share = describe_share(self.sensitivities, nodes)
        words = [f"{len(nodes)} of {total} nodes {kind}" + (f" ({share})" if share else "")]
        words += [f"{len(nodes)} {kind}" for nodes, kind in others]
        return f"{label}{method}, {', '.join(words)}"


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search.

    Attributes:
        best: The best candidate, within the budget or not.
        attempts: Everything that was tried, in order.
        candidates: The same; models of the small candidates still exist.
        sensitive_nodes: The nodes that cost the most, worst first; empty when none was ranked.
        notes: Notes on the search itself for a person.
        is_cut_short: Whether the time limit ended the search.
        is_hopeless: Whether a far too slow first candidate ended the search.
    """

    best: Candidate
    attempts: tuple[Attempt, ...]
    sensitive_nodes: tuple[NodeSensitivity, ...]
    candidates: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()
    is_cut_short: bool = False
    is_hopeless: bool = False


def describe_search(found: SearchResult | None) -> Tried | None:
    """Return the curve, a line each from the smallest to the largest, and the nodes to blame."""
    if found is None:
        return None
    curve = sorted(found.attempts, key=lambda attempt: (attempt.size_bytes, attempt.what))
    lines = ["the search; accuracy, size and settings of what it tried:"]
    several = len({attempt.metric for attempt in curve}) > 1
    lines += [
        f"{attempt.accuracy:8.4f}  {attempt.size_bytes:>14,} bytes  {attempt.what}"
        + (f"  ({attempt.metric})" if several else "")
        for attempt in curve
    ]
    if found.sensitive_nodes:
        nodes = ", ".join(
            f"{node.name} ({node.noise:.3f})" for node in found.sensitive_nodes[:_NODES_SHOWN]
        )
        lines.append(f"costliest nodes: {nodes}")
    return Tried(words="\n    ".join((*lines, *found.notes)), is_cut_short=found.is_cut_short)
