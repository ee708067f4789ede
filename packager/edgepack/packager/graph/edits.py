"""Changes that many passes make: contents replaced, named, sorted, dropped, or put elsewhere."""

import heapq
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from typing import Any

import onnx

from edgepack.packager.graph.queries import own_names, reads, subgraphs, used_names

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


def refill(field: Any, entries: Iterable[Any]) -> None:
    """Replace the content of a message's repeated field; the entries may come from the field
    itself.
    """
    kept = list(entries)
    del field[:]
    field.extend(kept)


def drop_unread(graph: onnx.GraphProto) -> None:
    """Drop the initializers that nothing reads."""
    read = used_names(graph)
    refill(graph.initializer, (tensor for tensor in graph.initializer if tensor.name in read))


def import_domain(model: onnx.ModelProto, domain: str) -> None:
    """Make a model import a domain's operators, if missing; "" is always imported."""
    if domain and domain not in {entry.domain for entry in model.opset_import}:
        model.opset_import.add(domain=domain, version=1)


def with_contents(
    model: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    initializers: Iterable[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Return another model of the same operator sets, functions and graph's name."""
    result = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
    )
    graph = result.graph
    graph.name = model.graph.name
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    graph.initializer.extend(initializers)
    return result


def rename_tensors(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Rename tensors everywhere, in bodies of control flow too.

    Args:
        graph: Changed; a body's own tensors of the same name keep theirs.
        renamed: New names by old names; no graph input or output.
    """
    _rename_reads(graph, renamed)
    for node in graph.node:
        node.output[:] = [renamed.get(name, name) for name in node.output]
    kept = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    for value in (*kept, *graph.value_info):
        value.name = renamed.get(value.name, value.name)


def _rename_reads(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for body in subgraphs(node):
            own = own_names(body)
            outer = {name: new for name, new in renamed.items() if name not in own}
            _rename_reads(body, outer)
            for value in body.output:  # a body may hand on what stands outside of it
                value.name = outer.get(value.name, value.name)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node a unique, non-empty name; names that are already so stay."""
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name = f"{name}_{index}"
        taken.add(name)
        node.name = name


def drop_unused_nodes(graph: onnx.GraphProto) -> None:
    """Remove nodes with unread outputs; bodies of control flow stay unchanged.

    Exports keep some: a layer of the training graph that the export's outputs do not need. ONNX
    Runtime's optimizer leaves such nodes, too. The nodes are useless, and a provider may take the
    nodes and leave the rest: QNN then gets a graph without an output, and rejects the whole model
    with an error about memory (onnxruntime-qnn 2.7.0).

    Args:
        graph: A graph with sorted nodes; changed.
    """
    read = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if read.isdisjoint(node.output):
            continue
        kept.append(node)
        read |= reads(node)
    if len(kept) != len(graph.node):
        refill(graph.node, reversed(kept))


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Put each node behind the nodes that it reads from, in bodies of control flow too.

    ONNX wants that, ONNX Runtime does not mind. Sorted nodes keep their order.

    Args:
        graph: A graph without cycles; changed.
    """
    for node in graph.node:
        for body in subgraphs(node):
            sort_nodes(body)
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    before = [{makers[name] for name in reads(node) if name in makers} for node in graph.node]
    if all(place < i for i, places in enumerate(before) for place in places):
        return
    waiting = TopologicalSorter(dict(enumerate(before)))
    waiting.prepare()
    ready: list[int] = []
    ordered = []
    while waiting.is_active():
        for place in waiting.get_ready():
            heapq.heappush(ready, place)
        place = heapq.heappop(ready)
        ordered.append(graph.node[place])
        waiting.done(place)
    refill(graph.node, ordered)
