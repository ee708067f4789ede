"""Recognition of GELU and HardSwish written as formulas, and fusion to a single operator.

    gelu(x)      = 0.5 * x * (1 + erf(x / sqrt(2)))
    fast_gelu(x) = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))
    hardswish(x) = x * clip(x + 3, 0, 6) / 6

The factors come in any order: `0.5 * (x * (1 + e))`, `x * (0.5 * (1 + e))`, `(0.5 * x) * (1 + e)`;
the argument of the error function or the hyperbolic tangent is compared by its values.

For the written-out HardSwish, an integer device rounds four times instead of once.
"""

from collections.abc import Callable

import numpy as np
import onnx

from edgepack.packager.graph.edits import MICROSOFT, import_domain
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.node_chains import (
    Chain,
    as_one,
    find_chains,
    is_near,
    only_reader,
    other_input,
    producer,
    scalar,
    shorten,
)
from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.profiles.schema import Limits
from edgepack.tasks.arrays import Floats

_FIRST_OPSET_WITH_GELU = 20

_POINTS = np.linspace(-4.0, 4.0, 33)
"""Where two formulas are compared: further out both are 0 or x."""

_ARITHMETIC: dict[str, Callable[..., Floats]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
}
_MOST_NODES = 8
"""Of the argument: x + 0.044715 * x ** 3 has five, times a factor."""

_Written = tuple[str, tuple[onnx.NodeProto, ...]]
"""A GELU as it was written: its input, and its nodes, the last of which makes its output."""


_FIRST_OPSET = 14


def fuse_gelu(model: onnx.ModelProto, limits: Limits) -> str:
    """Replace each written-out GELU by a single node, if the provider reads the operator.

    Args:
        model: The model; changed in place.
        limits: Limits of the provider's input.

    Returns:
        A note of the replacements, or "" without a GELU.
    """
    is_standard = opset_of(model) >= _FIRST_OPSET_WITH_GELU
    domain = "" if is_standard else MICROSOFT
    chains = _find(model.graph, "Erf", lambda x: x / np.sqrt(2.0), "Gelu", domain)
    if chains and not is_standard and not limits.reads_microsoft("Gelu"):
        return (
            f"{len(chains)} GELU stay as exported: Gelu needs opset {_FIRST_OPSET_WITH_GELU}, or a "
            "provider that reads ONNX Runtime's own."
        )
    return _put(model, chains, "GELU")


def fuse_fast_gelu(model: onnx.ModelProto) -> str:
    """Replace each GELU that is written out by its tanh formula by ONNX Runtime's own operator.

    Args:
        model: The model; changed in place. Only 32-bit floats have the operator everywhere.

    Returns:
        A note of the replacements, or "" without any.
    """

    def argument(x: Floats) -> Floats:
        return np.asarray(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))

    found = _find(model.graph, "Tanh", argument, "FastGelu", MICROSOFT)
    index = index_graph(model.graph)
    chains = [chain for chain in found if index.is_float(chain.by.input[0])]
    return _put(model, chains, "GELU by the tanh formula")


def _put(model: onnx.ModelProto, chains: list[Chain], words: str) -> str:
    if not chains:
        return ""
    import_domain(model, chains[0].by.domain)
    shorten(model.graph, chains)
    return f"{len(chains)} {words} became one node each."


def _find(
    graph: onnx.GraphProto,
    op_type: str,
    argument: Callable[[Floats], Floats],
    fused: str,
    domain: str,
) -> list[Chain]:
    """Return each GELU around a node of that type, of which the formula takes that argument."""
    wanted = argument(_POINTS)

    def match(index: GraphIndex, node: onnx.NodeProto) -> Chain | None:
        found = _match(index, node, wanted) if node.op_type == op_type else None
        return as_one(fused, [found[0]], found[1], domain=domain) if found else None

    return find_chains(graph, match)


def _match(index: GraphIndex, node: onnx.NodeProto, wanted: Floats) -> _Written | None:
    plus = only_reader(index, node.output[0], "Add")
    if plus is None or not is_near(scalar(index, other_input(plus, node.output[0])), 1.0):
        return None
    product = _product(index, plus)
    if product is None:
        return None
    source, factors = product
    if index.shapes.get(source) != index.shapes.get(factors[-1].output[0]):
        return None
    before: list[onnx.NodeProto] = []
    with np.errstate(all="ignore"):
        got = _evaluate(index, node.input[0], source, before)
    if got is None or not np.allclose(got, wanted, rtol=1e-3, atol=1e-6):
        return None
    return source, (*before, node, plus, *factors)


def _product(index: GraphIndex, plus: onnx.NodeProto) -> _Written | None:
    """Return the factors of a sum: one half and the source, in any order."""
    first = only_reader(index, plus.output[0], "Mul")
    if first is None:
        return None
    other = other_input(first, plus.output[0])
    half = producer(index, other, "Mul")
    if half is not None and only_reader(index, other, "Mul") is not None:
        for source, factor in (half.input, half.input[::-1]):
            if is_near(scalar(index, factor), 0.5):
                return source, (half, first)
    last = only_reader(index, first.output[0], "Mul")
    if last is None:
        return None
    factors = (other, other_input(last, first.output[0]))
    for source, factor in (factors, factors[::-1]):
        if is_near(scalar(index, factor), 0.5):
            return source, (first, last)
    return None


def _evaluate(
    index: GraphIndex, name: str, source: str, nodes: list[onnx.NodeProto]
) -> Floats | None:
    """Return a tensor's values at the points of the source; None if other inputs matter.

    Args:
        index: The graph.
        name: The tensor.
        source: The tensor that takes the points.
        nodes: Receives the computing nodes.
    """
    if name == source:
        return _POINTS
    constant = scalar(index, name)
    if constant is not None:
        return np.full_like(_POINTS, constant)
    node = producer(index, name, *_ARITHMETIC)
    is_inside = len(index.consumers[name]) == 1 and name not in {*index.outputs, *index.body_reads}
    if node is None or not is_inside or len(nodes) >= _MOST_NODES:
        return None
    nodes.append(node)
    values = [_evaluate(index, read, source, nodes) for read in node.input]
    left, right = values
    return None if left is None or right is None else _ARITHMETIC[node.op_type](left, right)


def fuse_hard_swish(model: onnx.ModelProto) -> str:
    """Replace each written-out HardSwish by a single node.

    Args:
        model: The model; changed in place.

    Returns:
        A note of the replacements, or "" without a HardSwish or for an opset without the operator.
    """
    chains = find_chains(model.graph, _match_hard_swish)
    if not chains or opset_of(model) < _FIRST_OPSET:
        return ""
    shorten(model.graph, chains)
    return f"{len(chains)} HardSwish became one node each."


def _match_hard_swish(index: GraphIndex, plus: onnx.NodeProto) -> Chain | None:
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
