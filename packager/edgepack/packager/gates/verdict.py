"""What the accuracy gate says of a candidate."""

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
        asked: The budget where nothing is forgiven, which samples may prove; None where there is
            nothing to prove: a user's metric, labels, what nobody lowered.
        forgiven: Whether it passes only because, of few samples, one may always differ: that says
            little of how many would.
        expected_loss: What decisions are expected to cost that come out otherwise on samples like
            these, as a share of right answers; None where nothing tells.
        may_lose: What may be: 1 %, or what a lower budget stands for.
        output: Of which output; empty where there is one, or `metric` says it.
        task: The task that measured it; "" for a user's metric and labels.
        words: What is kept, where the metric's name does not say it; see `Measure.words`.
        bounds: Lower bounds, each after what it comes near to with more samples.
        low_as_seen: `low`, without what few samples that are all right leave open.
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
    """What the accuracy gate says; what it is judged by is what has the least to spare.

    Attributes:
        float_value: The float model's value.
        passed: Whether every output is within its budget.
        spare: How much of what the budget allows is left: 1 at no loss, 0 at the budget, and where
            all that may be lost is expected to be.
        spare_at_most: What that is nearly certain not to exceed on many samples like these; None
            where samples do not tell.
        noise: Mean nrmse of the outputs and their parts, to order candidates that the metric finds
            equal.
        task_kept: What is expected to be kept of what the float model is used for; None where
            nothing says it.
        costs: What the decisions that are forgiven are expected to cost, as a share of right
            answers; 0 where the float model does not tell.
        given_up_after: After how many samples it was certain to fail by far, whose numbers these
            are; None where all ran.
        remarks: What a person should know of how it was judged.
        weak: Why it says little of what the model is used for, a sentence each, with what would
            settle it.
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
        """The metric, and of several outputs the one that decided: `cosine of output 'boxes'`."""
        return f"{self.metric} of output '{self.output}'" if self.output else self.metric

    @property
    def told_budget(self) -> float:
        """The budget as people are told it: what it passes by where that takes forgiving."""
        return self.budget if self.forgiven or self.asked is None else self.asked

    @property
    def is_costly(self) -> bool:
        """Whether more is expected to be lost on samples like these than may be."""
        return self.expected_loss is not None and self.expected_loss > self.may_lose

    @property
    def found(self) -> str:
        """Metric and value: `top1_agreement 1.0000`; and what is expected if that is too much."""
        words = f"{self.metric} {format_metric(self.value)}"
        return f"{words}, {self.expectation}" if self.is_costly else words

    @property
    def expectation(self) -> str:
        """What decisions on other samples are expected to cost; "" where nothing tells."""
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
        """Whether this is the better candidate."""
        return (self.passed, self.spare, -self.noise) > (other.passed, other.spare, -other.noise)
