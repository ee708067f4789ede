"""A framework's exported model, through `edgepack build`, on OpenVINO itself."""

from pathlib import Path

import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from tests.integration.test_real_models import (
    PADDLE_CLASSIFIER,
    build_loosely,
    operators_of,
    packaged,
)

pytestmark = pytest.mark.openvino


def test_a_paddle_export_runs_whole_on_openvino_and_is_quantized_if_not_slower(
    tmp_path: Path,
) -> None:
    write_key_pair(generate_key(), tmp_path / "release")
    variants = build_loosely(
        tmp_path,
        tmp_path / "release.key",
        packaged(*PADDLE_CLASSIFIER),
        None,
        ("openvino-cpu",),
        x=(1, 3, 48, 192),
    )
    variant = variants["openvino-cpu"]
    assert variant.timing is not None
    is_quantized = variant.timing.outcome != "not faster"
    assert variant.precision == ("a8w8" if is_quantized else "fp32")
    assert variant.accuracy.provider == "OpenVINOExecutionProvider"
    assert variant.placement.verified
    assert variant.placement.taken == variant.placement.total
    assert ("DequantizeLinear" in operators_of(tmp_path, "openvino-cpu")) == is_quantized
