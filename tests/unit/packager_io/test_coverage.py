"""Warnings about calibration samples that do not cover the inputs, with numbers."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgepack.packager.config.inputs import ImageInput, InputDeclaration, TokenInput
from edgepack.packager.samples.coverage import measure_coverage
from edgepack.packager.tensors.sequence import Samples, SampleSplit
from edgepack.packager.tensors.spec import Lookup, TensorSpec
from edgepack.tasks.arrays import Tensor


def _samples(arrays: Sequence[Tensor]) -> Samples:
    return Samples(
        count=len(arrays), read=lambda index: {"x": np.asarray(arrays[index])}, source="samples"
    )


def _describe(
    calibration: Sequence[Tensor],
    held_out: Sequence[Tensor],
    declaration: InputDeclaration | None = None,
    lookup: Lookup | None = None,
) -> tuple[str, ...]:
    split = SampleSplit(
        calibration=_samples(calibration),
        search=_samples(calibration[:1]),
        held_out=_samples(held_out),
    )
    kind, shape = calibration[0].dtype.name, calibration[0].shape
    spec = TensorSpec(name="x", dtype=kind, shape=shape, lookup=lookup)
    return measure_coverage(split, [spec], {"x": declaration} if declaration else {}).notes


def _floats(*rows: Sequence[float]) -> list[Tensor]:
    return [np.array(row, dtype=np.float32) for row in rows]


def _tokens(*rows: Sequence[int]) -> list[Tensor]:
    return [np.array(row, dtype=np.int64) for row in rows]


def test_samples_that_cover_what_comes_are_not_remarked_upon() -> None:
    assert _describe(_floats([-1, 1], [0, 0.5]), _floats([-1.05, 0.9])) == ()
    assert _describe(_tokens([1, 2, 3], [4, 5, 6]), _tokens([1, 2, 4, 5, 9])) == ()


def test_held_out_values_beyond_the_calibrations_range_are_told_with_numbers() -> None:
    assert _describe(_floats([-1, 1], [0, 0.5]), _floats([-1.0, 2.0])) == (
        "Held-out samples go beyond the calibration's range in input 'x' by 50% of it "
        "(-1 … 2 against -1 … 1): calibrate with samples that span what the device will see.",
    )


def test_extremes_that_grow_with_the_number_of_samples_are_told() -> None:
    levels = np.random.default_rng(0).lognormal(0.0, 1.0, 150)
    rows = [np.array([0.0, level], np.float32) for level in np.sort(levels)]
    known, held_out = [*rows[:50], *rows[-50:]], rows[50:100]
    (told,) = _describe(known, held_out)
    assert "one of 101 inferences" in told
    assert not _describe([np.log(row + 0.1) for row in known], held_out[:1])
    assert not _describe([np.minimum(row, 3.0) for row in known], held_out[:1])


@pytest.mark.parametrize(("beyond", "smaller"), [(1.0, 1.0), (1.3, 1.0), (0.3, 1.0), (1.0, 10.0)])
def test_the_furthest_held_out_samples_reach_a_likely_extreme(
    beyond: float, smaller: float
) -> None:
    levels = np.random.default_rng(0).lognormal(0.0, 1.0, 150)
    rows = [np.array([0.0, level], np.float32) for level in levels]
    known, held_out = rows[:100], [row / smaller for row in rows[100:]]
    most = max(float(row.max()) for row in known)
    held_out[0] = np.array([0.0, beyond * most / smaller], np.float32)
    split = SampleSplit(
        calibration=_samples(known), search=_samples(known[:1]), held_out=_samples(held_out)
    )
    spec = TensorSpec(name="x", dtype="float32", shape=(2,))
    extremes = measure_coverage(split, [spec], {}).extremes
    if smaller > 1.0:
        assert extremes is None, "no sample is scaled by more than four"
    else:
        assert extremes is not None
        assert 1 <= extremes.count <= 3
        assert len({round(float(feeds["x"].max()) / most, 2) for feeds in extremes}) == 1
        assert float(extremes.read(0)["x"].max()) > 1.05 * most


@pytest.mark.parametrize(
    ("held_out", "end"),
    [([3.0, 3.0], "."), ([1.0, 2.0], ", and is not in the held-out ones.")],
)
def test_an_input_that_never_changes_is_told(held_out: list[float], end: str) -> None:
    rows = [[value] for value in held_out]
    expected = f"Input 'x' is the same in all 2 calibration samples{end}"
    assert _describe(_floats([3], [3]), _floats(*rows)) == (expected,)


def test_one_token_that_never_changes_is_not_worth_a_word() -> None:
    table = Lookup(rows=50, node="Gather 'embed'")
    assert _describe(_tokens([2], [2]), _tokens([2]), lookup=table) == ()
    assert _describe(_tokens([2], [2]), _tokens([2]))[0].startswith("Input 'x' is the same"), (
        "a setting, such as a sampling rate: it may become a constant"
    )
    assert _describe(_tokens([2], [2]), _tokens([3]), lookup=table) != ()


def test_tokens_that_were_never_seen_are_counted() -> None:
    assert _describe(
        _tokens([1, 2], [3, 2]), _tokens([1, 7, 8, 9]), TokenInput(vocabulary=1000)
    ) == (
        "Calibration saw 3 of 1,000 different values of input 'x'; 75% of the held-out ones are "
        "not among them: more samples cover more.",
    )


def test_values_outside_the_declared_preprocessing_are_told() -> None:
    declared = ImageInput(scale=1 / 255, mean=(0.5,), std=(0.5,))
    assert _describe(_floats([-1, 1], [0, 1]), _floats([0, 1]), declared) == ()
    assert _describe(_floats([0, 255], [0, 200]), _floats([0, 255]), declared) == (
        "Input 'x' holds 0 … 255, and the declared scale, mean and std allow -1 … 1: the samples "
        "or the declaration are not what the model was trained with.",
    )
