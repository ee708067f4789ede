"""An encoder's self-attention becomes one node where ONNX Runtime knows its chain, and a note
says where it does not.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.fuse_transformer import fuse_transformer
from edgepack.packager.profiles.pass_settings import FuseTransformer
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Tensor
from tests.unit.packager_passes.models import constant, weight
from tests.unit.packager_passes.passing import context_of, copy_of, kinds_of

_WORDS, _HEADS, _HEAD_SIZE = 6, 2, 4
_WIDTH = _HEADS * _HEAD_SIZE
_SETTINGS = FuseTransformer(ops=("Attention",))

node = helper.make_node


def _branch(name: str, source: str, perm: list[int]) -> list[onnx.NodeProto]:
    """A projection of `source`, cut into heads."""
    return [
        node("MatMul", [source, f"w_{name}"], [f"{name}_product"], name=f"{name}_product"),
        node("Add", [f"b_{name}", f"{name}_product"], [f"{name}_sum"], name=f"{name}_bias"),
        node("Reshape", [f"{name}_sum", "into_heads"], [f"{name}_cut"], name=f"{name}_heads"),
        node("Transpose", [f"{name}_cut"], [f"{name}_turned"], name=f"{name}_turn", perm=perm),
    ]


def _mask() -> list[onnx.NodeProto]:
    """What exporters of BERT write: 0 for words, -10000 for padding, added to the scores."""
    return [
        node("Unsqueeze", ["mask", "axis_1"], ["mask_1"], name="mask_1"),
        node("Unsqueeze", ["mask_1", "axis_2"], ["mask_2"], name="mask_2"),
        node("Cast", ["mask_2"], ["mask_float"], name="mask_float", to=TensorProto.FLOAT),
        node("Sub", ["one", "mask_float"], ["padding"], name="padding"),
        node("Mul", ["padding", "lowest"], ["penalty"], name="penalty"),
        node("Add", ["scaled", "penalty"], ["masked"], name="masked"),
    ]


def _encoder(*, is_masked: bool, memory: str = "h") -> onnx.ModelProto:
    """One block of an encoder, x float32 (2, 6, 8) to y of the same shape.

    Args:
        is_masked: Whether there is an input `mask`, int64 (2, 6).
        memory: What keys and values are made of; `h` for self-attention.
    """
    nodes = [
        node("LayerNormalization", ["x", "scale", "shift"], ["h"], name="norm", axis=-1),
        *_branch("q", "h", [0, 2, 1, 3]),
        *_branch("k", memory, [0, 2, 3, 1]),
        *_branch("v", memory, [0, 2, 1, 3]),
        node("MatMul", ["q_turned", "k_turned"], ["scores"], name="scores"),
        node("Div", ["scores", "root"], ["scaled"], name="scaled"),
        *(_mask() if is_masked else []),
        node("Softmax", ["masked" if is_masked else "scaled"], ["p"], name="softmax", axis=-1),
        node("MatMul", ["p", "v_turned"], ["mixed"], name="mixed"),
        node("Transpose", ["mixed"], ["mixed_turned"], name="turn_back", perm=[0, 2, 1, 3]),
        node("Reshape", ["mixed_turned", "from_heads"], ["joined"], name="join"),
        node("MatMul", ["joined", "w_out"], ["out_product"], name="out_product"),
        node("Add", ["b_out", "out_product"], ["out"], name="out_bias"),
        node("Add", ["out", "h"], ["residual"], name="residual"),
        node("LayerNormalization", ["residual", "scale", "shift"], ["y"], name="last", axis=-1),
    ]
    shape = [2, _WORDS, _WIDTH]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if is_masked:
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.INT64, shape[:2]))
    if memory != "h":
        inputs.append(helper.make_tensor_value_info(memory, TensorProto.FLOAT, shape))
    stored = [
        *(weight(f"w_{name}", _WIDTH, _WIDTH, seed=i) for i, name in enumerate(("q", "k", "v"))),
        *(weight(f"b_{name}", _WIDTH, seed=i) for i, name in enumerate(("q", "k", "v"))),
        weight("w_out", _WIDTH, _WIDTH, seed=9),
        weight("b_out", _WIDTH, seed=9),
        weight("shift", _WIDTH, seed=10),
        numpy_helper.from_array(np.linspace(0.5, 1.5, _WIDTH, dtype=np.float32), "scale"),
        constant("root", _HEAD_SIZE**0.5),
        constant("into_heads", [0, 0, _HEADS, _HEAD_SIZE], np.int64),
        constant("from_heads", [0, 0, _WIDTH], np.int64),
    ]
    if is_masked:
        stored += [
            constant("axis_1", [1], np.int64),
            constant("axis_2", [2], np.int64),
            constant("one", 1.0),
            constant("lowest", -10000.0),
        ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    add_shapes(model)
    return model


def _x() -> Tensor:
    rng = np.random.default_rng(3)
    return rng.normal(size=(2, _WORDS, _WIDTH)).astype(np.float32)


def _difference(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    feeds: Feeds,
    folder: Path,
) -> float:
    return largest_difference(
        [ModelRunner(before, folder / "before.onnx").run(feeds)],
        [ModelRunner(after, folder / "after.onnx").run(feeds)],
    )


def test_an_attention_without_a_mask_becomes_one_node(tmp_path: Path) -> None:
    model = _encoder(is_masked=False)
    result = fuse_transformer(copy_of(model), _SETTINGS, context_of(model, tmp_path, "Attention"))
    kinds = kinds_of(result.model)
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds
    assert result.notes == ("ONNX Runtime's transformer optimizer made 1 Attention.",)
    assert _difference(model, result.model, {"x": _x()}, tmp_path) < 1e-5


@pytest.mark.parametrize(
    "mask",
    [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1]],
    ids=["no padding", "padding last", "padding first", "holes"],
)
def test_an_attention_with_a_mask_becomes_one_node_that_heeds_every_mask(
    tmp_path: Path, mask: list[int]
) -> None:
    model = _encoder(is_masked=True)
    result = fuse_transformer(copy_of(model), _SETTINGS, context_of(model, tmp_path, "Attention"))
    kinds = kinds_of(result.model)
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds
    feeds: Feeds = {"x": _x(), "mask": np.array([mask, [1] * _WORDS], dtype=np.int64)}
    assert _difference(model, result.model, feeds, tmp_path) < 1e-5


def test_an_attention_that_looks_elsewhere_stays_and_the_note_names_it(tmp_path: Path) -> None:
    model = _encoder(is_masked=False, memory="memory")
    result = fuse_transformer(copy_of(model), _SETTINGS, context_of(model, tmp_path, "Attention"))
    assert "Attention" not in kinds_of(result.model)
    assert "Softmax" in kinds_of(result.model)
    assert result.notes == (
        "ONNX Runtime's transformer optimizer made 0 Attention; of 1 attentions it does not know "
        "the chain, and they stay as exported: softmax.",
    )
    feeds = {"x": _x(), "memory": _x()[:, ::-1].copy()}
    assert _difference(model, result.model, feeds, tmp_path) < 1e-5
