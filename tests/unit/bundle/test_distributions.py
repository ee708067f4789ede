"""Distributions: a few bins tell values that are alike from others, whatever their type."""

import math

import numpy as np
import pytest

from edgepack.bundle.distributions import (
    MAX_VALUES,
    Values,
    check_reference,
    count_values,
    describe_values,
    stability_index,
    thin,
)


def index_between(expected: Values, found: Values) -> float:
    told = describe_values("x", expected)
    assert told is not None
    check_reference((told,), found_in="here")
    return stability_index(told.shares, count_values(told.edges, found).tolist())


def draw(seed: int, *, mean: float = 0.0, scale: float = 1.0) -> Values:
    values: Values = np.random.default_rng(seed).normal(mean, scale, 20_000).astype(np.float32)
    return values


def test_values_alike_are_near_and_others_are_far() -> None:
    assert index_between(draw(1), draw(2)) < 0.01
    assert index_between(draw(1), draw(2, mean=0.2)) > 0.02
    assert index_between(draw(1), draw(2, mean=1.0)) > 0.25
    assert index_between(draw(1), draw(2, scale=3.0)) > 0.25


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.uint8, np.int32, np.bool_])
def test_every_numeric_type_is_counted(dtype: type[np.generic]) -> None:
    low = np.random.default_rng(0).integers(0, 2, 5000).astype(dtype)
    assert index_between(low, low[:1000]) < 0.01
    assert index_between(low, np.ones(1000, dtype)) > 1


def test_what_is_not_finite_has_a_bin_of_its_own_and_never_makes_the_index_infinite() -> None:
    broken = np.full(1000, np.nan, np.float32)
    told = describe_values("x", draw(1))
    assert told is not None
    assert told.shares[-1] == 0
    assert count_values(told.edges, broken).tolist() == [0] * (len(told.shares) - 1) + [1000]
    assert 1 < index_between(draw(1), broken) < 100
    assert count_values([0.0], np.array([-math.inf, math.inf, 1.0])).tolist() == [0, 1, 2]


def test_few_values_have_a_bin_each_and_a_lump_does_not_hide_the_rest() -> None:
    mask = np.array([0] * 10 + [1] * 90)
    assert index_between(mask, np.array([0] * 90 + [1] * 10)) > 1
    mostly_one = np.concatenate([np.ones(950), np.linspace(0, 0.5, 50)])
    assert index_between(mostly_one, np.linspace(0, 0.5, 1000)) > 1
    mostly_zero = np.concatenate([np.zeros(950), np.linspace(0.5, 1, 50)])
    assert index_between(mostly_zero, np.linspace(0.5, 1, 1000)) > 1


def test_nothing_is_told_of_names_constants_and_of_what_is_not_there() -> None:
    assert describe_values("tokens", np.arange(30_000) % 1000) is None
    assert describe_values("ones", np.ones(100)) is None
    assert describe_values("none", np.zeros(0)) is None
    assert describe_values("nan", np.full(10, np.nan)) is None
    assert describe_values("pixels", np.arange(1000, dtype=np.uint8)) is not None


@pytest.mark.parametrize("shape", [(640, 640, 3), (3, 640, 640), (1, 4096), (7,), (0, 3), ()])
def test_some_values_stand_for_all_of_a_tensor(shape: tuple[int, ...]) -> None:
    tensor = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    some = thin(tensor)
    assert some.size <= MAX_VALUES
    assert some.size == tensor.size or some.size > MAX_VALUES / 2
    assert not np.shares_memory(some, tensor)
    if shape[-1:] == (3,) and tensor.size:
        channels = np.bincount(some.astype(int) % 3)
        assert channels.min() > 0.9 * channels.max(), "every channel is looked at"


def test_the_same_values_are_told_in_the_same_numbers() -> None:
    assert describe_values("x", draw(3)) == describe_values("x", draw(3))
