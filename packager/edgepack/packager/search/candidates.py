"""What the search tries and what it finds."""

import math
from pathlib import Path

import msgspec

from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.quantization.contract import NodeCost, Origin
from edgepack.packager.quantization.savings import describe_share
from edgepack.packager.search.attempts import Attempt
from edgepack.packager.wording import counted


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate must reach for the search to be content with it.

    Attributes:
        reserve: Share of the budget that it should leave, so that it holds on other samples too.
        noise_max: Greatest mean nrmse of its outputs. Where few decisions are counted, nearly
            every candidate reaches all of them, and only this tells them apart.
    """

    reserve: float = 0.2
    noise_max: float = math.inf

    def is_met(self, verdict: Verdict) -> bool:
        """Whether a candidate with this verdict will do."""
        return verdict.passed and verdict.spare >= self.reserve and verdict.noise <= self.noise_max

    def eased(self, refused: Verdict, best: Verdict) -> "Demand":
        """Half of what the best candidate gains on a refused one, where no more can be met."""
        return Demand(
            reserve=min(self.reserve, (refused.spare + best.spare) / 2),
            noise_max=max(self.noise_max, (refused.noise + best.noise) / 2),
        )


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured of a candidate.

    Attributes:
        verdict: What the accuracy gate said on the search samples.
        size_bytes: Its size.
        lowered: Number of nodes that are lowered.
    """

    verdict: Verdict
    size_bytes: int
    lowered: int


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One lowered model.

    Attributes:
        label: What sets it apart from other profiles' candidates, in words; "" where one profile
            is tried as it stands.
        verb: What was done to nodes, see `CandidateMaker`.
        method: How it was made, in the maker's words.
        float_nodes: Nodes that stayed float, in the order in which they were returned.
        raised: Nodes that got more bits, likewise; what is among the float ones too is float.
        raised_word: What these are, see `Raising`.
        path: The model; of the best candidate alone it is certain to be there.
        judged: What was measured.
        origin: What it was made from.
        notes: What a person should know of how it was made.
        costs: What each node that can be lowered costs and saves; empty before that is known.
    """

    label: str
    verb: str = "quantized"
    method: str
    float_nodes: tuple[str, ...]
    raised: tuple[str, ...]
    raised_word: str
    path: Path
    judged: Judged
    origin: Origin = msgspec.field(default_factory=Origin)
    notes: tuple[str, ...] = ()
    costs: tuple[NodeCost, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What the accuracy gate said on the search samples."""
        return self.judged.verdict

    @property
    def key(self) -> tuple[str, frozenset[str], frozenset[str]]:
        """Which candidate of its search it is."""
        return self.method, frozenset(self.float_nodes), frozenset(self.raised)

    @property
    def only_raised(self) -> tuple[str, ...]:
        """Nodes that have more bits, and are not float."""
        return tuple(name for name in self.raised if name not in set(self.float_nodes))

    @property
    def total(self) -> int:
        """How many nodes could be lowered."""
        return self.judged.lowered + len(self.float_nodes)

    @property
    def words(self) -> str:
        """The settings, for reports."""
        total = self.total
        label = f"{self.label}: " if self.label else ""
        kinds = ((self.float_nodes, "float"), (self.only_raised, self.raised_word))
        spared = [(nodes, kind) for nodes, kind in kinds if nodes]
        if not spared:
            return f"{label}{self.method}, {counted(total, 'node')} {self.verb}"
        (nodes, kind), *others = spared
        share = describe_share(self.costs, nodes)
        words = [f"{len(nodes)} of {total} nodes {kind}" + (f" ({share})" if share else "")]
        words += [f"{len(nodes)} {kind}" for nodes, kind in others]
        return f"{label}{self.method}, {', '.join(words)}"


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the search found.

    Attributes:
        best: The best candidate, within the budget or not.
        attempts: Everything that was tried, in order.
        candidates: The same; models of the small ones are still there.
        sensitive_nodes: The nodes that cost the most, worst first; empty when none was ranked.
        notes: What a person should know of the search itself.
        is_cut_short: Whether its time ended it.
    """

    best: Candidate
    attempts: tuple[Attempt, ...]
    sensitive_nodes: tuple[NodeCost, ...]
    candidates: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()
    is_cut_short: bool = False
