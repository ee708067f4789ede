"""Samples are divided the same way each time, and none is used for two purposes."""

import hashlib

import numpy as np
import pytest

from edgepack.errors import BuildError
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.samples.split import describe, split_samples
from edgepack.packager.tensors.sequence import Samples, SampleSplit


def _opened(numbers: list[int], source: str = "samples") -> OpenedSamples:
    return OpenedSamples(
        samples=Samples(
            count=len(numbers), read=lambda i: {"x": np.array([numbers[i]])}, source=source
        ),
        digests=tuple(hashlib.sha256(str(number).encode()).digest() for number in numbers),
        notes=(),
    )


def _numbers(split: SampleSplit) -> tuple[set[int], set[int], set[int]]:
    parts = (split.calibration, split.search, split.held_out)
    first, second, third = ({int(feeds["x"][0]) for feeds in part} for part in parts)
    return first, second, third


@pytest.mark.parametrize("count", [3, 4, 5, 10, 101])
def test_every_sample_has_one_purpose(count: int) -> None:
    parts = _numbers(split_samples(_opened(list(range(count))), None))
    assert all(parts)
    assert sum(map(len, parts)) == count
    assert set().union(*parts) == set(range(count))


def test_the_order_of_the_files_does_not_matter() -> None:
    forwards = split_samples(_opened(list(range(20))), None)
    backwards = split_samples(_opened(list(reversed(range(20)))), None)
    assert _numbers(forwards) == _numbers(backwards)


def test_separate_held_out_samples_are_taken_out_of_the_calibration() -> None:
    split = split_samples(_opened(list(range(20))), _opened([18, 19, 30]))
    calibration, search, held_out = _numbers(split)
    assert held_out == {18, 19, 30}
    assert calibration | search == set(range(18))


def test_too_few_samples_are_refused_with_what_is_needed() -> None:
    with pytest.raises(BuildError) as caught:
        split_samples(_opened([1, 2]), None)
    assert caught.value.problem == (
        "2 different samples are too few: calibration, search and the held-out check need at "
        "least one each"
    )


def test_evaluating_on_the_calibration_samples_is_refused() -> None:
    with pytest.raises(BuildError) as caught:
        split_samples(_opened([1, 2, 3]), _opened([1, 2, 3]))
    assert caught.value.remedy == "give evaluation samples that are not calibrated with"


def test_the_split_is_told_in_words() -> None:
    assert describe(split_samples(_opened(list(range(10))), None)) == (
        "5 samples for ranges, 2 to choose between candidates, 3 held out for the verdict"
    )
