"""Changes a model's operator set node by node, where onnx's own converter cannot.

That converter has no adapter for many operators, reads nothing beyond 2 GB and knows no other
domains. Only real changes between two versions are rewritten; a node with the same description in
both versions stays unchanged. The result of a pass is compared with the source afterwards, so a
missing change of meaning is detected there.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy

import onnx
from msgspec.structs import replace
from onnx import defs, helper

from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.queries import is_standard, subgraphs
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.known_values import fold_known_values
from edgepack.packager.passes.operator_sets import (
    UnchangeableError,
    exists,
    is_runtime_operator,
    label,
)
from edgepack.packager.passes.opset_rewrites import REWRITES, Reach, Step
from edgepack.packager.passes.plain_constants import make_constants_plain
from edgepack.packager.passes.standard_functions import write_out


def change_opset(model: onnx.ModelProto, target: int) -> None:
    """Rewrite the nodes of a model for another version of the standard operator set.

    Args:
        model: The model without local functions; changed in place, also where this raises.
        target: The version.

    Raises:
        UnchangeableError: A node has no equivalent there.
    """
    shaped = deepcopy(model)
    add_shapes(shaped)
    step = Step(start=opset_of(model), target=target)
    _change_graph(model.graph, shaped.graph, step)
    for entry in model.opset_import:
        if is_standard(entry):
            entry.version = target


def _change_graph(
    graph: onnx.GraphProto,
    shaped: onnx.GraphProto,
    step: Step,
    outer: Mapping[str, onnx.TensorProto] | None = None,
) -> None:
    constants = {**(outer or {}), **{tensor.name: tensor for tensor in graph.initializer}}
    values = (*shaped.input, *shaped.output, *shaped.value_info)
    known = Reach(
        shapes=_shapes(values),
        types={
            **{value.name: value.type for value in values if value.type.WhichOneof("value")},
            **{
                name: helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
                for name, tensor in constants.items()
            },
        },
        constants=constants,
    )
    changed: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in subgraphs(node):
            _change_graph(body, body, step, known.constants)
        changed.extend(_change_node(node, step, known))
    refill(graph.node, changed)
    graph.initializer.extend(known.added)


def _change_node(node: onnx.NodeProto, step: Step, graph: Reach) -> list[onnx.NodeProto]:
    if not is_standard(node) or is_runtime_operator(node, step.target):
        return [node]
    if not exists(node, step.target):
        return _write_out(node, step, graph)
    if _schema(node, step.start).since_version == _schema(node, step.target).since_version:
        return [node]
    rewrite = REWRITES.get(node.op_type)
    nodes = rewrite(node, step, graph) if rewrite else [node]
    for one in nodes:
        _fit(one, step)
    return nodes


def _write_out(node: onnx.NodeProto, step: Step, graph: Reach) -> list[onnx.NodeProto]:
    """Return the nodes that the standard defines for this node, in the other operator set."""
    _schema(node, step.start)
    nodes = write_out(node, step.start, graph.types)
    if nodes is None:
        raise UnchangeableError(f"opset {step.target} has no {node.op_type} ({label(node)})")
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    written = onnx.GraphProto(name="written", node=nodes, output=outputs)
    known = fold_known_values(written, graph.types, step.start)
    make_constants_plain(written)
    graph.added.extend(written.initializer)
    inner = replace(
        graph,
        constants={**graph.constants, **{tensor.name: tensor for tensor in written.initializer}},
        shapes={**graph.shapes, **_shapes(known)},
        types={**graph.types, **{value.name: value.type for value in known}},
    )
    return [changed for entry in written.node for changed in _change_node(entry, step, inner)]


def _schema(node: onnx.NodeProto, version: int) -> defs.OpSchema:
    if not exists(node, version):
        raise UnchangeableError(f"opset {version} has no {node.op_type} ({label(node)})")
    return defs.get_schema(node.op_type, version, "")


def _fit(node: onnx.NodeProto, step: Step) -> None:
    """Drop attributes equal to the default, and reject values that do not fit."""
    old, new = (defs.get_schema(node.op_type, v, "") for v in (step.start, step.target))
    for attribute in list(node.attribute):
        if attribute.name in new.attributes:
            continue
        known = old.attributes.get(attribute.name)
        default = helper.get_attribute_value(known.default_value) if known else None
        if helper.get_attribute_value(attribute) != default:
            raise UnchangeableError(
                f"{node.op_type} has no {attribute.name} in opset {step.target} ({label(node)})"
            )
        node.attribute.remove(attribute)
    if not new.min_input <= len(node.input) <= new.max_input:
        raise UnchangeableError(
            f"{node.op_type} takes other inputs in opset {step.target} ({label(node)})"
        )


def _shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[int | None, ...]]:
    return {
        value.name: tuple(
            size.dim_value if size.HasField("dim_value") else None
            for size in value.type.tensor_type.shape.dim
        )
        for value in values
        if value.type.tensor_type.HasField("shape")
    }
