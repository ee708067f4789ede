"""First samples for a provider, from a build's samples."""

import numpy as np
import pytest

from edgepack.packager.tensors.sequence import Feeds, Samples, SampleSplit


def _sample(index: int) -> Feeds:
    return {"x": np.array([[float(index)]], np.float32)}


@pytest.mark.parametrize(
    ("golden", "first"),
    [((5, 2, 7, 1, 0), [5, 2, 7, 1]), ((5,), [5, 7, 6, 4]), ((7,), [7, 6, 5, 4])],
)
def test_golden_samples_run_first_and_others_where_they_are_few(
    golden: tuple[int, ...], first: list[int]
) -> None:
    held_out = Samples(count=8, read=_sample, source="made by the test")
    split = SampleSplit(calibration=held_out, search=held_out, held_out=held_out, golden=golden)
    assert [int(feeds["x"][0, 0]) for feeds in split.provider_samples(4)] == first
