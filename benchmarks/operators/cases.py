"""Small graphs of the operators in real models, alone and in common combinations.

A graph is drawn for several sizes, since a simulator may be wrong at a single size: for 9 to 12
rows, or for 16.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.operators.drawing import Constant, Drawing, Size

Draw = Callable[[Drawing, str], str]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph at a size.

    Attributes:
        name: Its operators.
        size: Of its input, without the batch.
        draw: Draws the graph behind an input.
        values: Values of the input: around 0, or above 0.
    """

    name: str
    size: Size
    draw: Draw
    values: Literal["normal", "positive"]

    def model(self) -> onnx.ModelProto:
        """Return the float model."""
        drawing = Drawing((1, *self.size))
        return drawing.model(self.draw(drawing, "x"))


_MAPS: tuple[Size, ...] = ((8, 10, 10), (4, 5, 7), (16, 16, 33), (8, 13, 12))
_ROWS: tuple[Size, ...] = ((7, 32), (16, 24), (10, 64), (1, 16))


def _conv(kernel: int, *, depthwise: bool = False, **attributes: object) -> Draw:
    def draw(g: Drawing, x: str) -> str:
        channels = g.shape[1]
        group = channels if depthwise else 1
        weight = g.weight(channels, channels // group, kernel, kernel)
        pads = [kernel // 2 * max(1, *_dilations(attributes))] * 4
        return g("Conv", x, weight, g.weight(channels), group=group, pads=pads, **attributes)

    return draw


def _dilations(attributes: Mapping[str, object]) -> tuple[int, int]:
    given = attributes.get("dilations")
    return (given[0], given[1]) if isinstance(given, list) else (1, 1)


def _after(first: Draw, *then: Draw) -> Draw:
    def draw(g: Drawing, x: str) -> str:
        for one in (first, *then):
            x = one(g, x)
        return x

    return draw


def _of(op_type: str, *constants: Constant, **attributes: object) -> Draw:
    return lambda g, x: g(op_type, x, *constants, **attributes)


def _beside(op_type: str, other: Draw) -> Draw:
    return lambda g, x: g(op_type, x, other(g, x))


def _ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _resize(mode: str, how: str, rounding: str, *scales: float) -> Draw:
    given = np.array([1.0, 1.0, *scales], dtype=np.float32)
    more = {"nearest_mode": rounding} if rounding else {}
    return lambda g, x: g(
        "Resize", x, "", given, mode=mode, coordinate_transformation_mode=how, **more
    )


def _product(width: int) -> Draw:
    return lambda g, x: g("MatMul", x, g.weight(width, g.shape[-1]).T.copy())


def _pooled(op_type: str, kernel: int, **attributes: object) -> Draw:
    return _of(op_type, kernel_shape=[kernel, kernel], **attributes)


def _squeeze(gate: Draw) -> Draw:
    def draw(g: Drawing, x: str) -> str:
        channels = g.shape[1]
        small = g("Relu", g("Conv", g("GlobalAveragePool", x), g.weight(4, channels, 1, 1)))
        return g("Mul", x, gate(g, g("Conv", small, g.weight(channels, 4, 1, 1))))

    return draw


def _attention(g: Drawing, x: str) -> str:
    rows, width = g.shape[1:]
    heads = (1, rows, 2, width // 2)

    def head(*turned: int) -> str:
        return g("Transpose", g("Reshape", _product(width)(g, x), _ints(*heads)), perm=turned)

    scores = g("Mul", g("MatMul", head(0, 2, 1, 3), head(0, 2, 3, 1)), float(heads[3] ** -0.5))
    mask = np.triu(np.full((rows, rows), -32.0, dtype=np.float32), 1)
    mixed = g("MatMul", g("Softmax", g("Add", scores, mask), axis=-1), head(0, 2, 1, 3))
    return g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), _ints(1, rows, width))


def _normalized(g: Drawing, x: str) -> str:
    centred = g("Sub", x, g("ReduceMean", x, axes=[-1], keepdims=1))
    variance = g("ReduceMean", g("Mul", centred, centred), axes=[-1], keepdims=1)
    return g("Div", centred, g("Sqrt", g("Add", variance, 1e-5)))


def _shuffled(g: Drawing, x: str) -> str:
    _, channels, rows, columns = g.shape
    parted = g("Reshape", x, _ints(1, 2, channels // 2, rows, columns))
    return g("Reshape", g("Transpose", parted, perm=[0, 2, 1, 3, 4]), _ints(*g.shape))


def _halves_of_channels(g: Drawing, x: str) -> str:
    half = g.shape[1] // 2
    first, second = g.several(2, "Split", x, _ints(half, half), axis=1)
    return g("Concat", second, g("Relu", first), axis=1)


def _rescaled(g: Drawing, x: str) -> str:
    ones = np.linspace(0.5, 1.5, g.shape[1]).astype(np.float32)
    return g("InstanceNormalization", x, ones, ones - 1)


_SIGMOID, _TANH = _of("Sigmoid"), _of("Tanh")
_ONE, _THREE = _conv(1), _conv(3)

_OF_MAPS: Mapping[str, Draw] = {
    "Conv 1x1": _ONE,
    "Conv 3x3": _THREE,
    "Conv 3x3 stride 2": _conv(3, strides=[2, 2]),
    "Conv 3x3 dilated": _conv(3, dilations=[2, 2]),
    "Conv 5x5 depthwise": _conv(5, depthwise=True),
    "ConvTranspose": lambda g, x: g(
        "ConvTranspose", x, g.weight(g.shape[1], 4, 4, 4), strides=[2, 2], pads=[1] * 4
    ),
    "Conv Relu Conv": _after(_THREE, _of("Relu"), _THREE),
    "Conv Clip Conv": _after(_ONE, _of("Clip", 0.0, 6.0), _conv(3, depthwise=True)),
    "x + Conv": _beside("Add", _THREE),
    **{
        f"Conv {name}": _after(_ONE, _of(name))
        for name in (
            *("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu"),
            *("Softplus", "Exp", "Abs", "Neg", "Sin", "GlobalAveragePool", "GlobalMaxPool"),
        )
    },
    "Conv SiLU": _after(_ONE, _beside("Mul", _SIGMOID)),
    "Conv Mish": _after(_ONE, _beside("Mul", _after(_of("Softplus"), _TANH))),
    "Conv PRelu": _after(_ONE, lambda g, x: g("PRelu", x, g.weight(g.shape[1], 1, 1))),
    "squeeze, Sigmoid": _squeeze(_SIGMOID),
    "squeeze, HardSigmoid": _squeeze(_of("HardSigmoid", alpha=1 / 6)),
    "HardSigmoid of little": _after(_of("Mul", 0.1), _of("HardSigmoid")),
    "Softmax of channels": _of("Softmax", axis=1),
    "InstanceNormalization": _rescaled,
    "MaxPool": _pooled("MaxPool", 3, strides=[2, 2], pads=[1] * 4),
    "MaxPool ceil": _pooled("MaxPool", 3, strides=[2, 2], ceil_mode=1),
    "MaxPool 5 stride 1": _pooled("MaxPool", 5, pads=[2] * 4),
    "AveragePool": _pooled("AveragePool", 2, strides=[2, 2]),
    "AveragePool padded": _pooled("AveragePool", 3, pads=[1] * 4),
    "AveragePool counts padding": _pooled("AveragePool", 3, pads=[1] * 4, count_include_pad=1),
    "AveragePool ceil": _pooled("AveragePool", 3, strides=[2, 2], ceil_mode=1),
    "AveragePool ceil padded": _pooled("AveragePool", 3, strides=[2, 2], ceil_mode=1, pads=[1] * 4),
    "ReduceMean of the map": _of("ReduceMean", axes=[2, 3]),
    "ReduceMean of channels": _of("ReduceMean", axes=[1]),
    "ReduceMax of channels": _of("ReduceMax", axes=[1]),
    "channels by halves": _halves_of_channels,
    "channels shuffled": _shuffled,
    "Slice of every second": _of("Slice", _ints(0, 1), _ints(99, 99), _ints(2, 3), _ints(2, 2)),
    "Slice backwards": _of("Slice", _ints(-1), _ints(-99), _ints(3), _ints(-1)),
    **{
        f"Pad {mode}": _of("Pad", _ints(0, 0, 1, 2, 0, 0, 2, 1), mode=mode)
        for mode in ("constant", "reflect", "edge")
    },
    "DepthToSpace": _of("DepthToSpace", blocksize=2),
    "Gather of rows": _of("Gather", _ints(3, 0, 0), axis=2),
    "CumSum of channels": _of("CumSum", np.array(1)),
    "Tile": _of("Tile", _ints(1, 2, 1, 2)),
    "2 ** x": lambda g, x: g("Pow", 2.0, x),
    **{
        f"Resize {mode} {how} {rounding}".rstrip() + f" {rows:g}x{columns:g}": _resize(
            mode, how, rounding, rows, columns
        )
        for rows, columns in ((2.0, 2.0), (1.5, 0.5))
        for how in ("half_pixel", "asymmetric", "align_corners")
        for mode, roundings in (
            ("nearest", ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
            ("linear", ("",)),
            ("cubic", ("",)),
        )
        for rounding in roundings
    },
}

_OF_ROWS: Mapping[str, Draw] = {
    "MatMul": _product(12),
    "MatMul of it by itself": lambda g, x: g("MatMul", x, g("Transpose", x, perm=[0, 2, 1])),
    "MatMul Add": lambda g, x: g("Add", _product(12)(g, x), g.weight(12)),
    **{
        f"MatMul {name}": _after(_product(12), _of(name))
        for name in ("Relu", "Sigmoid", "Tanh", "Softplus", "Exp")
    },
    "gated by Sigmoid": lambda g, x: g("Mul", _product(8)(g, x), g("Sigmoid", _product(8)(g, x))),
    "Tanh times Sigmoid": lambda g, x: g("Mul", g("Tanh", x), g("Sigmoid", x)),
    "Gelu": _after(
        _beside("Mul", _after(_of("Div", 2**0.5), _of("Erf"), _of("Add", 1.0))), _of("Mul", 0.5)
    ),
    "attention": _attention,
    "normalization spelled out": _normalized,
    "LayerNormalization": lambda g, x: g(
        "LayerNormalization", x, np.ones(g.shape[-1], np.float32), g.weight(g.shape[-1])
    ),
    "Softmax": _of("Softmax", axis=-1),
    "LogSoftmax": _of("LogSoftmax", axis=-1),
    "normalized to length 1": _beside("Div", _of("ReduceL2", axes=[-1])),
    "ReduceL2 of much": _after(_of("Mul", 100.0), _of("ReduceL2", axes=[-1])),
    "Conv 1-D": lambda g, x: g("Conv", x, g.weight(6, g.shape[1], 3), pads=[1, 1]),
    "AveragePool 1-D": _of("AveragePool", kernel_shape=[3], strides=[2], pads=[1, 1]),
    "ReduceMean of rows": _of("ReduceMean", axes=[1]),
    "row by column": lambda g, x: g(
        "Mul", g("ReduceMean", x, axes=[1]), g("ReduceMean", x, axes=[2])
    ),
    "CumSum": _of("CumSum", np.array(1)),
    "GatherElements": _of("GatherElements", np.zeros((1, 1, 4), np.int64), axis=2),
    "ScatterElements": lambda g, x: g(
        "ScatterElements",
        x,
        np.zeros((1, 1, g.shape[2]), np.int64),
        g.weight(1, 1, g.shape[2]),
        axis=1,
    ),
    "Expand": lambda g, x: g("Expand", g("ReduceMean", x, axes=[1]), _ints(*g.shape)),
}

_OF_POSITIVE: Mapping[str, Draw] = {
    "Sqrt": _of("Sqrt"),
    "Log": _of("Log"),
    "Log of 1 + x": _after(_of("Add", 1.0), _of("Log")),
    "Reciprocal": _of("Reciprocal"),
    "Reciprocal of little": _after(_of("Mul", 0.1), _of("Reciprocal")),
    "Pow 1.5": _of("Pow", 1.5),
    "1 / Sqrt": lambda g, x: g("Div", 1.0, g("Sqrt", x)),
    "share of the sum": lambda g, x: g("Div", x, g("ReduceSum", x, _ints(-1))),
}


def cases() -> tuple[Case, ...]:
    """Return every graph at every size."""
    return (
        *(_at(name, size, draw) for name, draw in _OF_MAPS.items() for size in _MAPS),
        *(_at(name, size, draw) for name, draw in _OF_ROWS.items() for size in _ROWS),
        *(
            Case(name=name, size=size, draw=draw, values="positive")
            for name, draw in _OF_POSITIVE.items()
            for size in _ROWS
        ),
    )


def _at(name: str, size: Size, draw: Draw) -> Case:
    return Case(name=name, size=size, draw=draw, values="normal")
