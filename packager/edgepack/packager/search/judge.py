"""Judges candidates: one set of samples, or the user's metric.

Most candidates of a search that begins far from its budget fail by far. As soon as one has lost so
much that it fails by far whatever the other samples say, it is not run on those.
"""

from collections.abc import Sequence
from dataclasses import replace

from edgepack.packager.judging.accuracy import Reference, Verdict
from edgepack.packager.judging.chains import run_samples
from edgepack.packager.judging.measure import Outputs, Run
from edgepack.packager.judging.user_metric import Metric, evaluate_metric, judge_metric
from edgepack.packager.profile.schema import AccuracyGate
from edgepack.packager.samples.padding import without_padding
from edgepack.packager.samples.sequence import Samples

MOST_SAMPLES = 64
"""Samples that a candidate is judged on: enough to see 2 % of disagreement."""

NEAR_SPARE = -2.0
"""Down to here a candidate is near: it loses at most three times what the budget allows."""

_LOOKS = (16, 32)
"""After so many samples it is asked whether a candidate can still be near."""


class CandidateJudge:
    """Judges candidates on one set of samples, or by the user's metric.

    Where an output feeds an input, a candidate is judged on chains of inferences (`chains`).
    `reference` holds the float model's outputs of single inferences all the same, padding with
    them.

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
        self.reference = Reference([float_run(feeds) for feeds in samples], gate, samples.meanings)
        self._in_use = self.reference
        if samples.states:
            self._in_use = Reference(run_samples(float_run, samples), gate, samples.meanings)
        elif samples.mask is not None:
            self._in_use = Reference(
                self._without_padding(self.reference.expected), gate, samples.meanings
            )
        self._float_value = evaluate_metric(metric, float_run) if metric else 1.0

    def judge(self, run: Run) -> Verdict:
        """Runs a candidate and judges it."""
        if self._metric is not None:
            return judge_metric(self._metric, run, self._float_value, self._gate)
        got: list[Outputs] = []
        done = 0
        for look in (look for look in _LOOKS if look < self.samples.count):
            got += run_samples(run, self.samples, range(done, look))
            done = look
            at_most = self._in_use.judge([*got, *self._in_use.expected[len(got) :]])
            if at_most.spare < NEAR_SPARE:
                seen = self._in_use.first(len(got)).judge(got)
                spare = min(seen.spare, at_most.spare)
                return replace(seen, passed=False, spare=spare, given_up_after=look)
        got += run_samples(run, self.samples, range(done, self.samples.count))
        return self._in_use.judge(got)

    def judge_single(self, got: Sequence[Outputs]) -> Verdict:
        """Judges outputs of single inferences, one dict a sample, by all but padding.

        Raises:
            ValueError: The samples have states: single inferences do not tell.
        """
        if self.samples.states:
            raise ValueError("samples with states are judged on chains")
        return self._in_use.judge(self._without_padding(got))

    def _without_padding(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        return [
            without_padding(entry, feeds, self.samples.mask)
            for entry, feeds in zip(outputs, self.samples, strict=True)
        ]
