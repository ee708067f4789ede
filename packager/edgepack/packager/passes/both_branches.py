"""Replacement of an If by both branches and a choice between their outputs.

A wake word's second model runs if the first model heard something: the condition follows from the
input, so no input value can be fixed. Hardware without control flow computes both branches then,
and a Where selects the If's output. If a value of an input would fold the If away, such as a
sampling rate, the If stays: the builder is notified, and need not compute two networks.
"""

from copy import deepcopy

import onnx
from onnx import helper

from edgepack.packager.graph.control_flow import option_that_folds
from edgepack.packager.graph.edits import refill, rename_tensors
from edgepack.packager.graph.queries import own_names
from edgepack.packager.graph.shape_inference import fixed_types
from edgepack.packager.tensors.sequence import Samples

_Type = tuple[int, tuple[int, ...]]


def compute_both_branches(model: onnx.ModelProto, samples: Samples) -> tuple[str, ...]:
    """Replace each If of the main graph with branches of equal types and fixed shapes.

    Args:
        model: Changed in place; its nodes have names that differ.
        samples: The model's samples: show inputs that never change.

    Returns:
        Names of the replaced nodes, including nodes inside a branch.
    """
    replaced: list[str] = []
    left: set[str] = set()
    while True:
        found = (
            (position, node)
            for position, node in enumerate(model.graph.node)
            if node.op_type == "If" and node.name not in left
        )
        position, node = next(found, (0, None))
        if node is None:
            return tuple(replaced)
        name = node.name
        can_fold = bool(option_that_folds(model.graph, (node,), samples))
        changed = None if can_fold else _with_both(model, position)
        if changed is None:
            left.add(name)
        else:
            model.CopyFrom(changed)
            replaced.append(name)


def _with_both(model: onnx.ModelProto, position: int) -> onnx.ModelProto | None:
    """Return the model without the If at `position`; None if its branches' outputs differ in type
    or shape.
    """
    node = model.graph.node[position]
    changed = deepcopy(model)
    del changed.graph.value_info[:]
    nodes: list[onnx.NodeProto] = []
    given = {}
    for attribute in node.attribute:
        body = deepcopy(attribute.g)
        given[attribute.name] = _take_apart(body, f"{node.name}/{attribute.name}", changed.graph)
        nodes += body.node
    pairs = list(zip(given["then_branch"], given["else_branch"], strict=True))
    nodes += [
        helper.make_node("Where", [node.input[0], *pair], [output], f"{node.name}/{output}")
        for output, pair in zip(node.output, pairs, strict=True)
        if output
    ]
    after = [*model.graph.node[:position], *nodes, *model.graph.node[position + 1 :]]
    refill(changed.graph.node, after)
    types = _types(changed)
    condition = types.get(node.input[0])
    is_one_choice = condition is not None and all(
        then in types
        and types[then] == types.get(other)
        and len(condition[1]) <= len(types[then][1])
        for then, other in pairs
    )
    return changed if is_one_choice else None


def _take_apart(body: onnx.GraphProto, prefix: str, graph: onnx.GraphProto) -> list[str]:
    """Give a body's tensors and nodes unique names, and move its weights to the graph around.

    Returns:
        Names of the body's outputs.
    """
    renamed = {name: f"{prefix}/{name}" for name in own_names(body)}
    rename_tensors(body, renamed)
    for number, node in enumerate(body.node):
        node.name = f"{prefix}/{node.name or number}"
    graph.initializer.extend(body.initializer)
    graph.sparse_initializer.extend(body.sparse_initializer)
    return [renamed.get(value.name, value.name) for value in body.output]


def _types(model: onnx.ModelProto) -> dict[str, _Type]:
    """Return element type and shape of each tensor with a fixed shape."""
    found = fixed_types(model)
    return found | {
        tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in model.graph.initializer
    }
