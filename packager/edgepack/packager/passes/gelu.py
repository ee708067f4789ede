"""Finds GELU where it was exported as its formula, and makes it one operator again.

    gelu(x)      = 0.5 * x * (1 + erf(x / sqrt(2)))
    fast_gelu(x) = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))

The factors come in any order: `0.5 * (x * (1 + e))`, `x * (0.5 * (1 + e))`, `(0.5 * x) * (1 + e)`;
what the error function or the hyperbolic tangent is taken of is compared by its values.
"""

from collections.abc import Callable

import msgspec
import numpy as np
import onnx
from onnx import helper

from edgepack.packager.graph.edits import MICROSOFT, import_domain
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.node_chains import (
    beside,
    is_near,
    only_reader,
    producer,
    replace,
    scalar,
)
from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.profiles.schema import Limits
from edgepack.packager.tensors.arrays import Floats

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


class _Chain(msgspec.Struct, frozen=True, kw_only=True):
    """A GELU as it was written: input, output, and nodes, the last of which makes the output."""

    source: str
    output: str
    nodes: tuple[str, ...]


def fuse_gelu(model: onnx.ModelProto, limits: Limits) -> str:
    """Replaces each GELU that is written out by one node, where the provider reads that.

    Args:
        model: The model; changed in place.
        limits: What the provider reads.

    Returns:
        A note of what was done, or "" where there is no GELU.
    """
    chains = _find(model.graph, "Erf", lambda x: x / np.sqrt(2.0))
    if not chains:
        return ""
    if opset_of(model) >= _FIRST_OPSET_WITH_GELU:
        domain = ""
    elif limits.reads_microsoft("Gelu"):
        domain = MICROSOFT
    else:
        return (
            f"{len(chains)} GELU stay as exported: Gelu needs opset {_FIRST_OPSET_WITH_GELU}, or a "
            "provider that reads ONNX Runtime's own."
        )
    _put(model, chains, "Gelu", domain)
    return f"{len(chains)} GELU became one node each."


def fuse_fast_gelu(model: onnx.ModelProto) -> str:
    """Replaces each GELU that is written out by its tanh formula by ONNX Runtime's own operator.

    Args:
        model: The model; changed in place. Only 32-bit floats have the operator everywhere.

    Returns:
        A note of what was done, or "" where there is none.
    """

    def argument(x: Floats) -> Floats:
        values: Floats = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
        return values

    index = index_graph(model.graph)
    chains = [
        chain for chain in _find(model.graph, "Tanh", argument) if index.is_float(chain.source)
    ]
    if not chains:
        return ""
    _put(model, chains, "FastGelu", MICROSOFT)
    return f"{len(chains)} GELU by the tanh formula became one node each."


def _put(model: onnx.ModelProto, chains: list[_Chain], op_type: str, domain: str) -> None:
    import_domain(model, domain)
    replace(
        model.graph,
        {name for chain in chains for name in chain.nodes},
        [
            (
                chain.nodes[-1],
                helper.make_node(
                    op_type,
                    [chain.source],
                    [chain.output],
                    name=f"{chain.nodes[-1]}/{op_type}",
                    domain=domain,
                ),
            )
            for chain in chains
        ],
    )


def _find(
    graph: onnx.GraphProto, op_type: str, argument: Callable[[Floats], Floats]
) -> list[_Chain]:
    """Each GELU around a node of that type, of which the formula takes that argument."""
    index = index_graph(graph)
    wanted = argument(_POINTS)
    nodes = [node for node in graph.node if node.op_type == op_type]
    return [found for node in nodes if (found := _match(index, node, wanted)) is not None]


def _match(index: GraphIndex, node: onnx.NodeProto, wanted: Floats) -> _Chain | None:
    plus = only_reader(index, node.output[0], "Add")
    if plus is None or not is_near(scalar(index, beside(plus, node.output[0])), 1.0):
        return None
    product = _product(index, plus)
    if product is None or index.shapes.get(product.source) != index.shapes.get(product.output):
        return None
    before: list[str] = []
    with np.errstate(all="ignore"):
        got = _evaluate(index, node.input[0], product.source, before)
    if got is None or not np.allclose(got, wanted, rtol=1e-3, atol=1e-6):
        return None
    return msgspec.structs.replace(product, nodes=(*before, node.name, plus.name, *product.nodes))


def _product(index: GraphIndex, plus: onnx.NodeProto) -> _Chain | None:
    """What a sum is multiplied with: one half and the source, in any order."""
    first = only_reader(index, plus.output[0], "Mul")
    if first is None:
        return None
    other = beside(first, plus.output[0])
    half = producer(index, other, "Mul")
    if half is not None and only_reader(index, other, "Mul") is not None:
        for source, factor in (half.input, half.input[::-1]):
            if is_near(scalar(index, factor), 0.5):
                names = (half.name, first.name)
                return _Chain(source=source, output=first.output[0], nodes=names)
    last = only_reader(index, first.output[0], "Mul")
    if last is None:
        return None
    factors = (other, beside(last, first.output[0]))
    for source, factor in (factors, factors[::-1]):
        if is_near(scalar(index, factor), 0.5):
            return _Chain(source=source, output=last.output[0], nodes=(first.name, last.name))
    return None


def _evaluate(index: GraphIndex, name: str, source: str, nodes: list[str]) -> Floats | None:
    """What a tensor is at the points that the source takes, where it is computed from that alone.

    Args:
        index: The graph.
        name: The tensor.
        source: The one that takes the points.
        nodes: Gets the names of those that compute it.
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
    nodes.append(node.name)
    values = [_evaluate(index, read, source, nodes) for read in node.input]
    left, right = values
    return None if left is None or right is None else _ARITHMETIC[node.op_type](left, right)
