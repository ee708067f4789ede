"""Features of drift: drawn from sketches, added up, and checked."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.bundle.drift import (
    MOST_CLASSES,
    add_sketch,
    draw_features,
    sketch_tensor,
)
from edgepack.bundle.features import FeatureSum, check_features
from edgepack.bundle.metadata import Feature
from edgepack.errors import BundleError
from edgepack.tasks.sketch import MOST_VALUES, Sketch, are_names, thin_input


def measured(features: tuple[Feature, ...], sketches: list[Sketch]) -> dict[str, FeatureSum]:
    sums: dict[str, FeatureSum] = {}
    for sketch in sketches:
        sums = add_sketch(sums, features, sketch)
    return {one.feature.words: one for one in sums.values()}


def drawn(seed: int, count: int, mean: float = 0.0, scale: float = 1.0) -> list[Sketch]:
    values = np.random.default_rng(seed).normal(mean, scale, count)
    return [Sketch(columns={"value": float(value)}) for value in values]


def test_equal_values_differ_by_chance_only_and_others_by_level_or_spread() -> None:
    features = draw_features("y", drawn(0, 128))
    assert [one.words for one in features] == ["value", "spread of value"]
    near = measured(features, drawn(1, 400))
    assert all(one.difference < 0.1 for one in near.values())
    moved = measured(features, drawn(2, 400, mean=1.5))
    assert 1.0 < moved["value"].difference < 1.6
    wide = measured(features, drawn(3, 400, scale=3.0))
    assert wide["value"].difference < 0.1
    assert 1.3 < wide["spread of value"].difference < 2.1


def test_an_extreme_inference_counts_as_ten_standard_deviations() -> None:
    features = draw_features("y", drawn(0, 128))
    sums = measured(features, [*drawn(1, 99), Sketch(columns={"value": 1e30})])
    assert sums["value"].value < 0.5


def test_the_most_frequent_classes_are_features_and_the_others_one_together() -> None:
    sketches = [
        Sketch(shares={f"class {kind}": 1.0})
        for kind in range(20)
        for _ in range(40 if kind < 3 else 1)
    ]
    features = draw_features("y", sketches, " of 'y'")
    classes = [one for one in features if one.kind == "class"]
    assert len(classes) == MOST_CLASSES + 1
    assert classes[0].words == "share of class 0 of 'y'"
    assert classes[-1].words == "share of other classes of 'y'"
    assert classes[-1].mean == pytest.approx(4 / 137, abs=1e-6)
    sums = measured(features, [Sketch(shares={"class 99": 1.0})] * 40)
    assert sums["share of other classes of 'y'"].value == 1
    assert sums["share of other classes of 'y'"].difference > 3


def test_constants_and_missing_numbers_are_no_features() -> None:
    constant = [Sketch(numbers={"level": 300.0}, columns={"value": 1.0}) for _ in range(9)]
    assert draw_features("y", constant) == ()
    assert draw_features("y", [Sketch()] * 9) == ()
    (confidence,) = draw_features("y", [Sketch(confidence=0.9999), Sketch()] * 9)
    assert (confidence.spread, confidence.samples) == (0.02, 9)
    assert measured((confidence,), [Sketch(), Sketch(confidence=math.nan)]) == {}


def test_values_that_are_not_finite_are_a_feature_of_an_input() -> None:
    rng = np.random.default_rng(0)
    built = [sketch_tensor(rng.normal(0, 1, (1, 40))) for _ in range(64)]
    features = draw_features("x", built, " of 'x'")
    broken = measured(features, [sketch_tensor(np.full((1, 40), np.nan))] * 30)
    (only,) = broken.values()
    assert only.feature.words == "share of NaN or infinity of 'x'"
    assert only.difference > 3


def test_each_channel_of_a_picture_has_a_level() -> None:
    rng = np.random.default_rng(0)
    for shape in ((1, 3, 64, 64), (1, 64, 64, 3)):
        pictures = [rng.integers(0, 256, shape).astype(np.uint8) for _ in range(5)]
        names = [one.name for one in draw_features("x", list(map(sketch_tensor, pictures)))]
        assert [f"level of channel {n}" in names for n in range(3)] == [True] * 3


@pytest.mark.parametrize("shape", [(640, 641), (3, 640, 640), (1, 640, 640, 3), (1, 4097), (7,)])
def test_some_values_of_a_tensor_are_copied_evenly(shape: tuple[int, ...]) -> None:
    tensor = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    some = thin_input(tensor)
    assert min(tensor.size, MOST_VALUES / 2) <= some.size <= MOST_VALUES + 3
    assert not np.shares_memory(some, tensor)
    assert some.mean() == pytest.approx(tensor.mean(), rel=0.02)


def test_many_different_whole_numbers_are_names() -> None:
    assert are_names([np.arange(300), np.arange(3)])
    assert not are_names([np.arange(256, dtype=np.uint8)])
    assert not are_names([np.arange(300.0)])


@pytest.mark.parametrize(
    "hostile",
    [
        {"spread": 0.0},
        {"spread": math.inf},
        {"mean": math.nan},
    ],
)
def test_features_with_impossible_numbers_are_rejected(hostile: dict[str, float]) -> None:
    one = Feature(tensor="x", name="level", words="level", samples=5, mean=1.0, spread=1.0)
    one = replace(one, **hostile)
    with pytest.raises(BundleError, match="'level'"):
        check_features((one,), found_in="manifest.json")


def test_a_feature_that_occurs_twice_is_rejected() -> None:
    one = Feature(tensor="x", name="level", words="level", samples=5, mean=1.0, spread=1.0)
    with pytest.raises(BundleError, match="twice"):
        check_features((one, one), found_in="manifest.json")
