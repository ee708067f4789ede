"""Finds the cheapest quantized candidate that stays near enough to the float model.

1. Try the profile's calibration methods in order; the first within the budget wins.
2. Otherwise take the best one, rank its nodes by what quantizing each alone costs, and return
   the worst to float: 1, 2, 4, 8 … nodes, then fewer again as long as the budget holds.
3. If nothing holds, say so with every candidate that was tried and the nodes to blame.

Candidates are judged on the search samples and on the calibration samples, since the former are
few; the held-out samples are not seen here.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.judging.accuracy import Verdict
from edgepack.packager.judging.evaluation import Evaluator
from edgepack.packager.judging.measure import Run
from edgepack.packager.progress import Progress
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.search.maker import CandidateMaker, NodeCost, Origin
from edgepack.packager.variant import Attempt

_RESERVE = 0.2
"""Share of the budget that a candidate should leave, so that it holds on other samples too."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One quantized model on disk.

    Attributes:
        method: Calibration method.
        float_nodes: Nodes that stayed float, in the order in which they were returned.
        path: The model.
        size_bytes: Its size.
        verdict: What the accuracy gate said on the search samples.
        quantized_count: Nodes that are quantized.
        origin: What it was made from.
    """

    method: str
    float_nodes: tuple[str, ...]
    path: Path
    size_bytes: int
    verdict: Verdict
    quantized_count: int
    origin: Origin

    @property
    def words(self) -> str:
        """The settings, for reports."""
        total = self.quantized_count + len(self.float_nodes)
        if not self.float_nodes:
            return f"{self.method}, {total} nodes quantized"
        return f"{self.method}, {len(self.float_nodes)} of {total} nodes float"


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What the search found.

    Attributes:
        best: The best candidate, within the budget or not.
        attempts: Everything that was tried, in order.
        culprits: The nodes that cost the most, worst first; empty when none had to be ranked.
    """

    best: Candidate
    attempts: tuple[Attempt, ...]
    culprits: tuple[NodeCost, ...]


def search(
    maker: CandidateMaker,
    max_float_share: float,
    evaluator: Evaluator,
    judge: CandidateJudge,
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
        work_dir: Folder for the candidates.
        progress: Told about each candidate.
        is_hopeless: Whether a candidate need not be improved, for a reason other than accuracy
            (far slower than the float model); asked once, with the first candidate.

    Returns:
        The best candidate and what was tried.

    Raises:
        BuildError: Calibration failed, or ONNX Runtime refuses a candidate.
    """
    tries = _Tries(maker, evaluator, judge, work_dir, progress)
    for number, method in enumerate(maker.methods):
        because = "the profile's first method" if number == 0 else "the one before lost too much"
        run = tries.add(method, (), because)
        if tries.is_settled or (number == 0 and is_hopeless(run)):
            return tries.result(())
    method = tries.best.method
    ranked = maker.rank(method, judge.samples, progress)
    limit = int(len(ranked) * max_float_share)
    names = [cost.name for cost in ranked]
    failed, passed = 0, None
    for count in _doubling(limit):
        tries.add(method, names[:count], f"the {count} costliest node(s) float")
        if tries.is_settled:
            passed = count
            break
        failed = count
    while passed is not None and passed - failed > max(1, failed // 4):
        middle = (passed + failed) // 2
        tries.add(method, names[:middle], "fewer float nodes may do")
        if tries.last.verdict.passed and tries.last.verdict.spare >= _RESERVE:
            passed = middle
        else:
            failed = middle
    return tries.result(ranked)


def _doubling(limit: int) -> list[int]:
    counts = [1]
    while counts[-1] * 2 <= limit:
        counts.append(counts[-1] * 2)
    if counts[-1] != limit:
        counts.append(limit)
    return [count for count in counts if 0 < count <= limit]


class _Tries:
    """Candidates so far; the best is the one to keep: within the budget with the fewest floats."""

    def __init__(
        self,
        maker: CandidateMaker,
        evaluator: Evaluator,
        judge: CandidateJudge,
        work_dir: Path,
        progress: Progress,
    ) -> None:
        self._maker = maker
        self._evaluator = evaluator
        self._judge = judge
        self._folder = work_dir
        self._progress = progress
        self._candidates: list[Candidate] = []
        self._attempts: list[Attempt] = []

    def add(self, method: str, float_nodes: Collection[str], because: str) -> Run:
        """Makes, runs and judges one candidate."""
        number = len(self._candidates) + 1
        path = self._folder / f"candidate-{number}.onnx"
        built = self._maker.build(method, float_nodes)
        size_bytes = save_model(built.model, path)
        run = self._evaluator.open(path)
        verdict = self._judge.judge(run)
        candidate = Candidate(
            method=method,
            float_nodes=tuple(float_nodes),
            path=path,
            size_bytes=size_bytes,
            verdict=verdict,
            quantized_count=len(built.lowered),
            origin=built.origin,
        )
        self._candidates.append(candidate)
        self._attempts.append(
            Attempt(
                what=candidate.words,
                accuracy=verdict.value,
                size_bytes=size_bytes,
                because=because,
                float_nodes=len(candidate.float_nodes),
            )
        )
        self._progress(f"trying {candidate.words}: {verdict.metric} {verdict.value:.4f}", number, 0)
        return run

    @property
    def last(self) -> Candidate:
        """The newest candidate."""
        return self._candidates[-1]

    @property
    def is_settled(self) -> bool:
        """Whether the newest candidate is within the budget, with a reserve."""
        return self.last.verdict.passed and self.last.verdict.spare >= _RESERVE

    @property
    def best(self) -> Candidate:
        """Within the budget with a reserve and the fewest floats; else the most accurate one."""
        settled = [
            candidate
            for candidate in self._candidates
            if candidate.verdict.passed and candidate.verdict.spare >= _RESERVE
        ]
        if settled:
            return min(settled, key=lambda candidate: len(candidate.float_nodes))
        best = self._candidates[0]
        for candidate in self._candidates[1:]:
            if candidate.verdict.beats(best.verdict):
                best = candidate
        return best

    def result(self, ranked: tuple[NodeCost, ...]) -> SearchResult:
        """What to hand back."""
        return SearchResult(best=self.best, attempts=tuple(self._attempts), culprits=ranked)
