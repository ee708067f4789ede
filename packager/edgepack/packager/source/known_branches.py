"""Control flow with a known condition: each If becomes its taken branch.

Exporters write an If where the program asked for a rank or a size, or for an input's value. With
fixed shapes and values, such conditions are constants, also inside the branch of another If. ONNX
Runtime 1.31.1 folds the remaining Ifs, such as a rank that follows from computed sizes, but crashes
on a constant condition around other Ifs (seen with a voice detector): such an If must be removed
before.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import refill, rename_tensors
from edgepack.packager.graph.model_files import RUNTIME_ERRORS, cpu_session, quiet_options
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import attribute, is_standard, own_names, subgraphs
from edgepack.packager.graph.shape_inference import fixed_types
from edgepack.tasks.arrays import Tensor


def take_known_branches(model: onnx.ModelProto) -> int:
    """Replace each If of the main graph with a known condition by its taken branch.

    Args:
        model: Changed in place, shapes and values fixed as far as possible.

    Returns:
        Number of replaced nodes, including nodes inside a branch.
    """
    count = 0
    while any(node.op_type == "If" for node in model.graph.node):
        known = KnownValues(model)
        for position, node in enumerate(model.graph.node):
            condition = known.value_of(node.input[0]) if node.op_type == "If" else None
            if condition is not None and condition.size == 1:
                _replace(model.graph, position, taken=bool(condition.ravel()[0]), number=count)
                count += 1
                break
        else:
            break
    return count


class KnownValues:
    """Values of a model's tensors that are known without a run.

    Args:
        model: The model; must not change.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._producers = {name: node for node in model.graph.node for name in node.output}
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._shapes = {name: sizes for name, (_, sizes) in fixed_types(model).items()}

    def value_of(self, name: str) -> Tensor | None:
        """Return the value of a tensor that follows from constants and shapes alone, else None."""
        graph = onnx.GraphProto(name="known")
        if not self._collect(name, graph, set()):
            return None
        graph.output.append(onnx.ValueInfoProto(name=name))
        model = helper.make_model(graph, opset_imports=list(self._model.opset_import))
        model.ir_version = self._model.ir_version
        options = quiet_options(threads=1, optimize=False)
        try:
            session = cpu_session(model.SerializeToString(), options)
            return np.asarray(session.run(None, {})[0])
        except RUNTIME_ERRORS:  # whoever opens the whole model is told why
            return None

    def _collect(self, name: str, graph: onnx.GraphProto, seen: set[str]) -> bool:
        """Add the nodes that compute a tensor to a graph; return False for an unknown tensor."""
        if not name or name in seen:
            return True
        seen.add(name)
        if (constant := self._constants.get(name)) is not None:
            graph.initializer.append(constant)
            return not stored_tensors.is_held(constant)
        node = self._producers.get(name)
        if node is None or not is_standard(node) or facts(node.op_type).draws:
            return False
        if facts(node.op_type).reads_shape and node.input[0] in self._shapes:
            graph.initializer.append(_about_shape(node, self._shapes[node.input[0]]))
            return True
        if any(subgraphs(node)):
            return False
        seen.update(node.output)
        if not all(self._collect(read, graph, seen) for read in node.input):
            return False
        graph.node.append(node)
        return True


def _about_shape(node: onnx.NodeProto, shape: tuple[int, ...]) -> onnx.TensorProto:
    if node.op_type == "Size":
        return numpy_helper.from_array(np.array(np.prod(shape), dtype=np.int64), node.output[0])
    part = shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
    return numpy_helper.from_array(np.array(part, dtype=np.int64), node.output[0])


def _replace(graph: onnx.GraphProto, position: int, *, taken: bool, number: int) -> None:
    """Put the taken branch of the If at `position` in its place."""
    node = graph.node[position]
    branch = attribute(node, "then_branch" if taken else "else_branch")
    taken_names = _all_names(graph, without=node)
    renamed = {name: f"{name}/branch_{number}" for name in own_names(branch) & taken_names}
    rename_tensors(branch, renamed)
    given = [
        helper.make_node(
            "Identity", [renamed.get(value.name, value.name)], [name], name=f"{node.name}_{name}"
        )
        for value, name in zip(branch.output, node.output, strict=True)
        if name
    ]
    nodes = [*graph.node[:position], *branch.node, *given, *graph.node[position + 1 :]]
    graph.initializer.extend(branch.initializer)
    graph.sparse_initializer.extend(branch.sparse_initializer)
    refill(graph.node, nodes)


def _all_names(graph: onnx.GraphProto, *, without: onnx.NodeProto) -> set[str]:
    """Return the names of a graph's tensors, in its bodies too, except the bodies of `without`."""
    names = {value.name for value in (*graph.input, *graph.output)}
    names |= {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        names.update(node.output)
        if node is without:
            continue
        for body in subgraphs(node):
            names |= _all_names(body, without=without)
    return names
