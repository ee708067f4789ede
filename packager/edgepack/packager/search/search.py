"""Finds the cheapest lowered candidate that stays near enough to the float model.

1. Try the maker's plain methods in order; the first within the budget wins.
2. If the best of them is near the budget, try the costly methods too. If it is far from it, which
   of them is best says nothing (a speech detector's worst method with every node lowered was its
   best one with half of them float): rank the nodes by what lowering each alone costs, spare the
   worst, and compare the plain methods there.
3. Spare the worst nodes: 1, 2, 4, 8 … of them, then fewer again as long as the budget holds. What
   is worst, and what saves the most, says `savings`. Where the maker can, they get more bits. If
   more bits for all are not enough, the nodes are ranked once more, and the worst stay float: of
   activations with 16 bits the weights are to blame then. Elsewhere the worst stay float at once.
4. If the plain methods do not get there, try the costly ones with as many nodes spared.
5. Lower those again, from the most saving on, that are not needed after all: what nodes cost
   together is not the sum of what they cost alone.
6. If nothing holds, say so with every candidate that was tried and the nodes to blame.

When the time is used up, what was found until then stands. Candidates are judged on the search
samples and on the calibration samples, since the former are few; the held-out samples are not
seen here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import CandidateMaker, NodeCost
from edgepack.packager.quantization.savings import in_sparing_order, worth_lowering
from edgepack.packager.runtime.evaluator import Evaluator
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.candidates import Candidate, SearchResult
from edgepack.packager.search.judge import NEAR_SPARE, CandidateJudge
from edgepack.packager.search.time_limit import OutOfTimeError, describe_duration
from edgepack.packager.search.tries import Conditions, Tries
from edgepack.packager.wording import counted

_MOST_LOWERED_AGAIN = 6
"""Candidates that the fifth step may cost."""

_COMPARED_SHARE = 0.25
"""Share of the nodes that may be spared, of those that are where methods compare."""


class _Spare(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that may be spared, and in which way: float, or raised to more bits.

    Attributes:
        tries: The candidates so far.
        names: The nodes, those first that it buys most to spare.
        is_raising: Whether these are raised.
        float_nodes: Nodes that stay float all the same, where others are raised.
        raised: Nodes that are raised all the same, where others stay float.
    """

    tries: Tries
    names: tuple[str, ...]
    is_raising: bool = False
    float_nodes: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """What a node that is spared is."""
        return _word(self.tries, self.is_raising)

    def add(self, method: str, count: int, because: str) -> Candidate:
        """The candidate with so many of the nodes spared."""
        chosen = self.names[:count]
        if self.is_raising:
            return self.tries.add(method, self.float_nodes, because, raised=chosen)
        return self.tries.add(method, chosen, because, raised=self.raised)


def search(
    maker: CandidateMaker,
    max_float_share: float,
    evaluator: Evaluator,
    judge: CandidateJudge,
    conditions: Conditions,
    *,
    work_dir: Path,
    progress: Progress,
    is_hopeless: Callable[[Run], bool],
) -> SearchResult:
    """Searches; see the steps above.

    Args:
        maker: Makes candidates.
        max_float_share: Share of the nodes that may stay float, 0…1; any may get more bits.
        evaluator: Opens candidates where they are measured.
        judge: Judges them.
        conditions: Time, and what was measured before.
        work_dir: Folder for the candidates.
        progress: Told about each candidate.
        is_hopeless: Whether a candidate need not be improved, for a reason other than accuracy
            (far slower than the float model); asked once, with the first candidate.

    Returns:
        The best candidate and what was tried.

    Raises:
        BuildError: Calibration failed, or ONNX Runtime refuses a candidate.
        OutOfTimeError: The time was used up before the first candidate.
    """
    watched = conditions.limit.watch(progress)
    tries = Tries(maker, evaluator, judge, conditions, work_dir=work_dir, progress=watched)
    try:
        if _try_methods(tries, maker.methods, conditions, is_hopeless):
            return tries.result()
        is_near = tries.best.verdict.spare >= NEAR_SPARE
        if is_near and _try_costly(tries, maker.costly_methods, _Spare(tries=tries, names=())):
            return tries.result()
        spare = _spare_nodes(tries, maker, max_float_share, is_near)
        if not is_near and not tries.is_settled(tries.best):
            _try_costly(tries, maker.costly_methods, spare)
            _spare_fewer(spare, tries.best.method, 0, len(spare.names))
        _raise_fewer(tries)
        _lower_again(tries)
    except OutOfTimeError:
        if tries.is_empty:
            raise
        return replace(tries.result((_describe_end(conditions, tries),)), is_cut_short=True)
    return tries.result()


def _try_methods(
    tries: Tries,
    methods: tuple[str, ...],
    conditions: Conditions,
    is_hopeless: Callable[[Run], bool],
) -> bool:
    """Step 1; whether it is all that is needed."""
    for number, method in enumerate(methods):
        because = "the profile's first method" if number == 0 else "the profile's next method"
        candidate = tries.add(method, (), because)
        if tries.is_settled(candidate):
            return True
        if number == 0 and _recall_or_ask(tries, conditions, is_hopeless):
            return True
    return False


def _recall_or_ask(
    tries: Tries, conditions: Conditions, is_hopeless: Callable[[Run], bool]
) -> bool:
    known = conditions.journal.recall(conditions.context, "hopeless", bool)
    if known is None:
        known = is_hopeless(tries.open(tries.best))
        conditions.journal.keep(conditions.context, "hopeless", known)
    return known


