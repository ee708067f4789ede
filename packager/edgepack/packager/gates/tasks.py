"""What a model is for, where that is known: by which metric it is judged, and that in words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from edgepack.bundle.accuracy_words import (
    BOX_BIAS,
    BOX_THRESHOLD,
    DIVERGENCE,
    FORCED_TOKENS,
    FREE_TOKENS,
    SAME_TEXTS,
)
from edgepack.number_format import format_metric
from edgepack.packager.gates.detections import (
    DetectionReference,
    describe_agreement,
    describe_bias,
)
from edgepack.packager.gates.texts import TextReference, describe_same, describe_texts
from edgepack.packager.gates.tokens import describe_rates, describe_tokens
from edgepack.packager.metrics.agreement import Agreement
from edgepack.packager.metrics.kinds import MetricName
from edgepack.packager.tensors.heads import Head
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.detections.agreement import DetectionAgreement
from edgepack.tasks.text.agreement import TextAgreement
from edgepack.tasks.text.head import TextHead
from edgepack.tasks.tokens.agreement import TokenAgreement


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of agreement is judged and told.

    Attributes:
        metric: The metric by which it decides.
        what: What is kept, in words that follow "keeps", with VALUE for the number.
        describe: What more there is to say of it.
        notes: Sentences for the report; takes the budget too.
        details: Numbers for the manifest, by name.
    """

    metric: MetricName
    what: str
    describe: Callable[[Any], str]
    notes: Callable[[Any, float], tuple[str, ...]]
    details: Callable[[Any], dict[str, float]]

    def kept(self, agreement: Agreement) -> str:
        """What is kept, in words that follow "keeps"."""
        value = format_metric(agreement.value)
        return f"{self.what.replace('VALUE', value)} ({self.describe(agreement)})"


def _bounded(name: str, value: float, low: float, high: float) -> dict[str, float]:
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _details_of_boxes(agreement: DetectionAgreement) -> dict[str, float]:
    return {
        **_bounded(BOX_BIAS, agreement.bias, agreement.bias_low, agreement.bias_high),
        BOX_THRESHOLD: agreement.named,
    }


def _details_of_tokens(agreement: TokenAgreement) -> dict[str, float]:
    free, forced = agreement.free, agreement.forced
    return {
        DIVERGENCE: agreement.divergence,
        **_bounded(FREE_TOKENS, free.value, free.low, free.high),
        **_bounded(FORCED_TOKENS, forced.value, forced.low, forced.high),
    }


def _details_of_texts(agreement: TextAgreement) -> dict[str, float]:
    return _bounded(SAME_TEXTS, agreement.same, agreement.same_low, agreement.same_high)


_TASKS: Mapping[type, Task] = {
    DetectionAgreement: Task(
        metric="detection_f1",
        what="F1 VALUE of the float model's boxes",
        describe=describe_bias,
        notes=describe_agreement,
        details=_details_of_boxes,
    ),
    TextAgreement: Task(
        metric="string_agreement",
        what="VALUE of what the float model reads",
        describe=describe_same,
        notes=describe_texts,
        details=_details_of_texts,
    ),
    TokenAgreement: Task(
        metric="token_agreement",
        what="VALUE of the float model's tokens",
        describe=describe_rates,
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
