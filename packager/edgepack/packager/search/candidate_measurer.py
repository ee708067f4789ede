"""Making and measuring of candidates, each in its folder; earlier measurements are reused."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateMaker,
    CandidateSpec,
    NodeSensitivity,
)
from edgepack.packager.runtime.evaluator import Evaluator
from edgepack.packager.search.candidates import Candidate, CandidateMeasurement
from edgepack.packager.search.journal import SearchConditions
from edgepack.packager.search.judge import CandidateJudge

_HELD_OUT_RUNS = 2
"""The held-out samples run through what is found, and through the float model."""

_KEPT_BYTES = 64_000_000
"""Candidates of small models stay on disk, where they can be timed in the end."""


@dataclass(frozen=True)
class CandidateMeasurer:
    """Makes and measures the candidates of a search.

    Attributes:
        maker: Makes candidates.
        evaluator: Opens candidates at the place of measurement.
        judge: Evaluates the candidates.
        conditions: See `SearchConditions`.
        work_dir: Folder for the candidates.
    """

    maker: CandidateMaker
    evaluator: Evaluator
    judge: CandidateJudge
    conditions: SearchConditions
    work_dir: Path

    def measure(self, number: int, spec: CandidateSpec, *, at_least: float) -> Candidate:
        """Return a candidate, evaluated now or before.

        Args:
            number: Its number in this search, from 1.
            spec: Specification of the candidate.
            at_least: See `CandidateJudge.judge`.

        Raises:
            OutOfTimeError: The time is used up during the measurement.
            BuildError: ONNX Runtime rejects the candidate.
        """
        path = self.work_dir / f"candidate-{number}" / "model.onnx"
        journal, context = self.conditions.journal, self.conditions.context
        measured = journal.recall(context, spec.key, CandidateMeasurement)
        if measured is not None:
            return self._candidate(spec, path, measured)
        built, size_bytes = self._save(spec, path)
        run, limit = self.evaluator.open(path), self.conditions.limit
        began_s = time.monotonic()
        verdict = self.judge.judge(run, at_least=at_least, before_each=limit.check)
        ran = verdict.given_up_after or self.judge.count
        one_s = (time.monotonic() - began_s) / max(1, ran)
        limit.reserve(_HELD_OUT_RUNS * one_s * self.conditions.held_out)
        measured = CandidateMeasurement(
            verdict=verdict, size_bytes=size_bytes, lowered=len(built.lowered)
        )
        journal.keep(context, spec.key, measured)
        made = self._candidate(spec, path, measured)
        return replace(made, origin=built.origin, notes=built.notes)

    def rank(self, spec: CandidateSpec, progress: Progress) -> tuple[NodeSensitivity, ...]:
        """Return the cost of each node, worst first, measured or recalled; see
        `CandidateMaker.rank`.
        """
        journal, context = self.conditions.journal, self.conditions.context
        key = f"rank {spec.key}"
        known = journal.recall(context, key, tuple[NodeSensitivity, ...])
        if known is not None:
            return known
        begun = journal.recall(context, f"begun {key}", dict[str, float]) or {}
        try:
            ranked = self.maker.rank(spec, self.judge.samples, progress, begun)
        except BaseException:  # the time is used up, or somebody stops the build
            if begun:
                journal.keep(context, f"begun {key}", begun)
            raise
        journal.keep(context, key, ranked)
        return ranked

    def with_model(self, candidate: Candidate) -> Candidate:
        """Return the candidate with its model on disk: a repeated build gives the same bytes."""
        if candidate.path.exists():
            return candidate
        built, _ = self._save(candidate.spec, candidate.path)
        return replace(candidate, origin=built.origin, notes=built.notes)

    def _save(self, spec: CandidateSpec, path: Path) -> tuple[BuiltCandidate, int]:
        built = self.maker.build(spec)
        path.parent.mkdir(parents=True, exist_ok=True)
        return built, save_model(built.model, path)

    def _candidate(
        self, spec: CandidateSpec, path: Path, measured: CandidateMeasurement
    ) -> Candidate:
        high_precision = self.maker.high_precision
        return Candidate(
            label=self.conditions.label,
            verb=self.maker.verb,
            spec=spec,
            high_precision_words=high_precision.words if high_precision else "",
            path=path,
            measured=measured,
        )


def discard_large(candidates: Sequence[Candidate], best: Candidate) -> None:
    """Keep the best model and the first others on disk: many large models would fill the disk."""
    left_bytes = _KEPT_BYTES
    for candidate in candidates:
        folder = candidate.path.parent
        if folder == best.path.parent or not folder.exists():
            continue
        left_bytes -= candidate.measured.size_bytes
        if left_bytes < 0:
            shutil.rmtree(folder)
