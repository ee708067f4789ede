"""Selection of quantized parts: nodes, and for each node the tensors with their roles.

Pure: the function reads a graph and settings and returns a plan; scales come later (`assign`),
since a plan is tried with several calibration methods.
"""

from collections.abc import Collection, Sequence

import msgspec
import onnx

from edgepack.packager.graph import operators
from edgepack.packager.graph.edits import MICROSOFT
from edgepack.packager.graph.queries import GraphIndex, attribute, is_standard
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.quantization.static.high_precision_activations import (
    following_rectifier,
    with_followers,
)


class WeightUse(msgspec.Struct, frozen=True, kw_only=True):
    """A constant read as weights.

    Attributes:
        name: The initializer.
        axis: Axis of its channels, or None for a single scale.
    """

    name: str
    axis: int | None


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a node's quantization.

    Attributes:
        position: Index of the node in the graph.
        name: Its name.
        activations: Inputs quantized as activations (including constants), by input position.
        weight: The weights, with their input position; None where there are none.
        bias: The bias, by input position and name; quantized as int32 with scale activation *
            weight; None for a float bias.
        outputs: Outputs that are quantized.
        rectifier: Index of the Relu or Clip that directly follows and belongs to this node.
        is_high_precision: Whether its activations have the type of
            `settings.high_precision_activations`.
    """

    position: int
    name: str
    activations: tuple[tuple[int, str], ...]
    weight: tuple[int, WeightUse] | None
    bias: tuple[int, str] | None
    outputs: tuple[str, ...]
    rectifier: int | None
    is_high_precision: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor that is quantized as an activation of this node, constants included."""
        return (*(name for _, name in self.activations), *self.outputs)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a graph's quantization.

    Attributes:
        nodes: Plans of the quantized nodes, in graph order.
    """

    nodes: tuple[NodePlan, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantized nodes, in graph order."""
        return tuple(node.name for node in self.nodes)

    @property
    def positions(self) -> frozenset[int]:
        """Indices of the quantized nodes, including their Relu or Clip."""
        rectifiers = (node.rectifier for node in self.nodes if node.rectifier is not None)
        return frozenset((*(node.position for node in self.nodes), *rectifiers))

    @property
    def conversions(self) -> int:
        """Number of tensors that are read in another type than their own."""
        types = {name: node.is_high_precision for node in self.nodes for name in node.outputs}
        return len(
            {
                name
                for node in self.nodes
                for _, name in node.activations
                if types.get(name, node.is_high_precision) != node.is_high_precision
            }
        )

    @property
    def activations(self) -> tuple[str, ...]:
        """Every tensor that is quantized as an activation, constants included, in graph order."""
        return tuple(dict.fromkeys(name for node in self.nodes for name in node.tensors))


def make_plan(
    index: GraphIndex,
    settings: Quantize,
    float_nodes: Collection[str],
    *,
    high_precision_nodes: Collection[str] = (),
    apart: Collection[str] = (),
) -> Plan:
    """Plan the quantization of a graph.

    The Relu or Clip of a node that stays float stays float, too: quantized by itself the rectifier
    would round twice a value that must stay unrounded. The same holds for a node of high precision.

    Args:
        index: The float graph with shapes.
        settings: The profile's quantize pass.
        float_nodes: Names of nodes that must stay float.
        high_precision_nodes: Names of nodes with activations of
            `settings.high_precision_activations`.
        apart: Names of nodes with a Relu or Clip that is quantized by itself.

    Returns:
        The plan.
    """
    able = [
        position
        for position, node in enumerate(index.graph.node)
        if _is_able(index, node, settings)
    ]
    chosen = {p for p in able if index.graph.node[p].name not in float_nodes}
    if settings.ops == "all":
        left = [following_rectifier(index, p) for p in able if p not in chosen]
        chosen -= {following for following in left if following is not None}
    rectifiers = {
        position: following
        for position in sorted(chosen)
        if index.graph.node[position].name not in apart
        and (following := following_rectifier(index, position)) is not None
        and (settings.ops == "compute" or following in chosen)
    }
    high_precision = with_followers(index, chosen, high_precision_nodes)
    plans = (
        _plan_node(index, position, settings, rectifiers.get(position), position in high_precision)
        for position in sorted(chosen - set(rectifiers.values()))
    )
    return Plan(nodes=tuple(plans))


