"""Measurements of a variant, in a few words."""

import pytest

from edgepack.bundle.accuracy_words import describe_accuracy
from edgepack.bundle.metadata import Accuracy


@pytest.mark.parametrize(
    ("metric", "float_value", "words"),
    [
        ("label_accuracy", 0.909, "label_accuracy 0.9100, float model 0.9090"),
        ("label_accuracy", 1.0, "label_accuracy 0.9100, float model 1.0000"),
        ("mean_iou", 0.93, "mean_iou 0.9100, float model 0.9300"),
        ("cosine", 1.0, "cosine 0.9100"),
        ("sqnr_db", 100.0, "sqnr_db 0.9100"),
        ("psnr_db", 100.0, "PSNR, dB 0.9100"),
    ],
)
def test_beside_what_is_measured_of_the_float_model_too_stands_its_value(
    metric: str, float_value: float, words: str
) -> None:
    accuracy = Accuracy(
        metric=metric,
        value=0.91,
        float_value=float_value,
        budget=0.9,
        sample_count=20,
        provider="CPUExecutionProvider",
    )
    assert describe_accuracy(accuracy) == words
