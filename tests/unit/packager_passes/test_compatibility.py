"""The compatibility gate: a finished file against the limits of its profile."""

import onnx
import pytest
from msgspec.structs import replace

from edgepack.packager.gates.compatibility import check_compatibility
from edgepack.packager.profiles.reading import load_profile
from tests.graphs import graph_model


def _model(
    shape: str = "1,8", *, opset: int = 17, ir_version: int = 8, op_type: str = "Relu"
) -> onnx.ModelProto:
    text = f"(float[{shape}] x) => (float[{shape}] y) {{ y = {op_type}(x) }}"
    return graph_model(text, opset=opset, ir_version=ir_version)


def test_a_file_within_the_limits_passes() -> None:
    assert check_compatibility(load_profile("qnn-htp-v73"), _model()) is None


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (_model(ir_version=14), "IR version 14, at most 10"),
        (_model(opset=22), "opset 22, allowed are 17…21"),
        (_model("n,8"), "input 'x' without fixed dimensions"),
    ],
)
def test_a_file_beyond_a_limit_is_refused_with_the_limit(
    model: onnx.ModelProto, named: str
) -> None:
    refusal = check_compatibility(load_profile("qnn-htp-v73"), model)
    assert refusal is not None
    assert "qnn-htp-v73" in refusal.problem
    assert named in refusal.problem


def test_a_forbidden_operator_in_the_finished_file_is_refused() -> None:
    profile = load_profile("qnn-htp")
    profile = replace(profile, limits=replace(profile.limits, forbidden_ops=("Relu",)))
    refusal = check_compatibility(profile, _model())
    assert refusal is not None
    assert "forbidden operators Relu" in refusal.problem