def _is_able(index: GraphIndex, node: onnx.NodeProto, settings: Quantize) -> bool:
    known = operators.facts(node.op_type)
    is_known = is_standard(node) or (node.domain == MICROSOFT and known.is_read_as_own)
    if not is_known or node.op_type in settings.exclude_ops:
        return False
    if not node.output or not index.is_float(node.output[0]):
        return False
    if settings.ops == "compute":
        return known.weights == "product" and _is_plain_product(index, node)
    if not known.has_integer_form:
        return False
    data = [n for i, n in enumerate(node.input) if n and i not in known.parameters]
    return any(index.is_float(name) for name in data)


def _is_plain_product(index: GraphIndex, node: onnx.NodeProto) -> bool:
    """Return True if both factors are floats, and a Gemm scales nothing."""
    if not all(index.is_float(name) for name in node.input[:2]):
        return False
    return node.op_type != "Gemm" or all(
        attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta")
    )


def _plan_node(
    index: GraphIndex,
    position: int,
    settings: Quantize,
    rectifier: int | None,
    is_high_precision: bool,
) -> NodePlan:
    node = index.graph.node[position]
    known = operators.facts(node.op_type)
    weight = _weight_of(index, node, settings)
    bias = _bias_of(index, node, weight) if settings.bias == "int32" else None
    others: set[int | None] = {*known.parameters, known.bias}
    others.update(entry[0] for entry in (weight, bias) if entry is not None)
    activations = tuple(
        (i, name)
        for i, name in enumerate(node.input)
        if name and i not in others and index.is_float(name)
    )
    last = index.graph.node[rectifier] if rectifier is not None else node
    outputs = tuple(
        name
        for name in last.output
        if name and index.is_float(name) and _is_output_quantized(index, node, name, settings)
    )
    return NodePlan(
        position=position,
        name=node.name,
        activations=activations,
        weight=weight,
        bias=bias,
        outputs=outputs,
        rectifier=rectifier,
        is_high_precision=is_high_precision,
    )


def _is_output_quantized(
    index: GraphIndex, node: onnx.NodeProto, name: str, settings: Quantize
) -> bool:
    if settings.ops == "all":
        return True
    return node.op_type in settings.output_ops and name not in index.outputs


def _weight_of(
    index: GraphIndex, node: onnx.NodeProto, settings: Quantize
) -> tuple[int, WeightUse] | None:
    position = operators.facts(node.op_type).weight
    if position is None or position >= len(node.input):
        return None
    name = node.input[position]
    if name not in index.initializers or not index.is_float(name):
        return None
    axis = None
    if node.op_type in settings.per_channel:
        axis = operators.weight_axis(
            node.op_type,
            len(index.shapes[name]),
            is_transposed=bool(attribute(node, "transB")),
            groups=attribute(node, "group", 1),
        )
    return position, WeightUse(name=name, axis=axis)


def _bias_of(
    index: GraphIndex, node: onnx.NodeProto, weight: tuple[int, WeightUse] | None
) -> tuple[int, str] | None:
    position = operators.facts(node.op_type).bias
    if position is None or position >= len(node.input) or weight is None:
        return None
    name = node.input[position]
    if name not in index.initializers or len(index.shapes[name]) != 1:
        return None
    if node.input[0] in index.initializers:
        return None  # no activation whose scale it could share
    return position, name


def tied_tensors(
    index: GraphIndex, plans: Sequence[NodePlan], settings: Quantize
) -> tuple[tuple[str, ...], ...]:
    """Return the groups of quantized tensors that must share a scale, each sorted (union-find).

    Args:
        index: The float graph.
        plans: The quantized nodes of a single precision.
        settings: The profile's quantize pass.
    """
    quantized = {name for plan in plans for name in plan.tensors}
    parent = {name: name for name in quantized}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    chosen = {plan.position for plan in plans}
    for position, node in enumerate(index.graph.node):
        if settings.ops == "all" and position not in chosen:
            continue
        if node.op_type in settings.tie_ops:
            members = (*node.input, *node.output)
        elif operators.facts(node.op_type).one_scale:
            members = (node.input[0], *node.output)
        else:
            continue
        there = [name for name in members if name in quantized]
        for name in there[1:]:
            parent[root(name)] = root(there[0])
    groups: dict[str, list[str]] = {}
    for name in sorted(quantized):
        groups.setdefault(root(name), []).append(name)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
