"""Finds the cheapest lowered candidate that stays near enough to the float model.

1. Try the maker's plain methods in order; the first on target wins.
2. If the best of them is near the budget, try the costly methods too. If all are far from the
   budget, the best plain method is meaningless (a speech detector's worst method with every node
   lowered was its best method with half of the nodes float): rank the nodes by the cost of lowering
   each alone, promote the worst, and compare the plain methods there.
3. Promote the worst nodes: 1, 2, 4, 8 …, then fewer again as long as the target is met. `savings`
   defines the worst nodes, and the savings. Where the maker can, nodes are promoted to high
   precision. If that is insufficient for all nodes, the nodes are ranked once more, and the worst
   stay float: with 16-bit activations the weights are to blame. Elsewhere the worst stay float at
   once. Where that does not hold the budget with the method that was near, the plain methods are
   compared with nodes float.
4. If the plain methods do not reach the target, try the costly methods with as many nodes promoted.
5. Lower unneeded nodes again, from the most saving on: the joint cost of nodes is not the sum of
   their individual costs.
6. If nothing holds, say so with every candidate that was tried and the nodes to blame.

When the time is used up, the results so far stand. Candidates are judged on the search samples and
on the calibration samples, since the former are few; the held-out samples are not seen here.

Promotion of nodes, to float or to more bits than the others, until a candidate is on target.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import CandidateSpec, QuantizationMethod
from edgepack.packager.quantization.savings import (
    most_float_nodes,
    promotion_order,
    saves_bytes,
    worth_lowering,
)
from edgepack.packager.runtime.deadline import OutOfTimeError
from edgepack.packager.search.candidate_measurer import CandidateMeasurer
from edgepack.packager.search.candidate_trials import CandidateTrials
from edgepack.packager.search.candidates import Candidate, SearchResult
from edgepack.packager.search.judge import NEAR_SPARE
from edgepack.packager.search.time_limit import describe_duration
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
        is_exact = saves_bytes(trials.ranked)  # each node's bytes count, and none is computed less
        while trials.is_on_target(trials.best) and passed - failed > (
            1 if is_exact else max(1, failed // 4)
        ):
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


_MOST_LOWERED_AGAIN = 6
"""Candidates that the fifth step may cost."""


def search(
    measurer: CandidateMeasurer,
    max_float_share: float,
    progress: Progress,
    is_hopeless: Callable[[Path], bool],
) -> SearchResult:
    """Search; see the steps above.

    Args:
        measurer: Makes and measures candidates.
        max_float_share: Share of the nodes that may stay float, 0…1; any may get more bits.
        progress: Called for each candidate.
        is_hopeless: Whether a candidate need not be improved, for a reason other than accuracy (far
            slower than the float model); asked once, with the first candidate.

    Returns:
        The best candidate and all attempts.

    Raises:
        BuildError: Calibration failed, or ONNX Runtime refuses a candidate.
        OutOfTimeError: The time was used up before the first candidate.
    """
    conditions = measurer.conditions
    trials = CandidateTrials(measurer, conditions.limit.watch(progress))
    try:
        found = _try_plain_methods(trials, is_hopeless)
        if found == "missed":
            _improve(trials, max_float_share)
    except OutOfTimeError:
        conditions.journal.write_out()
        if trials.is_empty:
            raise
        return replace(trials.result((_describe_end(trials),)), is_cut_short=True)
    except (SystemExit, KeyboardInterrupt):
        conditions.journal.write_out()
        raise
    return replace(trials.result(), is_hopeless=found == "hopeless")


def _try_plain_methods(
    trials: CandidateTrials, is_hopeless: Callable[[Path], bool]
) -> Literal["on target", "hopeless", "missed"]:
    """Run step 1 and return its result."""
    for number, method in enumerate(trials.maker.methods):
        because = "the profile's first method" if number == 0 else "the profile's next method"
        candidate = trials.add(CandidateSpec(method=method), because)
        if trials.is_on_target(candidate):
            return "on target"
        if number == 0 and _recall_or_ask(trials, is_hopeless):
            return "hopeless"
    return "missed"


def _recall_or_ask(trials: CandidateTrials, is_hopeless: Callable[[Path], bool]) -> bool:
    conditions = trials.conditions
    known = conditions.journal.recall(conditions.context, "hopeless", bool)
    if known is None:
        known = is_hopeless(trials.path_of(trials.best))
        conditions.journal.keep(conditions.context, "hopeless", known)
    return known


def _improve(trials: CandidateTrials, max_float_share: float) -> None:
    """Run steps 2 to 5."""
    is_near = trials.best.verdict.spare >= NEAR_SPARE
    if is_near and _try_costly_methods(trials, Promotion(trials, ())):
        return
    floats = _promote_worst(trials, max_float_share, is_near)
    if not is_near and not trials.is_on_target(trials.best):
        _try_costly_methods(trials, floats)
        floats.reduce(trials.best.method, 0, len(floats.names))
    _reduce_high_precision(trials)
    _lower_again(trials)


def _try_costly_methods(trials: CandidateTrials, promotion: Promotion) -> bool:
    """Run steps 2 and 4 with all nodes of a promotion; return True if a candidate suffices."""
    return any(
        trials.is_on_target(
            promotion.add(method, len(promotion.names), "the plain methods lose too much")
        )
        for method in trials.maker.costly_methods
    )


def _promote_worst(trials: CandidateTrials, max_float_share: float, is_near: bool) -> Promotion:
    """Run steps 2 and 3; return the promotion at their end."""
    maker = trials.maker
    spec = CandidateSpec(method=trials.best.method)
    names = promotion_order(trials.rank(spec))
    floats = Promotion(trials, names[: most_float_nodes(trials.ranked, names, max_float_share)])
    if maker.high_precision is not None:
        able = set(maker.high_precision.names)
        promoted = tuple(name for name in names if name in able)
        more_bits = Promotion(trials, promoted, "high_precision_nodes")
        if more_bits.may_be_enough(spec.method, maker.methods[0]):
            more_bits.promote((spec.method,) if is_near else maker.methods)
        if trials.is_on_target(trials.best):
            return floats
        spec = CandidateSpec(method=trials.best.method, high_precision_nodes=maker.names)
        names = promotion_order(trials.rank(spec))
        most_float = most_float_nodes(trials.ranked, names, max_float_share)
        floats = Promotion(trials, names[:most_float], others=promoted)
    floats.promote((spec.method,) if is_near else maker.methods)
    if is_near and not trials.best.verdict.passed:
        floats.promote(maker.methods)
    return floats


def _reduce_high_precision(trials: CandidateTrials) -> None:
    """Run step 5: with some float nodes, fewer other nodes need more bits."""
    best = trials.best
    promoted = best.spec.high_precision_nodes
    if trials.is_on_target(best) and promoted and best.float_nodes:
        more_bits = Promotion(trials, promoted, "high_precision_nodes", best.float_nodes)
        more_bits.reduce(best.method, 0, len(promoted))


def _lower_again(trials: CandidateTrials) -> None:
    """Run step 5: lower float nodes again if any, else nodes with more bits."""
    best = trials.best
    if not trials.is_on_target(best):
        return
    spec, words = best.spec, "float" if best.float_nodes else trials.high_precision_words
    promoted = spec.float_nodes or spec.high_precision_nodes
    for name in worth_lowering(trials.ranked, promoted[:-1])[:_MOST_LOWERED_AGAIN]:
        fewer = tuple(other for other in promoted if other != name)
        tried = (
            replace(spec, float_nodes=fewer)
            if spec.float_nodes
            else replace(spec, high_precision_nodes=fewer)
        )
        candidate = trials.add(tried, f"without {name} among the {words} nodes")
        if trials.is_on_target(candidate):
            spec, promoted = tried, fewer


def _describe_end(trials: CandidateTrials) -> str:
    limit = describe_duration(trials.conditions.limit.shared_s or 0.0)
    holds = "holds the budget" if trials.is_on_target(trials.best) else "does not hold the budget"
    return (
        f"The search ended when its share of {limit} was used up; the best candidate until then, "
        f"{trials.best.words}, {holds}."
    )
