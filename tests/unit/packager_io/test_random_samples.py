"""Random calibration: only on request by name."""

import numpy as np

from edgepack.packager.tensors.spec import TensorSpec
from tests.unit.packager_io.opened_samples import open_given, refusal_of


def test_random_samples_are_named_as_such_and_always_the_same() -> None:
    opened = open_given("random:5", TensorSpec(name="images", dtype="float32", shape=(1, 3, 8, 8)))
    assert opened.is_random
    assert opened.notes[0].startswith("The samples are random (random:5): neither ranges nor")
    np.testing.assert_array_equal(
        opened.samples.read(2)["images"], opened.samples.read(2)["images"]
    )


def test_random_without_a_number_is_refused() -> None:
    assert refusal_of("random:lots").remedy == "random:100"


def test_more_random_samples_than_anybody_wants_are_refused() -> None:
    error = refusal_of("random:99999999999999999999")
    assert "names no number of random samples from 1 to 10,000" in error.problem
