"""Masks of padding: a graph of fixed size computes what the graph of free size computes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.packager.stages.fixed_stages import FixedStage, find_difference
from edgepack.packager.stages.padding_mask import UnmaskableError, add_padding_mask
from edgepack.packager.stages.pipeline_file import StageSource
from edgepack.tasks.arrays import Singles

_GRAPH = """
<ir_version: 8, opset_import: ["" : OPSET]>
agraph (float[batch, 3, height, width] x) => (float[batch, a, b] y, float[batch, c, d, e] map)
<float[6, 3, 3, 3] w, float[6] v, float[6, 1, 5, 5] u, float[6, 6, 2, 2] t,
 int64[3] flat = {0, 6, -1}, float[4] twice = {1.0, 1.0, 2.0, 2.0}
 , float[4] half = {1.0, 1.0, 0.5, 0.5}>
{
  first = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, v)
  share = GlobalAveragePool (first)
  scaled = Mul (first, share)
  wide = Conv <pads = [2, 2, 2, 2], group = 6> (scaled, u, v)
  bent = HardSigmoid (wide)
  POOL
  up = Resize <mode = "nearest"> (small, , twice)
  back = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (small, t)
  map = Add (up, back)
  tokens = Reshape (small, flat)
  turned = Transpose <perm = [0, 2, 1]> (tokens)
  scores = MatMul (turned, tokens)
  shares = Softmax <axis = 2> (scores)
  y = MatMul (shares, turned)
}
"""
_POOL = "small = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (bent)"
_PADDED = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"


def _model(pool: str = _POOL, opset: int = 13) -> onnx.ModelProto:
    model = parser.parse_model(_GRAPH.replace("POOL", pool).replace("OPSET", str(opset)))
    for node in model.graph.node:
        node.name = node.output[0]  # As some exporters write it.
    rng = np.random.default_rng(5)
    for name, shape in (("w", (6, 3, 3, 3)), ("v", (6,)), ("u", (6, 1, 5, 5)), ("t", (6, 6, 2, 2))):
        values = rng.normal(0, 0.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def _run(model: onnx.ModelProto, feeds: dict[str, Singles]) -> list[Singles]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, feeds))


@pytest.mark.parametrize(
    ("opset", "pool"), [(13, _POOL), (17, _POOL), (17, f"small = MaxPool <{_PADDED}> (bent)")]
)
@pytest.mark.parametrize("width", [64, 63, 40, 9])
def test_masked_graph_computes_what_the_free_graph_computes(
    width: int, opset: int, pool: str
) -> None:
    free = _model(pool, opset=opset)
    fixed = add_padding_mask(free, "x", (1, 3, 4, 64), (3,))
    onnx.checker.check_model(fixed)
    x = np.random.default_rng(width).normal(0, 1, (1, 3, 4, width)).astype(np.float32)
    padded, mask = np.zeros((1, 3, 4, 64), np.float32), np.zeros((1, 1, 1, 64), np.float32)
    padded[..., :width], mask[..., :width] = x, 1
    expected = _run(free, {"x": x})
    for want, got in zip(expected, _run(fixed, {"x": padded, "x_mask": mask}), strict=True):
        inside = tuple(slice(0, size) for size in want.shape)
        np.testing.assert_allclose(got[inside], want, rtol=1e-3, atol=1e-4)
        got[inside] = 0
        assert not got.any()
    plain = _run(free, {"x": padded})
    differs = np.abs(plain[0][:, : expected[0].shape[1]] - expected[0]).max() > 1e-2
    assert differs == (width < 63), "without a mask, padding counts"


def test_masks_hide_padding_below_and_to_the_right() -> None:
    free = _model("small = Relu (bent)")
    del free.graph.node[9:], free.graph.output[0]
    fixed = add_padding_mask(free, "x", (1, 3, 32, 64), (2, 3))
    x = np.random.default_rng(1).normal(0, 1, (1, 3, 16, 40)).astype(np.float32)
    padded, mask = np.zeros((1, 3, 32, 64), np.float32), np.zeros((1, 1, 32, 64), np.float32)
    padded[..., :16, :40], mask[..., :16, :40] = x, 1
    (want,), (got,) = _run(free, {"x": x}), _run(fixed, {"x": padded, "x_mask": mask})
    np.testing.assert_allclose(got[..., :16, :40], want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("pool", "named"),
    [
        (f"small = MaxPool <{_PADDED}> (wide)", "MaxPool 'small' pads its input"),
        (f"small = AveragePool <{_PADDED}> (bent)", "AveragePool 'small' pads its input"),
        ("small = AveragePool <kernel_shape = [2, 2], ceil_mode = 1> (bent)", "rounds sizes up"),
        ('small = Resize <mode = "linear"> (bent, , half)', "mixes neighbours"),
    ],
)
def test_operator_that_cannot_hide_padding_is_named(pool: str, named: str) -> None:
    with pytest.raises(UnmaskableError, match=named):
        add_padding_mask(_model(pool), "x", (1, 3, 4, 64), (3,))


def test_mask_with_a_hole_is_found_on_samples(tmp_path: Path) -> None:
    free, shape = _model(), (1, 3, 4, 64)
    path = tmp_path / "free.onnx"
    onnx.save(free, path)
    stage = StageSource(name="read", path=path, given=path, shapes={"x": shape})
    mask = np.zeros((1, 1, 1, 64), np.float32)
    mask[..., :48] = 1
    x = np.random.default_rng(3).normal(0, 1, shape).astype(np.float32) * mask
    sample = tmp_path / "0.npz"
    sample.write_bytes(encode_arrays({"x": x, "x_mask": mask}))
    masked = add_padding_mask(free, "x", shape, (3,))
    fixed = FixedStage(path=tmp_path / "masked.onnx", shapes={}, mask={"x_mask": mask.shape})
    onnx.save(masked, fixed.path)
    assert find_difference(stage, fixed, [sample]) == ""
    holes = [node for node in masked.graph.node if "/Mul-" in node.name or "/Add-" in node.name]
    holes = [node for node in holes if not node.input[0].startswith("x_mask")]
    assert len(holes) > 3
    for node in holes:
        spoiled = onnx.ModelProto.FromString(masked.SerializeToString())
        (hole,) = (one for one in spoiled.graph.node if one.name == node.name)
        hole.op_type = "Identity"
        del hole.input[1:]
        onnx.save(spoiled, fixed.path)
        assert find_difference(stage, fixed, [sample]).startswith("output "), node.name
