"""Candidates as the search knows them, and what it finds."""

from pathlib import Path

import msgspec

from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.quantization.contract import CandidateSpec, NodeSensitivity, Origin
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.quantization.savings import describe_share
from edgepack.packager.search.attempts import Attempt
from edgepack.text import counted


class CandidateMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """Measurement of a candidate, stored in journals.

    Attributes:
        verdict: What the accuracy gate said on the search samples.
        size_bytes: Its size.
        lowered: Number of nodes that are lowered.
    """

    verdict: Verdict
    size_bytes: int
    lowered: int


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate: a lowered model.

    Attributes:
        label: What sets it apart from other profiles' candidates, in words; "" where one profile is
            tried as it stands.
        verb: What was done to nodes, see `CandidateMaker`.
        spec: How it was made.
        high_precision_words: What a node of high precision is, see `HighPrecision`.
        path: The model; of the best candidate alone it is certain to be there.
        measured: What was measured.
        origin: What it was made from.
        notes: What a person should know of how it was made.
        sensitivities: What each node that can be lowered costs and saves; empty before that is
            known.
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
        """Key of the candidate among those with its label."""
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
        """Nodes that stayed float, in the order in which they were promoted."""
        return self.spec.float_nodes

    @property
    def high_precision_nodes(self) -> tuple[str, ...]:
        """Nodes that have more bits than the others, and are not float, in the same order."""
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
        candidates: The same; models of the small ones are still there.
        sensitive_nodes: The nodes that cost the most, worst first; empty when none was ranked.
        notes: What a person should know of the search itself.
        is_cut_short: Whether its time ended it.
        is_hopeless: Whether it ended because the first candidate was far too slow.
    """

    best: Candidate
    attempts: tuple[Attempt, ...]
    sensitive_nodes: tuple[NodeSensitivity, ...]
    candidates: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()
    is_cut_short: bool = False
    is_hopeless: bool = False
