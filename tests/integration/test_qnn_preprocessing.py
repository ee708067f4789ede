"""Results of `qnn_preprocess` run on the HTP simulator, unlike the exported chains."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.qnn_preprocess import qnn_preprocess
from edgepack.packager.profiles.pass_settings import QnnPreprocess
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from tests.integration.quantized_on_qnn import try_quantized
from tests.unit.packager_passes.models import constant, parsed_model, samples_for, weight

node = helper.make_node
_PROFILE = load_profile("qnn-htp-a8w8")


def _network() -> onnx.ModelProto:
    """Return all patterns of the pass, in exporters' form: x (1, 3, 16, 16) to y (1, 16)."""
    return parsed_model(
        "(float[1,3,16,16] x) => (float[1,16] y) { [conv1] c1 = Conv<pads=[1,1,1,1]>(x, w1) "
        "[split] r1 = Reshape(c1, split) [move] t = Transpose<perm=[0,3,5,1,2,4]>(r1) "
        "[join] r2 = Reshape(t, join) [conv2] c2 = Conv<pads=[1,1,1,1]>(r2, w2) "
        "[plus3] h1 = Add(c2, three) [clip] h2 = Clip(h1, zero, six) [gate] h3 = Mul(c2, h2) "
        "[hardswish] h4 = Div(h3, six) [scaled] g1 = Div(h4, root) [erf] g2 = Erf(g1) "
        "[plus1] g3 = Add(g2, one) [product] g4 = Mul(h4, g3) [gelu] g5 = Mul(g4, half) "
        "[pool] p = GlobalAveragePool(g5) [flatten] f = Flatten(p) "
        "[length] n = ReduceL2<axes=[1], keepdims=1>(f) [normalize] y = Div(f, n) }",
        [
            weight("w1", 4, 3, 3, 3),
            weight("w2", 16, 16, 3, 3),
            constant("split", [1, 4, 8, 2, 8, 2], np.int64),
            constant("join", [1, 16, 8, 8], np.int64),
            constant("three", 3.0),
            constant("zero", 0.0),
            constant("six", 6.0),
            constant("root", 2.0**0.5),
            constant("one", 1.0),
            constant("half", 0.5),
        ],
    )


def test_fused_chains_stay_on_the_simulated_npu_and_compute_the_same(tmp_path: Path) -> None:
    model = _network()
    samples = samples_for(model, 8)
    _, before = try_quantized(model, _PROFILE, samples, tmp_path / "before", count=2)
    assert before.placement.left["Erf"] == 1
    float_outputs = ModelRunner(model, tmp_path / "float.onnx").run_all(samples.pick(range(2)))
    context = PassContext(
        profile_name="mine", limits=_PROFILE.limits, samples=samples, work_dir=tmp_path
    )
    result = qnn_preprocess(model, QnnPreprocess(), context)
    kinds = {entry.op_type for entry in result.model.graph.node}
    assert {"Gelu", "HardSwish", "LpNormalization", "SpaceToDepth"} <= kinds
    _, after = try_quantized(result.model, _PROFILE, samples, tmp_path / "after", count=2)
    assert dict(after.placement.left) == {"QuantizeLinear": 1, "DequantizeLinear": 1}
    assert largest_difference(float_outputs, after.outputs) < 0.05
