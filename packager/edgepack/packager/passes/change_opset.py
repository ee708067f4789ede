"""Changes a model's operator set node by node, where onnx's own converter cannot.

That converter has no adapter for many operators, reads nothing beyond 2 GB and knows no other
domains. Here only what really changed between two versions is rewritten; a node that both
versions describe alike stays as it is. What a pass computes is compared with the source
afterwards, so a change of meaning that is missing here is caught there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.questions import subgraphs
from edgepack.packager.passes.infer_shapes import add_shapes
from edgepack.packager.passes.operator_sets import STANDARD, UnchangeableError, exists, label
from edgepack.packager.passes.plain_constants import make_constants_plain
from edgepack.packager.passes.standard_functions import write_out

_AXES_BECAME_INPUT = {
    "Squeeze": 13,
    "Unsqueeze": 13,
    "ReduceSum": 13,
    **dict.fromkeys(
        (
            *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
            *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare"),
        ),
        18,
    ),
}
_SPLIT_BECAME_INPUT = 13
_SPLIT_COUNTS_OUTPUTS = 18
_SOFTMAX_OF_ONE_AXIS = 13
_ROI_ALIGN_HALF_PIXEL = 16
_GRID_SAMPLE_RENAMED = 20
_GRID_SAMPLE_MODES = {b"bilinear": b"linear", b"bicubic": b"cubic"}


def change_opset(model: onnx.ModelProto, target: int) -> None:
    """Rewrites the nodes of a model for another version of the standard operator set.

    Args:
        model: The model without local functions; changed in place, also where this raises.
        target: The version.

    Raises:
        UnchangeableError: A node has no equivalent there.
    """
    shaped = onnx.ModelProto()
    shaped.CopyFrom(model)
    add_shapes(shaped)
    step = _Step(start=opset_of(model), target=target)
    _change_graph(model.graph, shaped.graph, step)
    for entry in model.opset_import:
        if entry.domain in STANDARD:
            entry.version = target


@dataclass(frozen=True, kw_only=True)
class _Step:
    """From which version to which; `crosses` tells whether a version lies between."""

    start: int
    target: int

    def up(self, version: int) -> bool:
        return self.start < version <= self.target

    def down(self, version: int) -> bool:
        return self.target < version <= self.start


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """What a node's change may look up and add to.

    Attributes:
        shapes: Sizes by tensor of the main graph, None where open.
        types: Types by tensor.
        constants: Initializers in reach.
        added: New initializers.
    """

    shapes: Mapping[str, tuple[int | None, ...]]
    types: Mapping[str, onnx.TypeProto]
    constants: Mapping[str, onnx.TensorProto]
    added: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, name: str, values: object) -> str:
        self.added.append(numpy_helper.from_array(np.asarray(values, dtype=np.int64), name))
        return name


def _change_graph(
    graph: onnx.GraphProto,
    shaped: onnx.GraphProto,
    step: _Step,
    outer: Mapping[str, onnx.TensorProto] | None = None,
) -> None:
    constants = {**(outer or {}), **{tensor.name: tensor for tensor in graph.initializer}}
    values = (*shaped.input, *shaped.output, *shaped.value_info)
    known = _Graph(
        shapes={
            value.name: tuple(
                size.dim_value if size.HasField("dim_value") else None
                for size in value.type.tensor_type.shape.dim
            )
            for value in values
            if value.type.tensor_type.HasField("shape")
        },
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
    del graph.node[:]
    graph.node.extend(changed)
    graph.initializer.extend(known.added)


def _change_node(node: onnx.NodeProto, step: _Step, graph: _Graph) -> list[onnx.NodeProto]:
    if node.domain not in STANDARD:
        return [node]
    if not exists(node, step.target):
        return _write_out(node, step, graph)
    if _schema(node, step.start).since_version == _schema(node, step.target).since_version:
        return [node]
    rewrite = _REWRITES.get(node.op_type)
    nodes = rewrite(node, step, graph) if rewrite else [node]
    for one in nodes:
        _fit(one, step)
    return nodes


def _write_out(node: onnx.NodeProto, step: _Step, graph: _Graph) -> list[onnx.NodeProto]:
    """What the standard defines the node as, in the other operator set."""
    nodes = write_out(node, step.start, graph.types)
    if nodes is None:
        raise UnchangeableError(f"opset {step.target} has no {node.op_type} ({label(node)})")
    written = onnx.GraphProto(node=nodes)
    make_constants_plain(written)
    graph.added.extend(written.initializer)
    constants = {tensor.name: tensor for tensor in written.initializer}
    inner = replace(graph, constants={**graph.constants, **constants})
    return [changed for entry in written.node for changed in _change_node(entry, step, inner)]


def _schema(node: onnx.NodeProto, version: int) -> defs.OpSchema:
    if not exists(node, version):
        raise UnchangeableError(f"opset {version} has no {node.op_type} ({label(node)})")
    return defs.get_schema(node.op_type, version, "")


def _fit(node: onnx.NodeProto, step: _Step) -> None:
    """Drops attributes that say no more than the default, and refuses what does not fit."""
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


def _axes(node: onnx.NodeProto, step: _Step, graph: _Graph) -> list[onnx.NodeProto]:
    version = _AXES_BECAME_INPUT[node.op_type]
    if step.up(version):
        _to_input(node, "axes", graph)
    elif step.down(version):
        _to_attribute(node, "axes", graph)
    return [node]


def _split(node: onnx.NodeProto, step: _Step, graph: _Graph) -> list[onnx.NodeProto]:
    if step.up(_SPLIT_BECAME_INPUT):
        _to_input(node, "split", graph)
    if step.up(_SPLIT_COUNTS_OUTPUTS) and not (len(node.input) > 1 and node.input[1]):
        node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
    if step.down(_SPLIT_COUNTS_OUTPUTS) and _value(node, "num_outputs") is not None:
        axis = _integer(node, "axis", 0)
        size = graph.shapes[node.input[0]][axis] if node.input[0] in graph.shapes else None
        if size is None or size % len(node.output):
            raise UnchangeableError(f"the parts of Split are not known to be equal ({label(node)})")
        _remove(node, "num_outputs")
    if step.down(_SPLIT_BECAME_INPUT):
        _to_attribute(node, "split", graph)
    return [node]


def _softmax(node: onnx.NodeProto, step: _Step, graph: _Graph) -> list[onnx.NodeProto]:
    """Until opset 12 all axes from `axis` on, 1 by default, counted as one."""
    if not step.up(_SOFTMAX_OF_ONE_AXIS):
        return [node]
    axis = _integer(node, "axis", 1)
    rank = len(graph.shapes[node.input[0]]) if node.input[0] in graph.shapes else None
    _remove(node, "axis")
    node.attribute.append(helper.make_attribute("axis", -1))
    if axis == -1 or (rank is not None and axis == rank - 1):
        return [node]
    source, result = node.input[0], node.output[0]
    node.input[0], node.output[0] = f"{result}/flat", f"{result}/flat_result"
    return [
        helper.make_node("Shape", [source], [f"{result}/shape"], name=f"{result}/Shape"),
        helper.make_node("Flatten", [source], [node.input[0]], name=f"{result}/Flatten", axis=axis),
        node,
        helper.make_node(
            "Reshape", [node.output[0], f"{result}/shape"], [result], name=f"{result}/Reshape"
        ),
    ]


def _dropout(node: onnx.NodeProto, step: _Step, graph: _Graph) -> list[onnx.NodeProto]:
    _remove(node, "ratio")  # without training_mode it does nothing, whatever the ratio
    return [node]


def _roi_align(node: onnx.NodeProto, step: _Step, graph: _Graph) -> list[onnx.NodeProto]:
    if step.up(_ROI_ALIGN_HALF_PIXEL):
        node.attribute.append(
            helper.make_attribute("coordinate_transformation_mode", "output_half_pixel")
        )
    elif step.down(_ROI_ALIGN_HALF_PIXEL):
        if _value(node, "coordinate_transformation_mode") != b"output_half_pixel":
            raise UnchangeableError(f"RoiAlign counts from pixel centres ({label(node)})")
        _remove(node, "coordinate_transformation_mode")
    return [node]


def _grid_sample(node: onnx.NodeProto, step: _Step, graph: _Graph) -> list[onnx.NodeProto]:
    renamed = _GRID_SAMPLE_MODES
    if step.down(_GRID_SAMPLE_RENAMED):
        renamed = {new: old for old, new in renamed.items()}
    for attribute in node.attribute:
        if attribute.name == "mode":
            attribute.s = renamed.get(attribute.s, attribute.s)
    return [node]


_REWRITES: Mapping[str, Callable[[onnx.NodeProto, _Step, _Graph], list[onnx.NodeProto]]] = {
    **dict.fromkeys(_AXES_BECAME_INPUT, _axes),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    "Split": _split,
    "Dropout": _dropout,
    "RoiAlign": _roi_align,
    "GridSample": _grid_sample,
}


def _to_input(node: onnx.NodeProto, name: str, graph: _Graph) -> None:
    values = _value(node, name)
    if values is not None:
        _remove(node, name)
        node.input.append(graph.add(f"{node.output[0]}/{name}", values))


def _to_attribute(node: onnx.NodeProto, name: str, graph: _Graph) -> None:
    if len(node.input) < 2 or not node.input[1]:
        del node.input[1:]
        return
    tensor = graph.constants.get(node.input[1])
    if tensor is None:
        raise UnchangeableError(f"the {name} of {node.op_type} are computed ({label(node)})")
    values = [int(value) for value in stored_tensors.values(tensor).ravel()]
    del node.input[1:]
    if values:
        node.attribute.append(helper.make_attribute(name, values))


def _value(node: onnx.NodeProto, name: str) -> object:
    for attribute in node.attribute:
        if attribute.name == name:
            return helper.get_attribute_value(attribute)
    return None


def _integer(node: onnx.NodeProto, name: str, default: int) -> int:
    value = _value(node, name)
    return value if isinstance(value, int) else default


def _remove(node: onnx.NodeProto, name: str) -> None:
    for attribute in list(node.attribute):
        if attribute.name == name:
            node.attribute.remove(attribute)
