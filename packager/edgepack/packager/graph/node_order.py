"""The order of nodes: ONNX wants each behind those that it reads, ONNX Runtime does not mind."""

import heapq

import onnx

from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.queries import reads, subgraphs


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Puts each node behind those that it reads from, in bodies of control flow too.

    Nodes that are in order stay where they are.

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
    after: dict[int, list[int]] = {}
    for i, places in enumerate(before):
        for place in places:
            after.setdefault(place, []).append(i)
    waiting = [len(places) for places in before]
    ready = [i for i, count in enumerate(waiting) if not count]
    ordered = []
    while ready:
        place = heapq.heappop(ready)
        ordered.append(graph.node[place])
        for i in after.get(place, ()):
            waiting[i] -= 1
            if not waiting[i]:
                heapq.heappush(ready, i)
    if len(ordered) != len(graph.node):
        raise ValueError("the graph has a cycle")
    refill(graph.node, ordered)
