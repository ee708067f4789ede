"""Spoilt samples: the loss for each unit of fallen confidence, and shifts of variants."""

import numpy as np
import pytest

from edgepack.bundle.drift import confidence_shifts, draw_features
from edgepack.bundle.features import CONFIDENCE, shifted
from edgepack.errors import BuildError
from edgepack.packager.pipeline.reference import SPOILT_SAMPLES, loss_by_confidence, spoil
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.sketch import Sketch

CLASSES = TaskOutputs(task="classification", outputs=("y",))


def brightest(feeds: Feeds) -> Outputs:
    """Classify by the brightest of three rows, surer the brighter it is."""
    levels = feeds["x"].astype(np.float64).mean(axis=(0, 2))
    grown = np.exp(8 * levels)
    return {"y": (grown / grown.sum()).astype(np.float32)[None]}


def drawn() -> list[Feeds]:
    rng = np.random.default_rng(0)
    found: list[Feeds] = []
    for number in range(SPOILT_SAMPLES):
        value = rng.uniform(0.0, 0.3, (1, 3, 2)).astype(np.float32)
        value[0, number % 3] += 0.3
        found.append({"x": value})
    return found


def test_answers_are_lost_with_the_confidence() -> None:
    samples = [(feeds, brightest(feeds)) for feeds in drawn()]
    loss = loss_by_confidence(CLASSES, samples, brightest)
    assert loss is not None
    assert 0.1 < loss < 2.0
    sure: Outputs = {"y": np.array([[1.0, 0.0, 0.0]], np.float32)}
    assert loss_by_confidence(CLASSES, samples, lambda _feeds: sure) is None


def test_ways_that_the_model_rejects_are_left_out() -> None:
    samples = [(feeds, brightest(feeds)) for feeds in drawn()]

    def reject(_feeds: Feeds) -> Outputs:
        raise BuildError("lengths contradict each other")

    assert loss_by_confidence(CLASSES, samples, reject) is None
    whole: Outputs = {"y": np.zeros(3, np.int64)}
    no_confidence = [(feeds, whole) for feeds, _ in samples]
    assert loss_by_confidence(CLASSES, no_confidence, brightest) is None


def test_whole_numbers_keep_to_values_of_other_samples() -> None:
    rng = np.random.default_rng(0)
    empty = np.zeros((1, 4, 0, 16), np.float32)  # A decoder's cache before its first step.
    samples: list[Feeds] = [{"ids": rng.integers(0, 9, (1, 50)), "past": empty} for _ in range(4)]
    ways = list(spoil(samples))
    assert len(ways) == 2
    for spoilt in ways:
        for before, after, other in zip(samples, spoilt, [*samples[1:], samples[0]], strict=True):
            is_known = (after["ids"] == before["ids"]) | (after["ids"] == other["ids"])
            assert after["ids"].dtype == before["ids"].dtype
            assert is_known.all()
            assert not np.array_equal(after["ids"], before["ids"])


def test_a_variant_that_is_less_sure_everywhere_has_lost_nothing() -> None:
    expected = [{"y": np.array([[0.9, 0.1]], np.float32)}] * 4
    got = [{"y": np.array([[0.8, 0.2]], np.float32)}] * 4
    shifts = confidence_shifts([CLASSES], expected, got)
    assert shifts == {"y": pytest.approx(-0.1, abs=1e-6)}
    features = draw_features("y", [Sketch(confidence=0.9, numbers={"rows": n}) for n in (1.0, 2.0)])
    moved = {one.name: one.mean for one in shifted(features, shifts)}
    assert moved[CONFIDENCE] == pytest.approx(0.8)
    assert moved["rows"] == 1.5
