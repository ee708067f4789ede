"""Promotion of nodes, to float or to more bits than the others, until a candidate is on target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.search.candidate_trials import CandidateTrials
from edgepack.packager.search.candidates import Candidate
from edgepack.text import counted

_COMPARED_SHARE = 0.25
"""Share of the nodes that may be promoted, of those that are where methods compare."""


@dataclass(frozen=True)
class Promotion:
    """Nodes that may be promoted, and the kind of promotion.

    Attributes:
        trials: The candidates so far.
        names: The nodes, most beneficial first.
        kind: Field of a specification for the promoted nodes.
        others: Nodes with the other kind of promotion.
    """

    trials: CandidateTrials
    names: tuple[str, ...]
    kind: Literal["float_nodes", "high_precision_nodes"] = "float_nodes"
    others: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Description of a promoted node."""
        return "float" if self.kind == "float_nodes" else self.trials.high_precision_words

    def add(self, method: QuantizationMethod, count: int, because: str) -> Candidate:
        """Return the candidate with so many of the nodes promoted."""
        other = "high_precision_nodes" if self.kind == "float_nodes" else "float_nodes"
        nodes = {self.kind: self.names[:count], other: self.others}
        return self.trials.add(CandidateSpec(method=method, **nodes), because)

    def may_be_enough(self, *methods: QuantizationMethod) -> bool:
        """Return True if some method is within the budget, if barely, with all of the nodes
        promoted.
        """
        count = len(self.names)
        because = f"whether {counted(count, f'{self.words} node')}, all there can be, may be enough"
        return any(
            self.add(method, count, because).verdict.passed for method in dict.fromkeys(methods)
        )

    def promote(self, methods: tuple[QuantizationMethod, ...]) -> None:
        """Promote 1, 2, 4, 8 … nodes, then fewer again.

        Of several methods the best method with some promoted nodes is taken.
        """
        method, count = methods[0], 0
        if len(methods) > 1 and self.names:
            count = max(1, int(len(self.names) * _COMPARED_SHARE))
            method = self._compare(methods, count)
        failed = 0
        for more in (count, *_doubling(len(self.names))):
            if more <= failed:
                continue
            words = f"the {counted(more, 'costliest node')} {self.words}"
            if self.trials.is_on_target(self.add(method, more, words)):
                self.reduce(method, failed, more)
                return
            failed = more

    def _compare(self, methods: tuple[QuantizationMethod, ...], count: int) -> QuantizationMethod:
        because = f"methods compared, the {counted(count, 'costliest node')} {self.words}"
        best = self.add(methods[0], count, because)
        for method in methods[1:]:
            candidate = self.add(method, count, because)
            if candidate.verdict.beats(best.verdict):
                best = candidate
        return best.method

    def reduce(self, method: QuantizationMethod, failed: int, passed: int) -> None:
        """Halve the gap between a number of nodes that fails and a number that passes."""
        trials = self.trials
        while trials.is_on_target(trials.best) and passed - failed > max(1, failed // 4):
            middle = (passed + failed) // 2
            candidate = self.add(method, middle, f"fewer {self.words} nodes may do")
            if trials.is_on_target(candidate):
                passed = middle
            else:
                failed = middle


def _doubling(limit: int) -> Iterator[int]:
    """Yield 1, 2, 4, 8 … and the limit."""
    count = 1
    while count < limit:
        yield count
        count *= 2
    if limit > 0:
        yield limit
