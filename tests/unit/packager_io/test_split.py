"""Samples are divided the same way each time, and none is used for two purposes."""

import hashlib

import msgspec
import numpy as np
import pytest

from edgepack.errors import BuildError
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.samples.split import add_captured, describe, split_samples
from edgepack.packager.tensors.sequence import Samples, SampleSplit, State


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


def test_series_stay_whole_and_equal_series_are_one() -> None:
    opened = _opened([*range(40), *range(4)])
    series = msgspec.structs.replace(opened.samples, steps=4)
    split = split_samples(msgspec.structs.replace(opened, samples=series), None)
    for part in (split.calibration, split.search, split.held_out):
        numbers = [int(feeds["x"][0]) for feeds in part]
        assert part.steps == 4
        assert numbers == [
            4 * (place // 4) + number for place in numbers[::4] for number in range(4)
        ]
    assert sum(map(len, _numbers(split))) == 40


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


def test_captured_samples_are_for_ranges_alone_and_those_that_were_given_stay_in_their_part() -> (
    None
):
    given = _opened(list(range(20)))
    split = split_samples(given, None)
    calibration, search, held_out = _numbers(split)
    captured = [_opened([100, 101, *held_out], "cam-1"), _opened([101, 102, *search], "cam-2")]
    grown, told = add_captured(split, [given], captured)
    assert _numbers(grown) == (calibration | {100, 101, 102}, search, held_out)
    assert grown.calibration.count == len(calibration) + 3
    assert told.count == 3
    assert grown.sha256 != split.sha256, "what was measured with fewer is not recalled"
    assert grown.held_out_sha256 == split.held_out_sha256
    same, none = add_captured(split, [given], [_opened(sorted(held_out), "cam-1")])
    assert (same, none.count, none.sha256) == (split, 0, "")


def test_steps_of_a_sequence_are_no_captured_samples() -> None:
    given = _opened(list(range(20)))
    captured = _opened([100])
    states = (State(input="h", output="hn"),)
    steps = msgspec.structs.replace(
        captured, samples=msgspec.structs.replace(captured.samples, states=states)
    )
    with pytest.raises(BuildError, match="captured samples are single steps"):
        add_captured(split_samples(given, None), [given], [steps])
