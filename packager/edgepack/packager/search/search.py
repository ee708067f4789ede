"""Finds the cheapest lowered candidate that stays near enough to the float model.

1. Try the maker's plain methods in order; the first within the budget wins.
2. If the best of them is near the budget, try the costly methods too. If it is far from it, which
   of them is best says nothing (a speech detector's worst method with every node lowered was its
   best one with half of them float): rank the nodes by what lowering each alone costs, make the
   worst islands (float, or with more bits), and compare the plain methods there.
3. Make the worst nodes islands: 1, 2, 4, 8 … of them, then fewer again as long as the budget
   holds.
4. If the plain methods do not get there, try the costly ones with as many islands as may be.
5. Lower those again, from the least costly on, that are not needed after all: what nodes cost
   together is not the sum of what they cost alone.
6. If nothing holds, say so with every candidate that was tried and the nodes to blame.

When the time is used up, what was found until then stands. Candidates are judged on the search
samples and on the calibration samples, since the former are few; the held-out samples are not
seen here.
"""

from collections.abc import Callable
from pathlib import Path

from edgepack.packager.judging.evaluation import Evaluator
from edgepack.packager.judging.measure import Run
from edgepack.packager.progress import Progress
from edgepack.packager.search.candidates import SearchResult
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.search.maker import CandidateMaker, NodeCost
from edgepack.packager.search.time_limit import OutOfTimeError, describe_duration
from edgepack.packager.search.tries import Conditions, Tries

_MOST_LOWERED_AGAIN = 6
"""Candidates that the fifth step may cost."""

_NEAR_SPARE = -2.0
"""Down to here a candidate is near: it loses at most three times what the budget allows."""

_COMPARED_SHARE = 0.25
"""Share of the nodes that may be islands, of those that are where methods compare."""


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
        max_float_share: Share of the nodes that may be islands, 0…1.
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
    ranked: tuple[NodeCost, ...] = ()
    try:
        if _try_methods(tries, maker.methods, conditions, is_hopeless):
            return tries.result(())
        is_near = tries.best.verdict.spare >= _NEAR_SPARE
        if is_near and _try_costly(tries, maker.costly_methods, ()):
            return tries.result(())
        method = tries.best.method
        ranked = tries.rank(method)
        limit = int(len(ranked) * max_float_share)
        names = tuple(cost.name for cost in ranked[:limit])
        failed = 0
        if not is_near and len(maker.methods) > 1 and names:
            failed = max(1, int(limit * _COMPARED_SHARE))
            method = _compare(tries, maker.methods, names[:failed])
        _make_islands(tries, method, names, failed)
        if not is_near and not tries.is_settled(tries.best):
            _try_costly(tries, maker.costly_methods, names)
            _return_fewer(tries, tries.best.method, names, 0, limit)
        _lower_again(tries)
    except OutOfTimeError:
        if tries.is_empty:
            raise
        return tries.result(ranked, (_describe_end(conditions, tries),))
    return tries.result(ranked)


def _try_methods(
    tries: Tries,
    methods: tuple[str, ...],
    conditions: Conditions,
    is_hopeless: Callable[[Run], bool],
) -> bool:
    """Step 1; whether it is all that is needed."""
    for number, method in enumerate(methods):
        because = "the profile's first method" if number == 0 else "the one before lost too much"
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


def _try_costly(tries: Tries, methods: tuple[str, ...], islands: tuple[str, ...]) -> bool:
    """Steps 2 and 4; whether one of them is enough."""
    for method in methods:
        because = "the plain methods lose too much"
        if tries.is_settled(tries.add(method, islands, because)):
            return True
    return False


def _compare(tries: Tries, methods: tuple[str, ...], islands: tuple[str, ...]) -> str:
    """Step 2: the method that is best with some islands."""
    because = f"methods compared, the {len(islands)} costliest node(s) {tries.island}"
    best = tries.add(methods[0], islands, because)
    for method in methods[1:]:
        candidate = tries.add(method, islands, because)
        if candidate.verdict.beats(best.verdict):
            best = candidate
    return best.method


def _make_islands(tries: Tries, method: str, names: tuple[str, ...], tried: int) -> None:
    """Step 3.

    Args:
        tries: The candidates so far.
        method: How they are made.
        names: The nodes that may be islands, worst first.
        tried: How many of them were before; 0 for none.
    """
    failed = 0
    for count in (tried, *_doubling(len(names))):
        if count <= failed:
            continue
        candidate = tries.add(
            method, names[:count], f"the {count} costliest node(s) {tries.island}"
        )
        if tries.is_settled(candidate):
            _return_fewer(tries, method, names, failed, count)
            return
        failed = count


def _return_fewer(
    tries: Tries, method: str, names: tuple[str, ...], failed: int, passed: int
) -> None:
    """Halves the gap between a number of islands that is too small and one that will do."""
    while tries.is_settled(tries.best) and passed - failed > max(1, failed // 4):
        middle = (passed + failed) // 2
        candidate = tries.add(method, names[:middle], f"fewer {tries.island} nodes may do")
        if tries.is_settled(candidate):
            passed = middle
        else:
            failed = middle


def _lower_again(tries: Tries) -> None:
    """Step 5."""
    if not tries.is_settled(tries.best):
        return
    method = tries.best.method
    kept = list(tries.best.islands)
    for name in tuple(reversed(kept[:-1]))[:_MOST_LOWERED_AGAIN]:
        fewer = [other for other in kept if other != name]
        candidate = tries.add(method, fewer, f"without {name} among the {tries.island} nodes")
        if tries.is_settled(candidate):
            kept = fewer


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
