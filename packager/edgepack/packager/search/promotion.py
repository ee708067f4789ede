"""Promotes nodes, to float or to more bits than the others, until a candidate is on target."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.search.candidate_trials import CandidateTrials
from edgepack.packager.search.candidates import Candidate
from edgepack.packager.wording import counted

_COMPARED_SHARE = 0.25
"""Share of the nodes that may be promoted, of those that are where methods compare."""


class Promotion(ABC):
    """Nodes that may be promoted, and to what.

    Args:
        trials: The candidates so far.
        names: The nodes, those first that it buys most to promote.
    """

    def __init__(self, trials: CandidateTrials, names: tuple[str, ...]) -> None:
        self._trials = trials
        self.names = names

    @property
    @abstractmethod
    def words(self) -> str:
        """What a promoted node is."""

    @abstractmethod
    def spec(self, method: QuantizationMethod, chosen: tuple[str, ...]) -> CandidateSpec:
        """A candidate with these nodes promoted."""

    def add(self, method: QuantizationMethod, count: int, because: str) -> Candidate:
        """The candidate with so many of the nodes promoted."""
        return self._trials.add(self.spec(method, self.names[:count]), because)

    def may_be_enough(self, *methods: QuantizationMethod) -> bool:
        """Whether some method is within the budget, if barely, with all of the nodes promoted."""
        count = len(self.names)
        because = f"whether {counted(count, f'{self.words} node')}, all there can be, may be enough"
        return any(
            self.add(method, count, because).verdict.passed for method in dict.fromkeys(methods)
        )

    def promote(self, methods: tuple[QuantizationMethod, ...]) -> None:
        """Promotes 1, 2, 4, 8 … nodes, then fewer again.

        Of several methods the one is taken that is best where some nodes are promoted.
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
            if self._trials.is_on_target(self.add(method, more, words)):
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
        """Halves the gap between a number of nodes that is too small and one that will do."""
        trials = self._trials
        while trials.is_on_target(trials.best) and passed - failed > max(1, failed // 4):
            middle = (passed + failed) // 2
            candidate = self.add(method, middle, f"fewer {self.words} nodes may do")
            if trials.is_on_target(candidate):
                passed = middle
            else:
                failed = middle


class FloatPromotion(Promotion):
    """Promotes nodes to float.

    Args:
        trials, names: See `Promotion`.
        high_precision_nodes: Nodes that have high precision all the same.
    """

    words = "float"

    def __init__(
        self,
        trials: CandidateTrials,
        names: tuple[str, ...],
        high_precision_nodes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(trials, names)
        self._high_precision_nodes = high_precision_nodes

    def spec(self, method: QuantizationMethod, chosen: tuple[str, ...]) -> CandidateSpec:
        """See `Promotion`."""
        return CandidateSpec(
            method=method, float_nodes=chosen, high_precision_nodes=self._high_precision_nodes
        )


class HighPrecisionPromotion(Promotion):
    """Promotes nodes to high precision.

    Args:
        trials, names: See `Promotion`.
        float_nodes: Nodes that are float all the same.
    """

    def __init__(
        self, trials: CandidateTrials, names: tuple[str, ...], float_nodes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(trials, names)
        self._float_nodes = float_nodes

    @property
    def words(self) -> str:
        """See `Promotion`."""
        return self._trials.high_precision_words

    def spec(self, method: QuantizationMethod, chosen: tuple[str, ...]) -> CandidateSpec:
        """See `Promotion`."""
        return CandidateSpec(
            method=method, float_nodes=self._float_nodes, high_precision_nodes=chosen
        )


def _doubling(limit: int) -> Iterator[int]:
    """1, 2, 4, 8 … and the limit."""
    count = 1
    while count < limit:
        yield count
        count *= 2
    if limit > 0:
        yield limit