def _try_costly(tries: Tries, methods: tuple[str, ...], spare: _Spare) -> bool:
    """Steps 2 and 4; whether one of them is enough."""
    for method in methods:
        candidate = spare.add(method, len(spare.names), "the plain methods lose too much")
        if tries.is_settled(candidate):
            return True
    return False


def _compare(spare: _Spare, methods: tuple[str, ...], count: int) -> str:
    """Step 2: the method that is best with some nodes spared."""
    because = f"methods compared, the {counted(count, 'costliest node')} {spare.word}"
    best = spare.add(methods[0], count, because)
    for method in methods[1:]:
        candidate = spare.add(method, count, because)
        if candidate.verdict.beats(best.verdict):
            best = candidate
    return best.method


def _spare_nodes(
    tries: Tries, maker: CandidateMaker, max_float_share: float, is_near: bool
) -> _Spare:
    """Steps 2 and 3; which nodes may stay float at the end of them."""
    method = tries.best.method
    ranked = tries.rank(method)
    limit = int(len(ranked) * max_float_share)
    spare = _Spare(tries=tries, names=_names(ranked)[:limit])
    if maker.raising is not None:
        raisable = set(maker.raising.names)
        raised = tuple(name for name in _names(ranked) if name in raisable)
        raising = _Spare(tries=tries, names=raised, is_raising=True)
        if _may_be_enough(raising, (method, maker.methods[0])):
            _spare_worst(raising, (method,) if is_near else maker.methods)
        if tries.is_settled(tries.best):
            return spare
        method = tries.best.method
        still = tries.rank(method, maker.raising)
        spare = _Spare(tries=tries, names=_names(still)[:limit], raised=raised)
    _spare_worst(spare, (method,) if is_near else maker.methods)
    return spare


def _may_be_enough(spare: _Spare, methods: tuple[str, ...]) -> bool:
    """Step 3: whether some method is within the budget, if barely, with all of the nodes spared."""
    count = len(spare.names)
    because = f"whether {counted(count, f'{spare.word} node')}, all there can be, may be enough"
    return any(
        spare.add(method, count, because).verdict.passed for method in dict.fromkeys(methods)
    )


def _spare_worst(spare: _Spare, methods: tuple[str, ...]) -> None:
    """Steps 2 and 3: with the method that is best where some nodes are spared."""
    method, count = methods[0], 0
    if len(methods) > 1 and spare.names:
        count = max(1, int(len(spare.names) * _COMPARED_SHARE))
        method = _compare(spare, methods, count)
    _climb(spare, method, count)


def _climb(spare: _Spare, method: str, tried: int) -> None:
    """Step 3.

    Args:
        spare: Which nodes may be spared, and how.
        method: How candidates are made.
        tried: How many nodes were spared before; 0 for none.
    """
    failed = 0
    for count in (tried, *_doubling(len(spare.names))):
        if count <= failed:
            continue
        words = f"the {counted(count, 'costliest node')} {spare.word}"
        candidate = spare.add(method, count, words)
        if spare.tries.is_settled(candidate):
            _spare_fewer(spare, method, failed, count)
            return
        failed = count


def _spare_fewer(spare: _Spare, method: str, failed: int, passed: int) -> None:
    """Halves the gap between a number of nodes that is too small and one that will do."""
    tries = spare.tries
    while tries.is_settled(tries.best) and passed - failed > max(1, failed // 4):
        middle = (passed + failed) // 2
        candidate = spare.add(method, middle, f"fewer {spare.word} nodes may do")
        if tries.is_settled(candidate):
            passed = middle
        else:
            failed = middle


def _raise_fewer(tries: Tries) -> None:
    """Where some nodes had to stay float, not all others need more bits."""
    best = tries.best
    if not (tries.is_settled(best) and best.raised and best.float_nodes):
        return
    spare = _Spare(tries=tries, names=best.raised, is_raising=True, float_nodes=best.float_nodes)
    _spare_fewer(spare, best.method, 0, len(best.raised))


def _lower_again(tries: Tries) -> None:
    """Step 5: what is float where anything is, else what has more bits."""
    best = tries.best
    if not tries.is_settled(best):
        return
    is_raising = not best.float_nodes
    kept = list(best.raised if is_raising else best.float_nodes)
    word = _word(tries, is_raising)
    for name in worth_lowering(tries.ranked, kept[:-1])[:_MOST_LOWERED_AGAIN]:
        fewer = tuple(other for other in kept if other != name)
        candidate = tries.add(
            best.method,
            best.float_nodes if is_raising else fewer,
            f"without {name} among the {word} nodes",
            raised=fewer if is_raising else best.raised,
        )
        if tries.is_settled(candidate):
            kept = list(fewer)


def _word(tries: Tries, is_raising: bool) -> str:
    return tries.raised_word if is_raising else "float"


def _names(costs: Sequence[NodeCost]) -> tuple[str, ...]:
    return tuple(cost.name for cost in in_sparing_order(costs))


def _doubling(limit: int) -> list[int]:
    counts = [1]
    while counts[-1] * 2 <= limit:
        counts.append(counts[-1] * 2)
    if counts[-1] != limit:
        counts.append(limit)
    return [count for count in counts if 0 < count <= limit]


def _describe_end(conditions: Conditions, tries: Tries) -> str:
    limit = describe_duration(conditions.limit.limit_s or 0.0)
    holds = "holds the budget" if tries.is_settled(tries.best) else "does not hold the budget"
    return (
        f"The search ended when its {limit} were used up; the best candidate until then, "
        f"{tries.best.words}, {holds}."
    )
