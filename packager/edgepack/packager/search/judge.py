"""Evaluation of candidates: on a set of samples, or by the user's metric.

Most candidates of a search fail, many by far. A candidate runs on a quarter of the samples first,
then on half, evenly spread. If the candidate has lost so much that a failure by far is certain, or
nearly certain by samples like these, the remaining samples are skipped. The search defines far: if
a candidate is near its budget already, another that misses the budget is neither sufficient nor the
best.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.chains import count_runs, describe_series, of_chains, run_samples
from edgepack.packager.gates.texts import DecoderReference, TextReference
from edgepack.packager.gates.tokens import TokenReference
from edgepack.packager.gates.user_metric import Metric, evaluate_metric, judge_metric
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.profiles.schema import AccuracyBudgets
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.padding import without_padding
from edgepack.packager.tasks.describe import describe_outputs
from edgepack.packager.tensors.decoders import Decoder
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.tasks.arrays import Outputs

MOST_SAMPLES = 64
"""Samples that a candidate is judged on: enough to see 2 % of disagreement."""

NEAR_SPARE = -2.0
"""Down to here a candidate is near: it loses at most three times what the budget allows."""

_LOOKS = (16, 32)
"""After so many samples it is asked whether a candidate is worth the others."""

MOST_CHAINS = 16
"""Of a decoder, samples that chains of tokens begin with, if these are tokens enough."""

_ENOUGH_TOKENS = 1000
"""To tell 1 %."""

_LOOKS_AT_CHAINS = (4, 8)


class CandidateJudge:
    """Evaluates candidates on a set of samples, or by the user's metric.

    Where an output feeds an input, a candidate is judged on chains of inferences (`chains`).
    `reference` holds the float model's outputs of single inferences all the same, including
    padding; of texts the last scores alone. A decoder is judged on texts with answers, or else on
    chains of tokens.

    Args:
        float_run: The float model.
        samples: Samples to run.
        budgets: Required shares of each task.
        metric: The user's metric, or None.
        most_chains: Of a decoder, samples that chains begin with at most.

    Attributes:
        count: How many samples a candidate is judged on, or chains.
    """

    def __init__(
        self,
        float_run: Run,
        samples: Samples,
        budgets: AccuracyBudgets,
        metric: Metric | None,
        most_chains: int = MOST_CHAINS,
    ) -> None:
        self.samples = samples
        self._budgets = budgets
        self._metric = metric
        known = samples.description
        expected = [samples.evaluated(i, float_run(feeds)) for i, feeds in enumerate(samples)]
        single = [samples.golden(i, one) for i, one in enumerate(expected)]
        self.reference = Reference(single, budgets, known)
        self._in_use = self.reference
        if samples.states:
            expected = run_samples(float_run, samples)
            in_series = describe_series(describe_outputs(expected, known), samples)
            self._in_use = Reference(expected, budgets, in_series)
        elif samples.mask is not None:
            hidden = self._without_padding(self.reference.expected)
            self._in_use = Reference(hidden, budgets, known)
        self.count = count_runs(samples)
        self._tokens: DecoderReference | None = None
        if metric is None and samples.decoder is not None:
            if samples.are_texts:
                self._tokens = TextReference(samples.decoder, samples, expected)
            else:
                self._tokens = _follow(samples, samples.decoder, float_run, most_chains)
                if self._tokens.count < _ENOUGH_TOKENS:  # texts end early
                    self._tokens = _follow(samples, samples.decoder, float_run, MOST_SAMPLES)
            first = single if samples.are_texts else self._tokens.first
            self.count = len(first)
            self._in_use = Reference(first, budgets, known, self._tokens)
        self._float_value = evaluate_metric(metric, float_run) if metric else 1.0

    def judge(
        self,
        run: Run,
        *,
        at_least: float = NEAR_SPARE,
        before_each: Callable[[], None] = lambda: None,
    ) -> Verdict:
        """Run and evaluate a candidate.

        Args:
            run: The candidate.
            at_least: Margin below which the size of a failure does not matter.
            before_each: Called before each sample; its exception ends the evaluation. Not while the
                user's metric has the candidate, which is its own affair.
        """
        if self._metric is not None:
            return judge_metric(self._metric, run, self._float_value, self._budgets)
        count, got = self.count, dict[int, _Ran]()
        is_of_chains = self._tokens is not None and not self.samples.are_texts
        looks = _LOOKS_AT_CHAINS if is_of_chains else _LOOKS
        for look in (*(look for look in looks if look < count), count):
            for index in (number * count // look for number in range(look)):
                if index not in got:
                    before_each()
                    got[index] = self._run_one(run, index, before_each)
            if look < count and (failed := self._given_up(got, at_least)) is not None:
                return failed
        verdict = self._in_use.judge(*_joined(got))
        return of_chains(verdict, self.samples) if self.samples.states else verdict

    def _run_one(self, run: Run, index: int, before_each: Callable[[], None]) -> "_Ran":
        if self._tokens is None:
            return _Ran(outputs=run_samples(run, self.samples, (index,)))

        def step(feeds: Feeds) -> Outputs:
            before_each()
            return run(feeds)

        first, counts = self._tokens.follow(step, index)
        return _Ran(outputs=[first], counts=counts)

    def _as_float(self, index: int) -> "_Ran":
        """Return the float model's own result on a sample."""
        length = len(self._in_use.expected) // self.count
        expected = self._in_use.expected[length * index : length * (index + 1)]
        counts = self._tokens.unchanged(index) if self._tokens else None
        return _Ran(outputs=list(expected), counts=counts)

    def _given_up(self, got: Mapping[int, "_Ran"], at_least: float) -> Verdict | None:
        """Return the verdict on a candidate that need not run on the other samples; None for
        others.
        """
        length = len(self._in_use.expected) // self.count
        places = [length * index + step for index in sorted(got) for step in range(length)]
        seen = self._in_use.of(places).judge(*_joined(got))
        others = {i: self._as_float(i) for i in range(self.count) if i not in got}
        certain = self._in_use.judge(*_joined({**got, **others})).spare
        likely = certain if seen.spare_at_most is None else seen.spare_at_most
        if min(certain, likely) >= at_least:
            return None
        spare = min(seen.spare, certain)
        return replace(seen, passed=False, spare=spare, given_up_after=len(got))

    def judge_single(self, got: Sequence[Outputs]) -> Verdict:
        """Evaluate outputs of single inferences, a dict per sample, without padding.

        Raises:
            ValueError: The samples have states: single inferences do not tell.
        """
        if self.samples.states or self._tokens:
            raise ValueError("what feeds itself is judged on chains")
        return self._in_use.judge(self._without_padding(got))

    def _without_padding(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        return [
            without_padding(entry, feeds, self.samples.mask)
            for entry, feeds in zip(outputs, self.samples, strict=True)
        ]


def _follow(samples: Samples, decoder: Decoder, float_run: Run, most: int) -> DecoderReference:
    """Return the float model's own texts for some samples, evenly spread."""
    count = min(samples.count, most)
    begun = samples.pick([number * samples.count // count for number in range(count)])
    return TokenReference(decoder, begun, float_run)


class _Ran(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a candidate on a sample.

    Attributes:
        outputs: Of each inference.
        counts: Of a decoder, its text or chain.
    """

    outputs: list[Outputs]
    counts: Any = None


def _joined(got: Mapping[int, _Ran]) -> tuple[list[Outputs], list[Any]]:
    """Return the results on some samples, in order."""
    ran = [got[index] for index in sorted(got)]
    counts = [entry.counts for entry in ran if entry.counts is not None]
    return [outputs for entry in ran for outputs in entry.outputs], counts
