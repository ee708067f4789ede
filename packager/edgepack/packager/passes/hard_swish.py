"""Recognition of HardSwish written as its formula, and fusion to a single operator.

    hardswish(x) = x * clip(x + 3, 0, 6) / 6

For the written-out form, an integer device rounds four times instead of once.
"""

import onnx

from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.node_chains import (
    Chain,
    as_one,
    find_chains,
    is_near,
    only_reader,
    other_input,
    scalar,
    shorten,
)
from edgepack.packager.graph.queries import GraphIndex

_FIRST_OPSET = 14


def fuse_hard_swish(model: onnx.ModelProto) -> str:
    """Replace each written-out HardSwish by a single node.

    Args:
        model: The model; changed in place.

    Returns:
        A note of the replacements, or "" without a HardSwish or for an opset without the operator.
    """
    chains = find_chains(model.graph, _match)
    if not chains or opset_of(model) < _FIRST_OPSET:
        return ""
    shorten(model.graph, chains)
    return f"{len(chains)} HardSwish became one node each."


def _match(index: GraphIndex, plus: onnx.NodeProto) -> Chain | None:
    """Return the chain that starts at this Add."""
    if plus.op_type != "Add":
        return None
    constant = next((name for name in plus.input if is_near(scalar(index, name), 3.0)), "")
    source = other_input(plus, constant)
    clip = only_reader(index, plus.output[0], "Clip") if constant else None
    if clip is None or len(clip.input) != 3:
        return None
    if scalar(index, clip.input[1]) != 0.0 or not is_near(scalar(index, clip.input[2]), 6.0):
        return None
    first = only_reader(index, clip.output[0], "Mul", "Div")
    last = only_reader(index, first.output[0], "Mul", "Div") if first is not None else None
    if first is None or last is None:
        return None
    steps = [(first, clip.output[0]), (last, first.output[0])]
    is_scaled = [_divides_by_six(index, node, name) for node, name in steps]
    is_gated = [node.op_type == "Mul" and other_input(node, name) == source for node, name in steps]
    if [*is_scaled, *is_gated] in ([True, False, False, True], [False, True, True, False]):
        return as_one("HardSwish", [source], (plus, clip, first, last))
    return None


def _divides_by_six(index: GraphIndex, node: onnx.NodeProto, name: str) -> bool:
    factor = scalar(index, other_input(node, name))
    if node.op_type == "Div":
        return bool(node.input[0] == name) and is_near(factor, 6.0)
    return is_near(factor, 1.0 / 6.0)
