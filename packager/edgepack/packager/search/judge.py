"""Judges candidates: one set of samples, or the user's metric.

Most candidates of a search fail. A candidate runs on a quarter of the samples first, then on half
of them, evenly spread. As soon as it fails whatever the other samples say, or with 95 % confidence
on samples like these, it is not run on the others: by how much it fails is then known well enough
to compare it with others that fail. Who wants better numbers of a failure says down to where.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from edgepack.packager.judging.accuracy import Reference
from edgepack.packager.judging.chains import run_samples
from edgepack.packager.judging.measure import Outputs, Run
from edgepack.packager.judging.noise import in_telling_order
from edgepack.packager.judging.user_metric import Metric, evaluate_metric, judge_metric
from edgepack.packager.judging.verdict import Verdict
from edgepack.packager.profile.schema import AccuracyGate
from edgepack.packager.samples.padding import without_padding
from edgepack.packager.samples.sequence import Samples

MOST_SAMPLES = 64
"""Samples that a candidate is judged on: enough to see 2 % of disagreement."""

NEAR_SPARE = -2.0
"""Down to here a candidate is near: it loses at most three times what the budget allows."""

_MOST_LOOKED_AT = 32
"""Samples among which those are looked for that tell the most."""

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
        self.reference = Reference([float_run(feeds) for feeds in samples], gate, samples.meanings)
        self._in_use = self.reference
        if samples.states:
            self._in_use = Reference(run_samples(float_run, samples), gate, samples.meanings)
        elif samples.mask is not None:
            self._in_use = Reference(
                self._without_padding(self.reference.expected), gate, samples.meanings
            )
        self._parts_in_use: dict[tuple[int, ...], Reference] = {}
        self._float_value = evaluate_metric(metric, float_run) if metric else 1.0

    @property
    def telling_samples(self) -> Samples:
        """The samples in an order in which a few of them tell what nodes cost.

        First comes the one on which the float model says the most: by a picture without objects,
        all that makes a detector's scores would seem to cost nothing. Then one as it stands and one
        that tells much take turns: by the loudest samples alone the order of nodes was worse for a
        text recognizer, whose usual ones are not like them. Samples with states stay in the order
        of time.
        """
        if self.samples.states:
            return self.samples
        said = self._in_use.expected[:_MOST_LOOKED_AT]
        turns = zip(in_telling_order(said, self.samples.meanings), range(len(said)), strict=True)
        return self.samples.pick(tuple(dict.fromkeys(index for both in turns for index in both)))

    def judge(
        self,
        run: Run,
        *,
        at_least: float = 0.0,
        before_each: Callable[[], None] = lambda: None,
    ) -> Verdict:
        """Runs a candidate and judges it.

        Args:
            run: The candidate.
            at_least: Spare below which it need not be known any better by how much it fails.
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
        length = len(self._in_use.expected) // self.samples.count
        places = tuple(length * index + step for index in sorted(got) for step in range(length))
        given = [outputs for index in sorted(got) for outputs in got[index]]
        seen = self._part_in_use(places).judge(given)
        if seen.spare >= at_least:
            return None
        failed = replace(seen, passed=False, given_up_after=len(got))
        if seen.spare_at_most is not None and seen.spare_at_most < at_least:
            return failed
        whole = list(self._in_use.expected)
        for place, outputs in zip(places, given, strict=True):
            whole[place] = outputs
        certain = self._in_use.judge(whole).spare
        return replace(failed, spare=min(seen.spare, certain)) if certain < at_least else None

    def _part_in_use(self, places: tuple[int, ...]) -> Reference:
        """What candidates that ran on these samples only are judged against."""
        if places not in self._parts_in_use:
            self._parts_in_use[places] = self._in_use.of(places)
        return self._parts_in_use[places]

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
