"""What a model is for, where that is known: by which metric it is judged, and that in words."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from edgepack.bundle.accuracy_words import (
    BOX_BIAS,
    BOX_BIAS_HIGH,
    BOX_BIAS_LOW,
    BOX_THRESHOLD,
    DIVERGENCE,
    FORCED_TOKENS,
    FREE_TOKENS,
)
from edgepack.packager.gates.detections import describe_agreement, describe_bias
from edgepack.packager.gates.tokens import describe_rates, describe_tokens
from edgepack.packager.metrics.agreement import Agreement
from edgepack.packager.metrics.detections.agreement import DetectionAgreement
from edgepack.packager.metrics.kinds import MetricName
from edgepack.packager.metrics.tokens.agreement import TokenAgreement
from edgepack.packager.number_format import format_metric


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of agreement is judged and told.

    Attributes:
        metric: The metric by which it decides.
        kept: What is kept, in words that follow "keeps".
        notes: Sentences for the report; takes the budget too.
        details: Numbers for the manifest, by name.
    """

    metric: MetricName
    kept: Callable[[Any], str]
    notes: Callable[[Any, float], tuple[str, ...]]
    details: Callable[[Any], dict[str, float]]


def _kept_boxes(agreement: DetectionAgreement) -> str:
    value = format_metric(agreement.value)
    return f"F1 {value} of the float model's boxes ({describe_bias(agreement)})"


def _details_of_boxes(agreement: DetectionAgreement) -> dict[str, float]:
    return {
        BOX_BIAS: agreement.bias,
        BOX_BIAS_LOW: agreement.bias_low,
        BOX_BIAS_HIGH: agreement.bias_high,
        BOX_THRESHOLD: agreement.named,
    }


def _kept_tokens(agreement: TokenAgreement) -> str:
    value = format_metric(agreement.value)
    return f"{value} of the float model's tokens ({describe_rates(agreement)})"


def _details_of_tokens(agreement: TokenAgreement) -> dict[str, float]:
    rates = {FREE_TOKENS: agreement.free, FORCED_TOKENS: agreement.forced}
    return {
        DIVERGENCE: agreement.divergence,
        **{
            f"{name}{end}": value
            for name, rate in rates.items()
            for end, value in (("", rate.value), ("_low", rate.low), ("_high", rate.high))
        },
    }


_TASKS: Mapping[type, Task] = {
    DetectionAgreement: Task(
        metric="detection_f1",
        kept=_kept_boxes,
        notes=describe_agreement,
        details=_details_of_boxes,
    ),
    TokenAgreement: Task(
        metric="token_agreement",
        kept=_kept_tokens,
        notes=describe_tokens,
        details=_details_of_tokens,
    ),
}


def task_of(agreement: Agreement) -> Task:
    """How an agreement is judged and told."""
    return _TASKS[type(agreement)]
