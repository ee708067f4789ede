"""Finds the cheapest lowered candidate that stays near enough to the float model.

1. Try the maker's methods in order; the first within the budget wins.
2. Otherwise take the best one, rank its nodes by what lowering each alone costs, and return the
   worst to float: 1, 2, 4, 8 … nodes, then fewer again as long as the budget holds.
3. Lower those again, from the least costly on, that are not needed after all: what nodes cost
   together is not the sum of what they cost alone.
4. If nothing holds, say so with every candidate that was tried and the nodes to blame.

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
"""Candidates that the third step may cost."""


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
        max_float_share: Share of the nodes that may return to float, 0…1.
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
        method = tries.best.method
        ranked = tries.rank(method)
        _return_to_float(tries, method, ranked, int(len(ranked) * max_float_share))
        _lower_again(tries, method)
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
        if candidate.judged.is_settled:
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


def _return_to_float(tries: Tries, method: str, ranked: tuple[NodeCost, ...], limit: int) -> None:
    """Step 2."""
    names = [cost.name for cost in ranked]
    failed, passed = 0, None
    for count in _doubling(limit):
        candidate = tries.add(method, names[:count], f"the {count} costliest node(s) float")
        if candidate.judged.is_settled:
            passed = count
            break
        failed = count
    while passed is not None and passed - failed > max(1, failed // 4):
        middle = (passed + failed) // 2
        candidate = tries.add(method, names[:middle], "fewer float nodes may do")
        if candidate.judged.is_settled:
            passed = middle
        else:
            failed = middle


def _lower_again(tries: Tries, method: str) -> None:
    """Step 3."""
    if not tries.best.judged.is_settled:
        return
    kept = list(tries.best.float_nodes)
    for name in tuple(reversed(kept[:-1]))[:_MOST_LOWERED_AGAIN]:
        fewer = [other for other in kept if other != name]
        candidate = tries.add(method, fewer, f"without {name} among the float nodes")
        if candidate.judged.is_settled:
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
    holds = "holds the budget" if tries.best.judged.is_settled else "does not hold the budget"
    return (
        f"The search ended when its {limit} were used up; the best candidate until then, "
        f"{tries.best.words}, {holds}."
    )
