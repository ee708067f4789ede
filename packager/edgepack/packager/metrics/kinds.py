"""Which kind of output is judged by which metrics, and each metric against which budget.

What `[outputs]` of an `edgepack.toml` declares leads; what it leaves open is proposed by what the
float model gives (`output_kinds`).
"""

import enum
from collections.abc import Mapping
from typing import Literal

import msgspec

from edgepack.packager.tensors.meanings import Meaning

MetricName = Literal[
    "detection_f1",
    "token_agreement",
    "string_agreement",
    "top1_agreement",
    "sequence_agreement",
    "explained_variance",
    "neighbourhood",
    "cosine",
    "sqnr_db",
    "mean_iou",
    "psnr_db",
    "relative_accuracy",
    "si_sdr_db",
]


MOST_DECIBELS = 100.0
"""What float rounding itself leaves: nothing is told apart beyond."""


class OutputKind(enum.Enum):
    """What an output means; `KINDS` says more."""

    DECISION = "decision"
    SEQUENCE = "sequence"
    EXACT = "exact"
    INTEGERS = "integers"
    VALUES = "values"
    NUMBERS = "numbers"
    WINNERS = "winners"
    PROBABILITIES = "probabilities"
    EMBEDDING = "embedding"
    SEGMENTATION = "segmentation"
    CLASS_MAP = "class map"
    DEPTH = "depth"
    IMAGE = "image"
    AUDIO = "audio"
    SELECTED = "selected"


class Metric(msgspec.Struct, frozen=True):
    """A metric of one output.

    Attributes:
        value, low: What of an `OutputDistance`, or of what was measured of the task, it is, and
            its lower bound; "" without one.
        budget: The key of `[gates.accuracy]` with the least value that passes.
        best: The float model's own value, or what float rounding itself leaves.
        may_miss_one: Whether one of few samples may always differ.
    """

    value: str
    low: str
    budget: str
    best: float = 1.0
    may_miss_one: bool = False


class Kind(msgspec.Struct, frozen=True):
    """How outputs of a kind are judged.

    Attributes:
        metrics: What must hold. A neighbourhood that cannot be told is no metric: where no other is
            left, explained variance takes its place.
        declared: What `[outputs]`, or the graph, says of it; None where it is only proposed.
        are_numbers: Whether the numbers count, so that a profile may ask for another metric.
        rows: What counts of a row (last axis): which index wins, or that integers are equal.
        narrowest: Values from which on a row counts as a vector that others are compared with.
        least_variance: What the variance of a row counts as at least.
        may_score: Whether scores may be among the numbers, beside boxes or by themselves.
    """

    metrics: tuple[MetricName, ...]
    declared: Meaning | None = None
    are_numbers: bool = False
    rows: Literal["", "winner", "equal"] = ""
    narrowest: int = 16
    least_variance: float = 0.0
    may_score: bool = False


_EXPLAINED: MetricName = "explained_variance"
_NEAR: MetricName = "neighbourhood"
_IN_ROWS: MetricName = "sequence_agreement"

METRICS: Mapping[MetricName, Metric] = {
    "top1_agreement": Metric("agreement", "agreement_low", "top1_agreement_min", may_miss_one=True),
    "sequence_agreement": Metric("row_agreement", "row_agreement_low", "sequence_agreement_min"),
    "explained_variance": Metric(
        "explained_variance", "explained_variance_low", "explained_variance_min"
    ),
    "neighbourhood": Metric("neighbourhood", "neighbourhood_low", "neighbourhood_min"),
    "cosine": Metric("cosine", "", "cosine_min"),
    "sqnr_db": Metric("sqnr_db", "", "sqnr_db_min", best=MOST_DECIBELS),
    # Of what is looked at or listened to: the field's own measures, float model's output for truth.
    "mean_iou": Metric("own", "own_low", "mean_iou_min"),
    "psnr_db": Metric("own", "own_low", "psnr_db_min", best=MOST_DECIBELS),
    "relative_accuracy": Metric("own", "own_low", "relative_accuracy_min"),
    "si_sdr_db": Metric("own", "own_low", "si_sdr_db_min", best=MOST_DECIBELS),
    # Of what a model is for, where that is known: measured of all outputs that tell it.
    "detection_f1": Metric("value", "low", "detection_f1_min"),
    "token_agreement": Metric("value", "low", "token_agreement_min"),
    "string_agreement": Metric("value", "low", "string_agreement_min"),
}

KINDS: Mapping[OutputKind, Kind] = {
    # One decision a sample, or one for each of several rows: the characters of a line.
    OutputKind.DECISION: Kind(("top1_agreement",), Meaning.SCORES, rows="winner"),
    OutputKind.SEQUENCE: Kind((_IN_ROWS,), Meaning.SCORES, rows="winner"),
    # Decisions that the model has taken already: one whole number a sample, or several.
    OutputKind.EXACT: Kind(("top1_agreement",), rows="equal"),
    OutputKind.INTEGERS: Kind((_IN_ROWS,), rows="equal"),
    OutputKind.VALUES: Kind((_EXPLAINED,), Meaning.VALUES, are_numbers=True, may_score=True),
    # What is no decision, and may hold vectors, such as hidden states.
    OutputKind.NUMBERS: Kind((_EXPLAINED, _NEAR), are_numbers=True, may_score=True),
    # Rows with a clear winner in nearly each: what a text recognizer says of characters, perhaps.
    OutputKind.WINNERS: Kind((_EXPLAINED, _NEAR, _IN_ROWS), are_numbers=True, rows="winner"),
    # Of decisions that are all alike: somebody holds them against a threshold. Where 2 % of the
    # variance may be lost, two may be off by .02, however little they move in these samples.
    OutputKind.PROBABILITIES: Kind((_EXPLAINED,), are_numbers=True, least_variance=2 * 0.02),
    OutputKind.EMBEDDING: Kind((_NEAR,), Meaning.EMBEDDING, are_numbers=True, narrowest=2),
    OutputKind.SEGMENTATION: Kind(("mean_iou",), Meaning.SEGMENTATION, are_numbers=True),
    # The same where the model has chosen the classes already.
    OutputKind.CLASS_MAP: Kind(("mean_iou",), rows="equal"),
    OutputKind.DEPTH: Kind(("relative_accuracy",), Meaning.DEPTH, are_numbers=True),
    OutputKind.IMAGE: Kind(("psnr_db",), Meaning.IMAGE, are_numbers=True),
    OutputKind.AUDIO: Kind(("si_sdr_db",), Meaning.AUDIO, are_numbers=True),
    # What it is computed from is judged.
    OutputKind.SELECTED: Kind((), Meaning.SELECTED),
}

ASKED: Mapping[str, tuple[MetricName, ...]] = {
    "top1_agreement": (_EXPLAINED, _NEAR),
    "explained_variance": (_EXPLAINED,),
    "neighbourhood": (_NEAR,),
    "cosine": ("cosine",),
    "sqnr_db": ("sqnr_db",),
}
"""By which metrics numbers are judged where `metric` of `[gates.accuracy]` is not `auto`."""
