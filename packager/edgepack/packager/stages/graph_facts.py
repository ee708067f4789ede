"""Facts of a pipeline's graphs for the report."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

import onnx

from edgepack.packager.graph.model_files import opset_of


class GraphFacts(TypedDict):
    """Bytes and nodes of all graphs together, and their highest opset."""

    size_bytes: int
    opset: int
    node_count: int


def describe_graphs(paths: Iterable[Path]) -> GraphFacts:
    """Return the facts of graphs together."""
    facts = GraphFacts(size_bytes=0, opset=0, node_count=0)
    for path in paths:
        model = onnx.load(path, load_external_data=False)
        facts["size_bytes"] += path.stat().st_size
        facts["opset"] = max(facts["opset"], opset_of(model))
        facts["node_count"] += len(model.graph.node)
    return facts
