"""What quantization has to know of operators: roles of inputs, and who must share a scale."""

from collections.abc import Mapping

COMPUTE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that dominate the time of a network, and have weights."""

OWN_WITH_INTEGER_FORM = frozenset({"Gelu"})
"""Operators of ONNX Runtime's own (com.microsoft) that integer providers read."""

NORMALIZATIONS = frozenset({"LayerNormalization", "InstanceNormalization", "BatchNormalization"})

NEVER = frozenset(
    {
        *("If", "Loop", "Scan", "Cast", "CastLike", "Shape", "Size", "Constant", "OneHot"),
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "IsNaN", "IsInf"),
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Range"),
        *("Multinomial", "NonMaxSuppression", "ConstantOfShape", "EyeLike", "Bernoulli"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "NonZero"),
        *("ArgMax", "ArgMin", "Dropout", "LSTM", "GRU", "RNN"),
    }
)
"""Operators that have no integer form, or whose outputs are no floats."""

MOVES_DATA = frozenset(
    {
        *("MaxPool", "GlobalMaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten"),
        *("Slice", "Split", "Gather", "GatherElements", "GatherND", "Expand", "Tile", "TopK"),
        *("DepthToSpace", "SpaceToDepth", "Identity", "Pad", "Resize", "ReduceMax", "ReduceMin"),
    }
)
"""Operators that only move values: input 0 and every output share one scale, so that providers
can leave out the conversion."""

RECTIFIERS = frozenset({"Relu", "Clip"})
"""Activations that saturation can take over when the output's range ends where they clip."""

RECTIFIED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "Sub", "Div"})
"""Operators after which a rectifier is computed together with them."""

_PLAIN_INPUTS: Mapping[str, frozenset[int]] = {
    "Clip": frozenset({1, 2}),
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
    "Pad": frozenset({2}),
    "TopK": frozenset({1}),
    "BatchNormalization": frozenset({1, 2, 3, 4}),
}
"""Inputs that stay as they are, because they are parameters rather than data."""


def is_parameter(op_type: str, position: int) -> bool:
    """Whether an input is a parameter that is never quantized."""
    return position in _PLAIN_INPUTS.get(op_type, frozenset())


def weight_position(op_type: str) -> int | None:
    """Which input holds weights, if it is constant; None for operators without weights."""
    return 1 if op_type in COMPUTE or op_type in NORMALIZATIONS else None


def bias_position(op_type: str) -> int | None:
    """Which input holds a bias; None for operators without one."""
    if op_type in COMPUTE or op_type in ("LayerNormalization", "InstanceNormalization"):
        return None if op_type == "MatMul" else 2
    return None


def weight_axis(op_type: str, rank: int, *, is_transposed: bool, groups: int) -> int | None:
    """Axis of the output channels of a weight.

    Args:
        op_type: The operator that reads the weight.
        rank: Number of axes of the weight.
        is_transposed: For Gemm: whether `transB` is set.
        groups: For a convolution: `group`. A transposed one of several has the channels of one
            group on that axis, and no axis with all of them.

    Returns:
        The axis, or None where scales per channel cannot be expressed.
    """
    if op_type == "Conv":
        return 0
    if op_type == "ConvTranspose":
        return 1 if groups == 1 else None
    if op_type == "Gemm":
        return 0 if is_transposed else 1
    if op_type == "MatMul" and rank == 2:
        return 1
    return None
