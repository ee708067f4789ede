"""Verdict of the accuracy gate on a candidate."""

import msgspec

from edgepack.number_format import format_metric, format_percent
from edgepack.tasks.contract import LOSS, Agreement
from edgepack.tasks.tokens.agreement import AtPositions, ChainAgreement


class MetricCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is held against a budget.

    Attributes:
        metric: The metric.
        value: Its value.
        budget: Least value that passes.
        low: Lower bound of `value` for samples like these, one-sided, 95 %; None where the samples
            do not tell (a user's metric, a cosine).
        asked: The budget without tolerated mismatches, which samples may prove; None if there is
            nothing to prove: a user's metric, labels, a float model.
        forgiven: Whether the value passes only by the tolerated mismatch of few samples: weak
            evidence of the share.
        expected_loss: Expected cost of changed decisions on samples like these, as a share of right
            answers; None if unknown.
        may_lose: Allowed loss: 1 %, or the loss of a lower budget.
        output: The output; empty for a single output, or if `metric` names the output.
        task: The measuring task; "" for a user's metric and labels.
        words: The kept property, if the metric's name is unclear; see `Measure.words`.
        bounds: Lower bounds, each after the value that the bound approaches with more samples.
        low_as_seen: `low` without the uncertainty of few samples that are all right.
    """

    metric: str
    value: float
    budget: float
    low: float | None = None
    asked: float | None = None
    forgiven: bool = False
    expected_loss: float | None = None
    may_lose: float = LOSS
    output: str = ""
    task: str = ""
    words: str = ""
    bounds: tuple[tuple[float, float], ...] = ()
    low_as_seen: float | None = None


class Verdict(MetricCheck, frozen=True, kw_only=True):
    """Verdict of the accuracy gate; the check with the least margin decides.

    Attributes:
        float_value: The float model's value.
        passed: Whether every output is within its budget.
        spare: Remaining share of the budget's allowance: 1 at no loss, 0 at the budget, and 0 if
            the whole allowance is expected to be lost.
        spare_at_most: Nearly certain upper bound of `spare` on many samples like these; None if
            unknown.
        noise: Mean nrmse of the outputs and their parts, to order candidates that the metric finds
            equal.
        task_kept: Expected kept share of the float model's task; None if unknown.
        costs: Expected cost of the tolerated decisions, as a share of right answers; 0 if the float
            model's confidence is unknown.
        given_up_after: Number of samples after which a large failure was certain, the samples of
            these numbers; None if all ran.
        remarks: Remarks on the evaluation for a person.
        weak: Why the verdict is weak evidence of the task, a sentence each, with the remedy.
        agreements: By task, how outputs agree with the float model's; none for a user's metric.
    """

    float_value: float
    passed: bool
    spare: float
    noise: float
    spare_at_most: float | None = None
    task_kept: float | None = None
    costs: float = 0.0
    given_up_after: int | None = None
    remarks: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    agreements: tuple[Agreement, ...] = ()

    @property
    def what(self) -> str:
        """The metric, and of several outputs the deciding output: `cosine of output 'boxes'`."""
        return f"{self.metric} of output '{self.output}'" if self.output else self.metric

    @property
    def shown_budget(self) -> float:
        """The budget for people: the effective budget with tolerated mismatches."""
        return self.budget if self.forgiven or self.asked is None else self.asked

    @property
    def is_costly(self) -> bool:
        """True if the expected loss on samples like these exceeds the allowed loss."""
        return self.expected_loss is not None and self.expected_loss > self.may_lose

    @property
    def found(self) -> str:
        """Metric and value: `top1_agreement 1.0000`; and the expected loss if too large."""
        words = f"{self.metric} {format_metric(self.value)}"
        return f"{words}, {self.expectation}" if self.is_costly else words

    @property
    def expectation(self) -> str:
        """Expected cost of decisions on other samples; "" if unknown."""
        if self.expected_loss is None:
            return ""
        lost, allowed = format_percent(self.expected_loss), format_percent(self.may_lose)
        return f"{lost} of right answers expected to be lost, {allowed} allowed"

    @property
    def positions(self) -> tuple[AtPositions, ...] | msgspec.UnsetType:
        """Return how a decoder agrees with the float model step by step."""
        told = [one.positions for one in self.agreements if isinstance(one, ChainAgreement)]
        return told[0] if told else msgspec.UNSET

    @property
    def decided(self) -> Agreement | None:
        """Return the agreement of the task that decides."""
        return next((one for one in self.agreements if one.task == self.task), None)

    def beats(self, other: "Verdict") -> bool:
        """Return True if this candidate is better."""
        return (self.passed, self.spare, -self.noise) > (other.passed, other.spare, -other.noise)
