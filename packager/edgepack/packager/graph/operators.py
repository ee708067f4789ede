"""Facts of operators, each operator once: `operators.toml` holds edgepack's knowledge.

A provider's own rules stand in its profile, a pass's own with the pass.
"""

from collections.abc import Mapping
from importlib import resources
from typing import Literal

import msgspec
import onnx

from edgepack.decoding import decode_toml


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of an operator; the defaults hold for an unknown operator.

    Attributes:
        weights: Kind of trained constants: of a `product` with the bulk of a network's time, of
            another `layer`, a `norm`'s scale and shift, the rows of a `table`.
        weight, bias: Positions of the inputs that hold a product's or norm's, if constant.
        parameters: Positions of inputs that are settings rather than data: never quantized.
        has_integer_form: False too where its outputs are not floats.
        has_float16_form: False if an attribute states the type, or the operator counts.
        is_read_as_own: Whether integer providers also read the operator from the domain
            com.microsoft.
        one_scale: Whether the operator only moves values, so that a single scale serves input 0 and
            every output, and providers can leave out the conversion.
        moves_integers: Moved inputs with integers in a quantized source model.
        cuts: Whether exporters use the operator to cut an output out of a larger tensor.
        indices: Position of the output that tells where values stood.
        by_value: Whether each value is computed from the values at its place.
        passes_factor: Whether a positive factor of the input is a factor of the output.
        rectifies: Whether the operator is an activation that saturation at the end of a range can
            replace.
        takes_rectifier: Whether a following rectifier is computed together with the operator.
        selects: Whether the operator ranks or picks, so that rows of its outputs may change places.
        draws: Whether the operator draws random numbers, also if only in training.
        reads_shape: Whether the operator reads the sizes of its input and no values.
        is_conversion: Whether the operator converts between floats and integers with a scale.
        is_control_flow: Whether the operator has bodies.
    """

    weights: Literal["", "product", "layer", "norm", "table"] = ""
    weight: int | None = None
    bias: int | None = None
    parameters: tuple[int, ...] = ()
    has_integer_form: bool = True
    has_float16_form: bool = True
    is_read_as_own: bool = False
    one_scale: bool = False
    moves_integers: Literal["", "first", "all"] = ""
    cuts: bool = False
    indices: int | None = None
    by_value: bool = False
    passes_factor: bool = False
    rectifies: bool = False
    takes_rectifier: bool = False
    selects: bool = False
    draws: bool = False
    reads_shape: bool = False
    is_conversion: Literal["", "pair", "dynamic"] = ""
    is_control_flow: bool = False


_FILE = resources.files("edgepack.packager.graph") / "operators.toml"
ROWS = decode_toml(_FILE.read_bytes(), dict[str, Operator])
OPERATORS: Mapping[str, Operator] = {
    name: row for names, row in ROWS.items() for name in names.split()
}
_UNNAMED = Operator()
_INTEGER_PREFIXES = (
    *("QLinear", "QGemm", "QAttention", "DynamicQuantize", "MatMulInteger", "MatMulNBits"),
)
_INTEGER_SUFFIX = "Integer"


def facts(op_type: str) -> Operator:
    """Return the facts of an operator, by its type."""
    return OPERATORS.get(op_type, _UNNAMED)


def tells_places(node: onnx.NodeProto) -> bool:
    """Return True if a node gives indices next to values."""
    indices = facts(node.op_type).indices
    return indices is not None and len(node.output) > indices


def is_integer_operator(op_type: str) -> bool:
    """Return True if an operator computes in integers by itself, as its name says (`QLinearConv`
    …).
    """
    return op_type.startswith(_INTEGER_PREFIXES) or op_type.endswith(_INTEGER_SUFFIX)


def weight_axis(op_type: str, rank: int, *, is_transposed: bool, groups: int) -> int | None:
    """Return axis of the output channels of a weight.

    Args:
        op_type: The operator that reads the weight.
        rank: Number of axes of the weight.
        is_transposed: For Gemm: whether `transB` is set.
        groups: For a convolution: `group`. A transposed convolution with several groups has the
            channels of a single group on that axis, and no axis with all channels.

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
