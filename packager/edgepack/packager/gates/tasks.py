"""What a model is for, where that is known: by which metric it is judged, and that in words."""

from collections.abc import Callable, Mapping, Sequence
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
    SAME_TEXTS,
)
from edgepack.packager.gates.detections import (
    DetectionReference,
    describe_agreement,
    describe_bias,
)
from edgepack.packager.gates.texts import TextReference, describe_same, describe_texts
from edgepack.packager.gates.tokens import describe_rates, describe_tokens
from edgepack.packager.metrics.agreement import Agreement
from edgepack.packager.metrics.detections.agreement import DetectionAgreement
from edgepack.packager.metrics.kinds import MetricName
from edgepack.packager.metrics.texts.agreement import TextAgreement
from edgepack.packager.metrics.tokens.agreement import TokenAgreement
from edgepack.packager.number_format import format_metric
from edgepack.packager.runtime.model_run import Outputs
from edgepack.packager.tensors.heads import Head
from edgepack.packager.tensors.texts import TextHead


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


def _kept_texts(agreement: TextAgreement) -> str:
    value = format_metric(agreement.value)
    return f"{value} of the float model's characters ({describe_same(agreement)})"


def _details_of_texts(agreement: TextAgreement) -> dict[str, float]:
    return {
        SAME_TEXTS: agreement.same,
        f"{SAME_TEXTS}_low": agreement.same_low,
        f"{SAME_TEXTS}_high": agreement.same_high,
    }


_TASKS: Mapping[type, Task] = {
    DetectionAgreement: Task(
        metric="detection_f1",
        kept=_kept_boxes,
        notes=describe_agreement,
        details=_details_of_boxes,
    ),
    TextAgreement: Task(
        metric="string_agreement",
        kept=_kept_texts,
        notes=describe_texts,
        details=_details_of_texts,
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


OutputReference = DetectionReference | TextReference
"""What the float model finds or reads in some samples, from the outputs of single inferences."""


def open_reference(head: Head, expected: Sequence[Outputs]) -> OutputReference:
    """What outputs are compared with that tell what a model is for.

    Args:
        head: These outputs, settled.
        expected: The float model's outputs, one dict a sample.
    """
    if isinstance(head, TextHead):
        return TextReference(head, expected)
    return DetectionReference(head, expected)
