"""The candidates of a search so far, and the best."""

from pathlib import Path

from msgspec.structs import replace

from edgepack.number_format import format_metric
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.contract import CandidateSpec, NodeSensitivity
from edgepack.packager.quantization.savings import lost_savings
from edgepack.packager.search.attempts import Attempt
from edgepack.packager.search.candidate_measurer import CandidateMeasurer, discard_large
from edgepack.packager.search.candidates import Candidate, SearchResult
from edgepack.packager.search.judge import NEAR_SPARE


class CandidateTrials:
    """Candidates so far; the best candidate is within the budget and saves the most.

    Args:
        measurer: Makes and measures candidates.
        progress: Called for each candidate.
    """

    def __init__(self, measurer: CandidateMeasurer, progress: Progress) -> None:
        self.maker, self.conditions = measurer.maker, measurer.conditions
        self._measurer = measurer
        self._progress = progress
        self._candidates: list[Candidate] = []
        self._reasons: list[str] = []
        self._ranked: tuple[NodeSensitivity, ...] = ()
        self._quickest_s = 0.0

    def add(self, spec: CandidateSpec, because: str) -> Candidate:
        """Make, run and evaluate a candidate, unless already evaluated.

        Args:
            spec: Specification of the candidate.
            because: Reason for the attempt.

        Raises:
            OutOfTimeError: The time is used up, maybe during the candidate, and there is another
                candidate already.
            BuildError: ONNX Runtime rejects the candidate.
        """
        self.conditions.limit.check()
        for known in self._candidates:
            if known.key == spec.key:
                return known
        number = len(self._candidates) + 1
        limit = self.conditions.limit
        limit.check_fits(self._quickest_s)
        self._tell(number)
        began_s = limit.looked_at_s
        with limit.interrupting():
            measured = self._measurer.measure(number, spec, at_least=self._least_spare)
        is_recalled = not measured.path.exists()  # it was never made
        if not is_recalled:
            took_s = limit.looked_at_s - began_s
            self._quickest_s = min(self._quickest_s or took_s, took_s)
        candidate = replace(measured, sensitivities=self._ranked)
        self._candidates.append(candidate)
        self._reasons.append(because)
        discard_large(self._candidates, self.best)
        self.conditions.limit.enforce()
        self._tell(number, None if is_recalled else candidate)
        return candidate

    def rank(self, spec: CandidateSpec) -> tuple[NodeSensitivity, ...]:
        """Return the cost of each node, worst first; see `CandidateMaker.rank`."""
        self._ranked = self._measurer.rank(spec, self._progress)
        return self._ranked

    @property
    def ranked(self) -> tuple[NodeSensitivity, ...]:
        """Cost and savings of each node, as last measured; empty before."""
        return self._ranked

    @property
    def high_precision_words(self) -> str:
        """Description of a high-precision node; "" if none is possible."""
        high_precision = self.maker.high_precision
        return high_precision.words if high_precision else ""

    def path_of(self, candidate: Candidate) -> Path:
        """Return the file of a candidate, made again if missing."""
        return self._measurer.with_model(candidate).path

    def is_on_target(self, candidate: Candidate) -> bool:
        """Return True if a candidate is all that the search was for."""
        return self.conditions.target.is_met(candidate.verdict)

    @property
    def best(self) -> Candidate:
        """The candidate on target that loses the least savings; without any, the most accurate
        candidate.
        """
        on_target = [candidate for candidate in self._candidates if self.is_on_target(candidate)]
        if on_target:
            return min(on_target, key=self._lost_savings)
        best = self._candidates[0]
        for candidate in self._candidates[1:]:
            if candidate.verdict.beats(best.verdict):
                best = candidate
        return best

    def _lost_savings(self, candidate: Candidate) -> tuple[float, float]:
        """Return the savings lost by float nodes, and by nodes with more bits."""
        return (
            lost_savings(self._ranked, candidate.float_nodes),
            lost_savings(self._ranked, candidate.high_precision_nodes),
        )

    @property
    def _least_spare(self) -> float:
        """Of a candidate that is not within the budget, and worse than the best, nothing counts."""
        return NEAR_SPARE if self.is_empty else max(NEAR_SPARE, min(0.0, self.best.verdict.spare))

    @property
    def is_empty(self) -> bool:
        """True if nothing was judged yet."""
        return not self._candidates

    def result(self, notes: tuple[str, ...] = ()) -> SearchResult:
        """Return the result; build the best candidate if its numbers were recalled."""
        attempts = tuple(
            Attempt(
                what=candidate.words,
                accuracy=candidate.verdict.value,
                metric=candidate.verdict.what,
                budget=candidate.verdict.budget,
                size_bytes=candidate.measured.size_bytes,
                because=self._reason(because, candidate),
                float_nodes=len(candidate.float_nodes),
                high_precision_nodes=(
                    len(candidate.high_precision_nodes) if self.maker.high_precision else None
                ),
            )
            for candidate, because in zip(self._candidates, self._reasons, strict=True)
        )
        with self.conditions.limit.finishing():
            best = self._measurer.with_model(self.best)
        return SearchResult(
            best=best,
            attempts=attempts,
            candidates=tuple(self._candidates),
            sensitive_nodes=self._ranked,
            notes=(*self.conditions.journal.notes, *notes),
        )

    def _reason(self, because: str, candidate: Candidate) -> str:
        verdict = candidate.verdict
        if verdict.given_up_after is not None:
            nouns = "series" if self._measurer.judge.samples.steps else "samples"
            return f"{because}; given up after {verdict.given_up_after} {nouns}"
        return f"{because}; {verdict.expectation}" if verdict.is_costly else because

    def _tell(self, number: int, measured: Candidate | None = None) -> None:
        """Report that a candidate is tried, or the result of a new candidate."""
        outcome = ""
        if measured is not None:
            verdict = measured.verdict
            outcome = f"{measured.words}, {verdict.metric} {format_metric(verdict.value)}"
        self._progress(
            BuildStep(
                what=f"candidate {number}",
                outcome=outcome,
                candidates=len(self._candidates),
                best="" if self.is_empty else _beside_budget(self.best.verdict),
            )
        )


def _beside_budget(verdict: Verdict) -> str:
    sign = "≥" if verdict.value >= verdict.budget else "<"
    return f"{format_metric(verdict.value)} {sign} {verdict.budget:.4g}"
