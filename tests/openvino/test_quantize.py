"""A real model through the profile `openvino-cpu`, measured on OpenVINO itself."""

from pathlib import Path

import pytest

from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.tensors.sequence import SampleSplit
from tests.integration.test_quantize_qnn import DIGITS, part
from tests.unit.packager_passes.preparing import prepare

pytestmark = pytest.mark.openvino


def test_the_variant_is_measured_and_placed_on_openvino(tmp_path: Path) -> None:
    variant = prepare(
        DIGITS,
        load_profile("openvino-cpu"),
        SampleSplit(calibration=part(0, 30), search=part(30, 15), held_out=part(45, 20)),
        tmp_path,
    )
    assert variant.accuracy.provider == "OpenVINOExecutionProvider"
    assert variant.accuracy.value >= variant.accuracy.budget
    assert variant.placement.verified
    assert variant.placement.taken == variant.placement.total
    assert variant.timing is not None
    assert variant.timing.latency_ms is not None
