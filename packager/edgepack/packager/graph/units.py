"""Takes parts out of a quantized graph without taking its units apart.

A provider reads a node with the DequantizeLinear of its inputs and the QuantizeLinear of its
outputs as a unit. A part that begins or ends inside a unit is another graph for the provider.
"""

from collections.abc import Collection, Iterable
from copy import deepcopy

import onnx

from edgepack.packager.graph.edits import with_contents
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex, index_graph, reads


class Units:
    """The units of a model, in the order of its nodes.

    A node and its only reader, a Relu or Clip without a pair between, are a single node.

    Args:
        model: The model; not changed. Its nodes are in order.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._index = index_graph(model.graph)
        self._members: list[list[int]] = []
        for position, node in enumerate(model.graph.node):
            if _is_pair(node):
                continue
            if self._members and _belongs(self._index, self._members[-1][-1], position):
                self._members[-1].append(position)
            else:
                self._members.append([position])

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self._members)

    def nodes(self, start: int, end: int) -> tuple[onnx.NodeProto, ...]:
        """Return the nodes of some units, without their pairs."""
        return tuple(
            self._model.graph.node[position]
            for unit in self._members[start:end]
            for position in unit
        )

    def take(self, start: int, end: int) -> onnx.ModelProto:
        """Return a model of some units, with their pairs.

        The inputs are the tensors of other units, floats in front of a pair, with types that only
        shape inference knows. The outputs are the tensors that others read, restored to floats by a
        DequantizeLinear that nothing else reads.

        Args:
            start, end: The first unit, and the unit behind the last. A part from 0 on has the
                model's inputs, read or not.
        """
        index, graph = self._index, self._model.graph
        chosen = {position for unit in self._members[start:end] for position in unit}
        ends, cuts = self._ends(chosen)
        restoring = [_restoring(graph.node[position]) for position in cuts]
        wanted = [name for position in chosen for name in reads(graph.node[position])]
        wanted += [*ends, *(graph.node[position].output[0] for position in cuts)]
        kept, inputs = self._behind(wanted, chosen)
        nodes = [*(graph.node[position] for position in sorted(kept)), *restoring]
        read = {name for node in nodes for name in reads(node)}
        return with_contents(
            self._model,
            nodes,
            map(self._declared, inputs if start else index.inputs),
            map(self._declared, (*ends, *(node.output[0] for node in restoring))),
            (tensor for tensor in graph.initializer if tensor.name in read),
        )

    def _ends(self, chosen: Collection[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the outputs of some nodes: tensors, and the QuantizeLinear nodes to cut behind."""
        index, nodes = self._index, self._index.graph.node
        ends: dict[str, None] = {}
        cuts: list[int] = []
        for position in sorted(chosen):
            for name in nodes[position].output:
                if name in index.outputs or name in index.body_reads:
                    ends[name] = None
                for reader in index.consumers.get(name, []):
                    if not _is_pair(nodes[reader]):
                        if reader not in chosen:
                            ends[name] = None
                        continue
                    readers, outputs = self._beyond(reader)
                    ends |= dict.fromkeys(outputs)
                    if not readers <= set(chosen):
                        cuts.append(reader)
        return tuple(ends), tuple(cuts)

    def _beyond(self, pair: int) -> tuple[set[int], list[str]]:
        """Return the nodes and outputs of the model that read a pair, also through other pairs."""
        index, nodes = self._index, self._index.graph.node
        readers, outputs, waiting = set[int](), list[str](), [pair]
        while waiting:
            for name in nodes[waiting.pop()].output:
                outputs += [name] if name in index.outputs else []
                for reader in index.consumers.get(name, []):
                    if _is_pair(nodes[reader]):
                        waiting.append(reader)
                    else:
                        readers.add(reader)
        return readers, outputs

    def _behind(
        self, wanted: Iterable[str], chosen: Collection[int]
    ) -> tuple[set[int], tuple[str, ...]]:
        """Return some nodes with the pairs that make the wanted tensors, and the input tensors of
        these nodes.
        """
        index = self._index
        kept, inputs, waiting = set(chosen), dict[str, None](), list(wanted)
        while waiting:
            name = waiting.pop()
            producer = index.producers.get(name)
            is_pair = producer is not None and _is_pair(index.graph.node[producer])
            if producer is not None and is_pair and producer not in kept:
                kept.add(producer)
                waiting.extend(index.graph.node[producer].input)
            elif name and name not in index.initializers and producer not in kept:
                inputs[name] = None
        return kept, tuple(sorted(inputs))

    def _declared(self, name: str) -> onnx.ValueInfoProto:
        """Return a tensor as an input or output, by name alone if a session infers the type."""
        graph = self._index.graph
        known = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
        return known.get(name) or onnx.ValueInfoProto(name=name)


_RESTORED = "/restored"


def _restoring(quantize: onnx.NodeProto) -> onnx.NodeProto:
    node = deepcopy(quantize)
    node.op_type = "DequantizeLinear"
    node.input[0] = quantize.output[0]
    node.output[0] = f"{quantize.output[0]}{_RESTORED}"
    node.name = f"{node.output[0]}/{node.op_type}"
    return node


def _is_pair(node: onnx.NodeProto) -> bool:
    return facts(node.op_type).is_conversion == "pair"


def _belongs(index: GraphIndex, position: int, following: int) -> bool:
    """Return True if a node is the rectifier that alone reads another node's computed output."""
    node, after = index.graph.node[position], index.graph.node[following]
    if not facts(after.op_type).rectifies or len(node.output) != 1:
        return False
    name = node.output[0]
    return index.consumers.get(name) == [following] and name not in index.outputs
