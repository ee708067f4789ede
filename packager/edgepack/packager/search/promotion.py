"""Promotes nodes, to float or to more bits than the others, until a candidate is on target."""

from collections.abc import Callable, Iterator

from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.search.candidate_trials import CandidateTrials
from edgepack.packager.search.candidates import Candidate
from edgepack.text import counted

_COMPARED_SHARE = 0.25
"""Share of the nodes that may be promoted, of those that are where methods compare."""


class Promotion:
    """Nodes that may be promoted, and to what.

    Args:
        trials: The candidates so far.
        names: The nodes, those first that it buys most to promote.
        words: What a promoted node is.
        specify: The candidate of a method with some of the nodes promoted.
    """

    def __init__(
        self,
        trials: CandidateTrials,
        names: tuple[str, ...],
        words: str,
        specify: Callable[[QuantizationMethod, tuple[str, ...]], CandidateSpec],
    ) -> None:
        self._trials = trials
        self.names = names
        self._words = words
        self._specify = specify

    def add(self, method: QuantizationMethod, count: int, because: str) -> Candidate:
        """The candidate with so many of the nodes promoted."""
        return self._trials.add(self._specify(method, self.names[:count]), because)

    def may_be_enough(self, *methods: QuantizationMethod) -> bool:
        """Whether some method is within the budget, if barely, with all of the nodes promoted."""
        count = len(self.names)
        because = (
            f"whether {counted(count, f'{self._words} node')}, all there can be, may be enough"
        )
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
            words = f"the {counted(more, 'costliest node')} {self._words}"
            if self._trials.is_on_target(self.add(method, more, words)):
                self.reduce(method, failed, more)
                return
            failed = more

    def _compare(self, methods: tuple[QuantizationMethod, ...], count: int) -> QuantizationMethod:
        because = f"methods compared, the {counted(count, 'costliest node')} {self._words}"
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
            candidate = self.add(method, middle, f"fewer {self._words} nodes may do")
            if trials.is_on_target(candidate):
                passed = middle
            else:
                failed = middle


def to_float(
    trials: CandidateTrials, names: tuple[str, ...], high_precision_nodes: tuple[str, ...] = ()
) -> Promotion:
    """Nodes that may be promoted to float, where others have high precision all the same."""
    return Promotion(
        trials,
        names,
        "float",
        lambda method, chosen: CandidateSpec(
            method=method, float_nodes=chosen, high_precision_nodes=high_precision_nodes
        ),
    )


def to_high_precision(
    trials: CandidateTrials, names: tuple[str, ...], float_nodes: tuple[str, ...] = ()
) -> Promotion:
    """Nodes that may be promoted to high precision, where others are float all the same."""
    return Promotion(
        trials,
        names,
        trials.high_precision_words,
        lambda method, chosen: CandidateSpec(
            method=method, float_nodes=float_nodes, high_precision_nodes=chosen
        ),
    )


def _doubling(limit: int) -> Iterator[int]:
    """1, 2, 4, 8 … and the limit."""
    count = 1
    while count < limit:
        yield count
        count *= 2
    if limit > 0:
        yield limit
