"""Judges candidates: one set of samples, or the user's metric.

Most candidates of a search that begins far from its budget fail by far, and their first samples
show it: those are not run on the others.
"""

from dataclasses import replace

from edgepack.packager.judging.accuracy import Reference, Verdict
from edgepack.packager.judging.chains import run_samples
from edgepack.packager.judging.measure import Run
from edgepack.packager.judging.user_metric import Metric, evaluate_metric, judge_metric
from edgepack.packager.profile.schema import AccuracyGate
from edgepack.packager.samples.sequence import Samples

MOST_SAMPLES = 64
"""Samples that a candidate is judged on: enough to see 2 % of disagreement."""

_FIRST_SAMPLES = 16
"""Samples that tell a candidate that fails by far."""

_GIVEN_UP_BELOW = -6.0
"""To lose seven times what the budget allows on the first samples is to fail on all of them: it is
three of 16 decisions where two in a hundred may differ."""


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
        count = self.samples.count
        if count < 2 * _FIRST_SAMPLES:
            return self._in_use.judge(run_samples(run, self.samples))
        got = run_samples(run, self.samples, range(_FIRST_SAMPLES))
        verdict = self._in_use.first(len(got)).judge(got)
        if verdict.spare < _GIVEN_UP_BELOW:
            return replace(verdict, passed=False, given_up_after=_FIRST_SAMPLES)
        got += run_samples(run, self.samples, range(_FIRST_SAMPLES, count))
        return self._in_use.judge(got)
