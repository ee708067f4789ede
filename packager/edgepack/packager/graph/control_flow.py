"""Remaining control flow in a model: reason and remedy, in words."""

from collections.abc import Iterable

import numpy as np
import onnx

from edgepack.packager.graph.queries import inputs_behind, subgraphs
from edgepack.packager.tensors.sequence import Samples

_VALUES_SHOWN = 8
"""A longer input is data, not a setting."""


def describe_node(graph: onnx.GraphProto, node: onnx.NodeProto) -> str:
    """Describe a node; for control flow also the obstacle to folding."""
    inputs = deciding_inputs(graph, node)
    words = f"{node.name} ({node.op_type})"
    if inputs:
        noun = "input" if len(inputs) == 1 else "inputs"
        words += f", its condition depends on the {noun} {' and '.join(map(repr, inputs))}"
    return words


def deciding_inputs(graph: onnx.GraphProto, node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the model's inputs that control flow depends on; none for any other node.

    A Scan has no condition.
    """
    if not node.input or node.op_type == "Scan" or not any(subgraphs(node)):
        return ()
    return inputs_behind(graph, node.input[0])


def option_that_folds(
    graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto], samples: Samples
) -> str:
    """Return the option `--value …` that makes conditions of Ifs constants.

    Args:
        graph: The graph.
        nodes: Nodes of the graph; only If nodes count.
        samples: Each is read, where there is a condition that inputs decide.

    Returns:
        The option, with the common values of all samples; "" if no If depends on inputs, or an
        input differs between samples or has many values.
    """
    names = {
        name for node in nodes if node.op_type == "If" for name in deciding_inputs(graph, node)
    }
    if not names:
        return ""
    first = samples.read(0)
    if any(first[name].size > _VALUES_SHOWN for name in names):
        return ""
    for feeds in samples:
        if not all(np.array_equal(feeds[name], first[name]) for name in names):
            return ""
    return " ".join(
        f"--value {name}={','.join(map(str, first[name].ravel().tolist()))}"
        for name in sorted(names)
    )


def note_what_stays(graph: onnx.GraphProto, samples: Samples) -> tuple[str, ...]:
    """Return a note on Ifs, and nodes in their branches, that could be folded away."""
    option = option_that_folds(graph, graph.node, samples)
    if not option:
        return ()
    kept = [describe_node(graph, node) for node in graph.node if node.op_type == "If"]
    return (
        f"Control flow stays, with all that is in it: {kept[0]}, which is the same in all "
        f"{samples.count} calibration samples. With {option} the branch that it takes is prepared "
        "like the rest; applications then no longer feed that input.",
    )
