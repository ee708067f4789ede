"""Masks of padding: a graph of fixed size computes what the graph of free size computes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from edgepack.packager.stages.padding_mask import UnmaskableError, add_padding_mask
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


def _model(pool: str = _POOL, opset: int = 13) -> onnx.ModelProto:
    model = parser.parse_model(_GRAPH.replace("POOL", pool).replace("OPSET", str(opset)))
    rng = np.random.default_rng(5)
    for name, shape in (("w", (6, 3, 3, 3)), ("v", (6,)), ("u", (6, 1, 5, 5)), ("t", (6, 6, 2, 2))):
        values = rng.normal(0, 0.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def _run(model: onnx.ModelProto, feeds: dict[str, Singles]) -> list[Singles]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, feeds))


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("width", [64, 63, 40, 9])
def test_masked_graph_computes_what_the_free_graph_computes(width: int, opset: int) -> None:
    free = _model(opset=opset)
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
        ("small = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (bent)", "MaxPool"),
        ("small = AveragePool <kernel_shape = [2, 2], ceil_mode = 1> (bent)", "rounds sizes up"),
        ('small = Resize <mode = "linear"> (bent, , half)', "mixes neighbours"),
    ],
)
def test_operator_that_cannot_hide_padding_is_named(pool: str, named: str) -> None:
    with pytest.raises(UnmaskableError, match=named):
        add_padding_mask(_model(pool), "x", (1, 3, 4, 64), (3,))
