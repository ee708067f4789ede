"""Changes a model's operator set node by node, where onnx's own converter cannot.

That converter has no adapter for many operators, reads nothing beyond 2 GB and knows no other
domains. Only real changes between two versions are rewritten; a node with the same description in
both versions stays unchanged. The result of a pass is compared with the source afterwards, so a
missing change of meaning is detected there.

Computation of values that follow from constants and shapes in written-out operators.

Definitions in the standard count axes and sizes at run time, from shapes. Older operator sets need
these values as attributes: known shapes give known values.

Expansion of a standard operator into its definition by other operators.

Newer operator sets have operators that are functions of older operators: Gelu, GroupNormalization,
Mish, Swish, RMSNormalization. Hardware for older sets computes these operators in expanded form.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING

import onnx
from msgspec.structs import replace
from onnx import defs, helper, inliner

from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.queries import is_standard, own_names, subgraphs
from edgepack.packager.graph.runtime_operators import is_runtime_operator
from edgepack.packager.graph.shape_inference import add_shapes, infer
from edgepack.packager.passes.operator_sets import (
    UnchangeableError,
    exists,
    label,
)
from edgepack.packager.passes.opset_rewrites import REWRITES, Reach, Step
from edgepack.packager.passes.plain_constants import make_constants_plain


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


if TYPE_CHECKING:
    import onnx_ir

_MOST_VALUES = 64
"""Axes, sizes and single numbers; anything larger is left to the pass that folds constants."""


def fold_known_values(
    graph: onnx.GraphProto, types: Mapping[str, onnx.TypeProto], opset: int
) -> tuple[onnx.ValueInfoProto, ...]:
    """Replace nodes by constants if their outputs are known and small.

    Args:
        graph: Nodes, initializers and outputs; changed in place. Types of its inputs are in
            `types`.
        types: Types and shapes of tensors from outside.
        opset: The nodes' version of the standard operator set.

    Returns:
        Types and shapes of the inner tensors, if inferable.
    """
    # They import sympy, longer than a small model takes to build, and few models need them.
    import onnx_ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass
    from onnxscript.optimizer import fold_constants

    outside = {name for node in graph.node for name in node.input if name} - own_names(graph)
    graph.input.extend(helper.make_value_info(name, types[name]) for name in sorted(outside))
    alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    # onnxscript goes from node to node and does not see what onnx's inference tells of sizes.
    alone.graph.value_info.extend(infer(alone).value_info)
    written = onnx_ir.from_proto(alone)
    fold_constants(
        written,
        onnx_shape_inference=True,
        output_size_limit=_MOST_VALUES,
        should_fold=lambda node: None if len(node.outputs) == 1 else False,
    )
    _pass_by_splits_of_nothing(written.graph)
    RemoveUnusedNodesPass()(written)
    graph.CopyFrom(onnx_ir.to_proto(written.graph))
    return tuple(graph.value_info)


def _pass_by_splits_of_nothing(graph: "onnx_ir.Graph") -> None:
    """Replace readers of a split that returns a complete tensor: hardware cannot read empty
    parts.
    """
    for node in graph:
        parts = [value for value in node.outputs if 0 not in (value.shape or ())]
        whole = node.inputs[0] if node.inputs else None
        if node.op_type == "Split" and len(parts) == 1 and whole is not None:
            parts[0].replace_all_uses_with(whole)


def write_out(
    node: onnx.NodeProto, opset: int, types: Mapping[str, onnx.TypeProto]
) -> list[onnx.NodeProto] | None:
    """Return the nodes that compute a node's function.

    Args:
        node: A node of the standard domain.
        opset: Of its model.
        types: Types of tensors by name: an operator's definition may depend on types.

    Returns:
        Nodes of the same operator set, their inner tensors named after the node's first output;
        None if a type is missing, or the standard has no definition for these types, or a
        definition with control flow.
    """
    names = dict.fromkeys(name for name in node.input if name)
    if any(name not in types for name in names):
        return None
    whole = deepcopy(node)
    _give_defaults(whole, defs.get_schema(node.op_type, opset, ""))
    inputs = [helper.make_value_info(name, types[name]) for name in names]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([whole], "alone", inputs, outputs)
    alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        written = inliner.inline_selected_functions(
            alone, [("", node.op_type)], inline_schema_functions=True
        )
    except RuntimeError:
        return None
    nodes = list(written.graph.node)
    if any(entry.op_type == node.op_type or any(subgraphs(entry)) for entry in nodes):
        return None
    outside = {*names, *node.output, ""}
    for entry in nodes:
        for tensors in (entry.input, entry.output):
            tensors[:] = [
                name if name in outside else f"{node.output[0]}/{name}" for name in tensors
            ]
        entry.name = f"{node.name or node.output[0]}/{entry.output[0]}"
    return nodes


def _give_defaults(node: onnx.NodeProto, schema: defs.OpSchema) -> None:
    """Set defaults that the inliner leaves empty: a Constant for a missing attribute."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)
