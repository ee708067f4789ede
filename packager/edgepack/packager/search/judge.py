"""Judges candidates: one set of samples, or the user's metric."""

from edgepack.packager.judging.accuracy import (
    Metric,
    Reference,
    Verdict,
    evaluate_metric,
    judge_metric,
)
from edgepack.packager.judging.chains import run_samples
from edgepack.packager.judging.measure import Run
from edgepack.packager.profile.schema import AccuracyGate
from edgepack.packager.samples.sequence import Samples

MOST_SAMPLES = 64
"""Samples that a candidate is judged on: enough to see 2 % of disagreement."""


class CandidateJudge:
    """Judges candidates on one set of samples, or by the user's metric.

    Where an output feeds an input, a candidate is judged on chains of inferences (`chains`).
    `reference` holds the float model's outputs of single inferences all the same.

    Args:
        float_run: The float model.
        samples: What to run.
        gate: The budgets.
        metric: The user's metric, or None.
    """

    def __init__(
        self, float_run: Run, samples: Samples, gate: AccuracyGate, metric: Metric | None
    ) -> None:
        self.samples = samples
        self._gate = gate
        self._metric = metric
        self.reference = Reference([float_run(feeds) for feeds in samples], gate)
        self._in_use = (
            Reference(run_samples(float_run, samples), gate) if samples.states else self.reference
        )
        self._float_value = evaluate_metric(metric, float_run) if metric else 1.0

    def judge(self, run: Run) -> Verdict:
        """Runs a candidate and judges it."""
        if self._metric is not None:
            return judge_metric(self._metric, run, self._float_value, self._gate)
        return self._in_use.judge(run_samples(run, self.samples))
