"""Removes nodes whose outputs nothing reads.

Exports keep some: a layer of the training graph that the export's outputs do not need. ONNX
Runtime's optimizer leaves them too. Nothing is gained by computing them, and a provider may take
the one and leave the rest: QNN then gets a graph without an output, and refuses the whole model
with an error about memory (onnxruntime-qnn 2.7.0).
"""

import onnx

from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.queries import reads


def drop_unused_nodes(graph: onnx.GraphProto) -> None:
    """Removes them from a graph whose nodes stand in order; bodies of control flow stay as is."""
    read = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if read.isdisjoint(node.output):
            continue
        kept.append(node)
        read |= reads(node)
    if len(kept) != len(graph.node):
        refill(graph.node, reversed(kept))
