"""Nodes of a graph and of all inner bodies of control flow, with the constants visible to each."""

from collections import ChainMap
from collections.abc import Iterator, Mapping

import msgspec
import onnx

from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.queries import used_names

Constants = Mapping[str, onnx.TensorProto]


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of a model, or the body of a control-flow node.

    Attributes:
        label: "" for the graph itself; else the node and the branch, `if_1/then_branch`.
        graph: The graph.
        constants: Initializers and values of Constant nodes, including outer graphs.
    """

    label: str
    graph: onnx.GraphProto
    constants: Constants

    def name(self, position: int) -> str:
        """Return a node's name, unique in the model."""
        node = self.graph.node[position]
        if not self.label:
            return str(node.name)
        return f"{self.label}/{node.name or node.op_type}_{position}"


def scopes(graph: onnx.GraphProto) -> Iterator[Scope]:
    """Yield the graph itself, then its bodies, outer bodies first."""
    yield from _scopes(graph, "", {})


def _scopes(graph: onnx.GraphProto, label: str, outer: Constants) -> Iterator[Scope]:
    own = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            own[node.output[0]] = node.attribute[0].t
    scope = Scope(label=label, graph=graph, constants=ChainMap(own, dict(outer)))
    yield scope
    for position, node in enumerate(graph.node):
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            for number, body in enumerate(bodies):
                branch = attribute.name if len(bodies) == 1 else f"{attribute.name}_{number}"
                yield from _scopes(body, f"{scope.name(position)}/{branch}", scope.constants)


def drop_unread_constants(model: onnx.ModelProto) -> None:
    """Remove initializers and Constant nodes that nothing reads, in place, in bodies too."""
    read = used_names(model.graph)
    for scope in scopes(model.graph):
        graph = scope.graph
        refill(graph.initializer, (tensor for tensor in graph.initializer if tensor.name in read))
        if any(node.op_type == "Constant" and node.output[0] not in read for node in graph.node):
            kept = (n for n in graph.node if n.op_type != "Constant" or n.output[0] in read)
            refill(graph.node, kept)
