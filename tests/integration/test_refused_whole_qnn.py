"""Rejections and CPU nodes of the HTP simulator for a single node of a graph: worked around, or
named.
"""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.errors import BuildError
from tests.graphs import graph_model
from tests.integration.loose_builds import Builder

_REFUSED = "Conv<group=3,dilations=[2,2],strides=[2,1],pads=[1,2,3,0]>"
"""With 16-bit activations the simulator (onnxruntime-qnn 2.7.0) refuses every graph that ends in
it, and takes it elsewhere."""


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    rng = np.random.default_rng([len(name), *shape])
    return numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)


def _weights() -> list[onnx.TensorProto]:
    return [_weight("w", 6, 6, 3, 3), _weight("grouped", 6, 2, 3, 3), _weight("b", 6)]


def test_a_convolution_for_which_the_whole_graph_is_refused_stays_float(builder: Builder) -> None:
    model = graph_model(
        "(float[1,6,16,16] x) => (float[1,6,N,K] y) {"
        " [first] a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a)"
        f" [inside] c = {_REFUSED}(r, grouped, b)"
        f" [last] y = {_REFUSED}(c, grouped, b) }}",
        _weights(),
    )
    _, variant = builder(model, "qnn-htp")
    (told,) = [note for note in variant.notes if "refuses the whole graph" in note]
    assert told.startswith("last stays float: quantized, QNNExecutionProvider refuses")
    assert "MEM_ALLOC" in told
    assert variant.placement.taken >= 0.8 * variant.placement.total
    assert not variant.degraded


def test_a_graph_of_nothing_but_what_is_refused_is_refused_with_its_name(builder: Builder) -> None:
    model = graph_model(
        f"(float[1,6,16,16] x) => (float[1,6,N,K] y) {{ [only] y = {_REFUSED}(x, grouped, b) }}",
        _weights(),
    )
    with pytest.raises(BuildError) as caught:
        builder(model, "qnn-htp")
    assert "MEM_ALLOC" in caught.value.problem
    assert "it refuses the graph up to only (Conv), and takes what comes before" in (
        caught.value.problem
    )
    assert caught.value.found_in == "model.onnx: only (Conv)"


def test_a_layer_that_nothing_reads_is_no_reason_to_refuse_agraph_model(builder: Builder) -> None:
    model = graph_model(
        "(float[1,6,8,8] x) => (float[1,6,8,8] y) {"
        " unread = Relu(x) a = Conv<pads=[1,1,1,1]>(x, w, b) y = Sigmoid(a) }",
        _weights(),
    )
    built, variant = builder(model, "qnn-htp")
    assert "Relu" not in {node.op_type for node in built.graph.node}
    assert variant.placement.verified


def test_a_cubic_resize_by_fractions_is_left_to_the_cpu_with_the_providers_reason(
    builder: Builder,
) -> None:
    scales = numpy_helper.from_array(np.array([1, 1, 1.5, 2.2], dtype=np.float32), "scales")
    model = graph_model(
        "(float[1,6,7,9] x) => (float[1,6,N,K] y) {"
        " a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a)"
        ' [larger] z = Resize<mode="cubic">(r, , scales)'
        " y = Conv<pads=[1,1,1,1]>(z, w, b) }",
        [*_weights(), scales],
    )
    _, variant = builder(model, "qnn-htp")
    (left,) = [node for node in variant.left_nodes if node.name == "larger"]
    assert "cubic mode requires scales to match" in left.reason


def test_a_product_with_a_factor_is_taken(builder: Builder) -> None:
    model = graph_model(
        "(float[2,8] x) => (float[2,4] y) {"
        " h = Gemm<transB=1,alpha=-1.0>(x, w1) r = Relu(h) y = Gemm<beta=0.5>(r, w2, bb) }",
        [_weight("w1", 8, 8), _weight("w2", 8, 4), _weight("bb", 4)],
    )
    _, variant = builder(model, "qnn-htp")
    assert set(variant.placement.left) <= {"QuantizeLinear", "DequantizeLinear"}


def test_what_follows_a_scaler_of_scikit_learn_is_taken(builder: Builder) -> None:
    model = graph_model(
        "(float[1,8] x) => (float[1,4] y) {"
        " a = ai.onnx.ml.Scaler<offset=[0.5],scale=[2.0]>(x)"
        " h = MatMul(a, w1) r = Relu(h) y = MatMul(r, w2) }",
        [_weight("w1", 8, 8), _weight("w2", 8, 4)],
    )
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    _, variant = builder(model, "qnn-htp")
    assert variant.placement.left == {"DequantizeLinear": 1, "Scaler": 1}
    assert not variant.degraded
