"""A model whose weights alone are integers becomes the float model that it computes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.source_quantization import read_source_quantization
from edgepack.packager.pipeline.prequantized import unfold
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.quantization.weight_only.unfold import unfold_weights
from edgepack.packager.runtime.model_run import ModelRunner
from tests.simulators.late_modules import late

nbits = late("onnxruntime.quantization.matmul_nbits_quantizer")

_ROWS, _WIDTH, _CLASSES = 12, 40, 10
_IDS = np.array([[3, 1, 11, 3]])


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _model(nodes: list[onnx.NodeProto], stored: list[onnx.TensorProto]) -> onnx.ModelProto:
    """Token ids (1, 4) to scores (1, 4, 10)."""
    graph = helper.make_graph(
        nodes,
        "tokens",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, _CLASSES])],
        stored,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _stored(name: str, values: object, dtype: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def _of_pairs() -> onnx.ModelProto:
    """Rows of a table of bytes are looked up and shaped, and a weight has a scale a channel."""
    rng, node = _rng(), helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["rows"], name="look_up"),
        node("Reshape", ["rows", "shape"], ["shaped"], name="shape_rows"),
        node("DequantizeLinear", ["shaped", "step", "zero"], ["x"], name="rows_to_floats"),
        node("Transpose", ["turned"], ["bytes"], name="turn", perm=[1, 0]),
        node("DequantizeLinear", ["bytes", "steps"], ["w"], name="weight_to_floats", axis=1),
        node("MatMul", ["x", "w"], ["y"], name="product"),
    ]
    return _model(
        nodes,
        [
            _stored("table", rng.integers(-128, 128, (_ROWS, _WIDTH)), "int8"),
            _stored("shape", [1, 4, _WIDTH], "int64"),
            _stored("step", 0.03, "float32"),
            _stored("zero", 5, "int8"),
            _stored("turned", rng.integers(-128, 128, (_CLASSES, _WIDTH)), "int8"),
            _stored("steps", rng.uniform(0.01, 0.1, _CLASSES), "float32"),
        ],
    )


def _of_blocks(bits: int, *, is_symmetric: bool) -> onnx.ModelProto:
    """A product with packed weights, as ONNX Runtime's own quantizer writes it."""
    rng, node = _rng(), helper.make_node
    floats = _model(
        [
            node("Gather", ["table", "ids"], ["x"], name="look_up"),
            node("MatMul", ["x", "w"], ["y"], name="product"),
        ],
        [
            _stored("table", rng.normal(0, 1, (_ROWS, _WIDTH)), "float32"),
            _stored("w", rng.normal(0, 1, (_WIDTH, _CLASSES)), "float32"),
        ],
    )
    quantizer = nbits.MatMulNBitsQuantizer(
        floats, bits=bits, block_size=16, is_symmetric=is_symmetric
    )
    quantizer.process()
    model = quantizer.model.model
    assert [each.op_type for each in model.graph.node] == ["Gather", "MatMulNBits"]
    assert isinstance(model, onnx.ModelProto)
    return model


def _with_bias(model: onnx.ModelProto) -> onnx.ModelProto:
    product = model.graph.node[-1]
    product.input.extend([""] * (5 - len(product.input)) + ["bias"])
    model.graph.initializer.append(_stored("bias", _rng().normal(0, 1, _CLASSES), "float32"))
    return model


@pytest.mark.parametrize(
    ("model", "precision", "types"),
    [
        (_of_pairs(), "w8", ["Gather", "Reshape", "MatMul"]),
        (_of_blocks(4, is_symmetric=True), "w4", ["Gather", "MatMul"]),
        (_of_blocks(4, is_symmetric=False), "w4", ["Gather", "MatMul"]),
        (_of_blocks(8, is_symmetric=False), "w8", ["Gather", "MatMul"]),
        (_with_bias(_of_blocks(4, is_symmetric=False)), "w4", ["Gather", "MatMul", "Add"]),
    ],
)
def test_the_float_model_gives_the_same(
    model: onnx.ModelProto, precision: str, types: list[str], tmp_path: Path
) -> None:
    before = read_source_quantization(model.graph)
    assert before is not None
    assert before.is_of_weights
    assert before.precision == precision
    floats = unfold_weights(model)
    assert floats is not None
    assert [node.op_type for node in floats.graph.node] == types
    wanted, got = (
        ModelRunner(each, tmp_path / "m.onnx", optimize=False).run({"ids": _IDS})["y"]
        for each in (model, floats)
    )
    assert np.abs(np.subtract(got, wanted)).max() < 1e-5


def test_a_model_whose_input_is_integers_stays(tmp_path: Path) -> None:
    node = helper.make_node("DequantizeLinear", ["ids", "step"], ["y"], name="to_floats")
    model = _model([node], [_stored("step", 0.03, "float32")])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    assert unfold_weights(model) is None


@pytest.mark.parametrize(
    ("profile", "bits", "is_unfolded"),
    [
        ("qnn-htp", 4, True),
        ("vitisai-xint8", 8, True),
        ("vitisai-bf16", 4, True),
        ("cpu", 8, True),
        ("cpu", 4, False),
        ("cpu-int4", 4, False),
        ("tensorrt-fp16", 4, False),
        ("fp32", 8, False),
    ],
)
def test_who_wants_integers_gets_the_float_model(
    profile: str, bits: int, is_unfolded: bool
) -> None:
    model = _of_blocks(bits, is_symmetric=False)
    prepared, notes = unfold(model, load_profile(profile))
    assert (read_source_quantization(prepared.graph) is None) == is_unfolded
    assert (prepared is not model) == is_unfolded
    assert len(notes) == is_unfolded
    assert all(note.startswith(f"The weights alone come quantized (w{bits})") for note in notes)
