"""Descriptions of a variant's accuracy in a few words, for tables."""

from edgepack.bundle.metadata import Accuracy
from edgepack.tasks.details import BOX_BIAS, BOX_THRESHOLD, describe_box_bias

DETECTION_F1 = "detection_f1"
LABEL_ACCURACY = "label_accuracy"
TOKEN_AGREEMENT = "token_agreement"
STRING_AGREEMENT = "string_agreement"

_WORDS = {
    TOKEN_AGREEMENT: "tokens as float's",
    STRING_AGREEMENT: "characters as float's",
    "relative_accuracy": "depth as float's",
    "psnr_db": "PSNR, dB",
    "si_sdr_db": "SI-SDR, dB",
}
_ERRORS = {"word_accuracy": "word error", "token_accuracy": "token error"}
"""Metrics that people know as 1 less the value."""
_DECIBELS = ("sqnr_db", "psnr_db", "si_sdr_db")
"""Of the distance to the float model, whose own has no bound."""


def describe_accuracy(accuracy: Accuracy) -> str:
    """Return the metric with its value: `cosine 0.9951`, `F1 of boxes 0.9934, 1.2 % fewer at .25`.

    A value of a metric that the float model has, too, is followed by the float model's:
    `label_accuracy 0.9102, float model 0.9090`.
    """
    if error := _ERRORS.get(accuracy.metric):
        own = accuracy.float_value
        beside = f", float model {1.0 - own:.4f}" if own != 1.0 else ""
        return f"{error} {1.0 - accuracy.value:.4f}{beside}"
    if accuracy.metric != DETECTION_F1:
        beside = f", {words}" if (words := describe_float(accuracy)) else ""
        return f"{_WORDS.get(accuracy.metric, accuracy.metric)} {accuracy.value:.4f}{beside}"
    words = f"F1 of boxes {accuracy.value:.4f}"
    bias, threshold = (accuracy.details.get(key) for key in (BOX_BIAS, BOX_THRESHOLD))
    if bias is None or threshold is None:
        return words
    return f"{words}, {describe_box_bias(bias)} at {f'{threshold:g}'.removeprefix('0')}"


def describe_float(accuracy: Accuracy) -> str:
    """Return the float model's own value of labels or a user's metric: `float model 0.9090`.

    "" where a metric compares with the float model, which then is the best there is.
    """
    compares = accuracy.metric in _DECIBELS or accuracy.float_value == 1.0
    if compares and accuracy.metric != LABEL_ACCURACY:
        return ""
    return f"float model {accuracy.float_value:.4f}"
