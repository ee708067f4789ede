"""A real model through the profile `openvino-cpu`, measured on OpenVINO itself."""

import sys

import onnxruntime
import pytest

from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.runtime.evaluator import profile_settings
from edgepack.packager.runtime.plain_runtime import PlainRelease, find_releases
from edgepack.packager.tensors.sequence import SampleSplit
from tests.integration.test_quantize_qnn import DIGITS, part
from tests.unit.packager_passes.preparing import prepare

pytestmark = pytest.mark.openvino


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> PreparedVariant:
    """The digits model for `openvino-cpu`."""
    return prepare(
        DIGITS,
        load_profile("openvino-cpu"),
        SampleSplit(calibration=part(0, 30), search=part(30, 15), held_out=part(45, 20)),
        tmp_path_factory.mktemp("digits"),
        plain_releases=find_releases(()),
    )


def test_the_variant_is_measured_and_placed_on_openvino(variant: PreparedVariant) -> None:
    assert variant.accuracy.provider == "OpenVINOExecutionProvider"
    assert variant.accuracy.value >= variant.accuracy.budget
    assert variant.placement.verified
    assert variant.placement.taken == variant.placement.total


def test_a_variant_that_is_not_faster_than_float_on_openvino_is_not_published(
    variant: PreparedVariant,
) -> None:
    timing = variant.timing
    assert timing is not None
    assert timing.latency_ms is not None
    assert timing.outcome in ("faster", "not faster", "undecided")
    assert (variant.precision == "fp32") == (timing.outcome == "not faster")
    assert bool(variant.float_because) == (timing.outcome == "not faster")
    undecided = [note for note in variant.timed_notes if note.startswith("Undecided")]
    assert bool(undecided) == (timing.outcome == "undecided")


def test_a_plain_session_on_openvino_with_the_named_settings_is_right(
    variant: PreparedVariant,
) -> None:
    plain = variant.plain_provider
    assert plain is not None
    assert plain.right
    assert plain.releases == (onnxruntime.__version__,)
    assert variant.plain_runtime is not None, "the CPU provider is looked at too"
    settings = profile_settings(load_profile("openvino-cpu"))
    place = PlainRelease(release=plain.releases[0], python=sys.executable, on=settings)
    model = variant.folder / variant.model_file
    feeds = [part(45, 20).read(number) for number in range(4)]
    with place.open(model, plain.session_options) as run:
        got = [next(iter(run(each).values())) for each in feeds]
    with PlainRelease(release="").open(DIGITS, {}) as run:
        expected = [next(iter(run(each).values())) for each in feeds]
    assert [values.argmax() for values in got] == [values.argmax() for values in expected]
