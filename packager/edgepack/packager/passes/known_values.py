"""Computation of values that follow from constants and shapes in written-out operators.

Definitions in the standard count axes and sizes at run time, from shapes. Older operator sets need
these values as attributes: known shapes give known values.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from edgepack.packager.graph.queries import own_names
from edgepack.packager.graph.shape_inference import infer

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
