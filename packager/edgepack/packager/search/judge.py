"""Judges candidates: one set of samples, or the user's metric.

Most candidates of a search fail, many of them by far. A candidate runs on a quarter of the samples
first, then on half of them, evenly spread. As soon as it has lost so much that it fails by far
whatever the other samples say, or nearly certainly by what samples like these say, it is not run on
the others. What is far is up to the search: where a candidate is near its budget already, one that
misses the budget is neither enough nor the best.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.user_metric import Metric, evaluate_metric, judge_metric
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.metrics.chains import run_samples
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.runtime.model_run import Outputs, Run
from edgepack.packager.samples.padding import without_padding
from edgepack.packager.tensors.sequence import Samples

MOST_SAMPLES = 64
"""Samples that a candidate is judged on: enough to see 2 % of disagreement."""

NEAR_SPARE = -2.0
"""Down to here a candidate is near: it loses at most three times what the budget allows."""

_LOOKS = (16, 32)
"""After so many samples it is asked whether a candidate is worth the others."""


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
        meanings, head = samples.meanings, samples.detection_head
        self.reference = Reference([float_run(feeds) for feeds in samples], gate, meanings, head)
        self._in_use = self.reference
        if samples.states:
            self._in_use = Reference(run_samples(float_run, samples), gate, meanings)
        elif samples.mask is not None:
            self._in_use = Reference(self._without_padding(self.reference.expected), gate, meanings)
        self._float_value = evaluate_metric(metric, float_run) if metric else 1.0

    def judge(
        self,
        run: Run,
        *,
        at_least: float = NEAR_SPARE,
        before_each: Callable[[], None] = lambda: None,
    ) -> Verdict:
        """Runs a candidate and judges it.

        Args:
            run: The candidate.
            at_least: Spare below which it does not matter by how much it fails.
            before_each: Called before each sample; what it raises ends the judging. Not while the
                user's metric has the candidate, which is its own affair.
        """
        if self._metric is not None:
            return judge_metric(self._metric, run, self._float_value, self._gate)
        count = self.samples.count
        got: dict[int, list[Outputs]] = {}
        for look in (*(look for look in _LOOKS if look < count), count):
            for index in (number * count // look for number in range(look)):
                if index not in got:
                    before_each()
                    got[index] = run_samples(run, self.samples, (index,))
            if look < count and (failed := self._given_up(got, at_least)) is not None:
                return failed
        return self._in_use.judge([outputs for index in range(count) for outputs in got[index]])

    def _given_up(self, got: Mapping[int, list[Outputs]], at_least: float) -> Verdict | None:
        """The verdict on a candidate that need not run on the other samples; None on others."""
        whole = list(self._in_use.expected)
        length = len(whole) // self.samples.count
        places = [length * index + step for index in sorted(got) for step in range(length)]
        given = [outputs for index in sorted(got) for outputs in got[index]]
        seen = self._in_use.of(places).judge(given)
        for place, outputs in zip(places, given, strict=True):
            whole[place] = outputs
        certain = self._in_use.judge(whole).spare
        likely = certain if seen.spare_at_most is None else seen.spare_at_most
        if min(certain, likely) >= at_least:
            return None
        spare = min(seen.spare, certain)
        return replace(seen, passed=False, spare=spare, given_up_after=len(got))

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
