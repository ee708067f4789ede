"""Rewrites of operators that changed between two versions of the standard set."""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.queries import all_nodes, attribute
from edgepack.packager.passes.operator_sets import UnchangeableError, label

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
_SAME_OF_ONE = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"})
"""Over no axis at all these give what they get; the others still take squares or logarithms."""

_SPLIT_BECAME_INPUT = 13
_SPLIT_COUNTS_OUTPUTS = 18
_SOFTMAX_OF_ONE_AXIS = 13
_ROI_ALIGN_HALF_PIXEL = 16
_GRID_SAMPLE_RENAMED = 20
RESIZE_COUNTS_CENTRES = 11
"""From this opset on Resize counts from the centres of points where it says nothing else."""

_GRID_SAMPLE_MODES = {b"bilinear": b"linear", b"bicubic": b"cubic"}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From which version to which; `crosses` tells whether a version lies between."""

    start: int
    target: int

    def up(self, version: int) -> bool:
        return self.start < version <= self.target

    def down(self, version: int) -> bool:
        return self.target < version <= self.start


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Access of a rewrite to the graph.

    Attributes:
        shapes: Sizes by tensor of the main graph, None where open.
        types: Types by tensor.
        constants: Initializers in reach.
        added: New initializers.
    """

    shapes: Mapping[str, tuple[int | None, ...]]
    types: Mapping[str, onnx.TypeProto]
    constants: Mapping[str, onnx.TensorProto]
    added: list[onnx.TensorProto] = msgspec.field(default_factory=list)

    def add(self, name: str, values: object) -> str:
        self.added.append(numpy_helper.from_array(np.asarray(values, dtype=np.int64), name))
        return name


def _axes(node: onnx.NodeProto, step: Step, graph: Reach) -> list[onnx.NodeProto]:
    version = _AXES_BECAME_INPUT[node.op_type]
    if step.up(version):
        _to_input(node, "axes", graph)
    elif step.down(version):
        is_idle = attribute(node, "noop_with_empty_axes", 0) == 1
        _remove(node, "noop_with_empty_axes")  # of no axes an older set takes all
        _to_attribute(node, "axes", graph)
        if is_idle and attribute(node, "axes") is None:
            if node.op_type not in _SAME_OF_ONE:
                raise UnchangeableError(f"{node.op_type} has no axes ({label(node)})")
            return [helper.make_node("Identity", node.input[:1], node.output, name=node.name)]
    return [node]


def _split(node: onnx.NodeProto, step: Step, graph: Reach) -> list[onnx.NodeProto]:
    if step.up(_SPLIT_BECAME_INPUT):
        _to_input(node, "split", graph)
    if step.up(_SPLIT_COUNTS_OUTPUTS) and not (len(node.input) > 1 and node.input[1]):
        node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
    if step.down(_SPLIT_COUNTS_OUTPUTS) and attribute(node, "num_outputs") is not None:
        axis = attribute(node, "axis", 0)
        size = graph.shapes[node.input[0]][axis] if node.input[0] in graph.shapes else None
        if size is None:
            raise UnchangeableError(f"the parts of Split are not known ({label(node)})")
        parts = len(node.output)
        largest = -(-size // parts)  # the last part is what is left
        sizes = [largest] * (parts - 1) + [size - largest * (parts - 1)]
        _remove(node, "num_outputs")
        if len(set(sizes)) > 1:
            node.attribute.append(helper.make_attribute("split", sizes))
            _to_input(node, "split", graph)
    if step.down(_SPLIT_BECAME_INPUT):
        _to_attribute(node, "split", graph)
    return [node]


def _softmax(node: onnx.NodeProto, step: Step, graph: Reach) -> list[onnx.NodeProto]:
    """Rewrite a Softmax of an opset up to 12: all axes from `axis` on, 1 by default, count as a
    single axis.
    """
    if not step.up(_SOFTMAX_OF_ONE_AXIS):
        return [node]
    axis = attribute(node, "axis", 1)
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


def _dropout(node: onnx.NodeProto, step: Step, graph: Reach) -> list[onnx.NodeProto]:
    _remove(node, "ratio")  # without training_mode it does nothing, whatever the ratio
    return [node]


def _roi_align(node: onnx.NodeProto, step: Step, graph: Reach) -> list[onnx.NodeProto]:
    if step.up(_ROI_ALIGN_HALF_PIXEL):
        node.attribute.append(
            helper.make_attribute("coordinate_transformation_mode", "output_half_pixel")
        )
    elif step.down(_ROI_ALIGN_HALF_PIXEL):
        if attribute(node, "coordinate_transformation_mode") != b"output_half_pixel":
            raise UnchangeableError(f"RoiAlign counts from pixel centres ({label(node)})")
        _remove(node, "coordinate_transformation_mode")
    return [node]


def _grid_sample(node: onnx.NodeProto, step: Step, graph: Reach) -> list[onnx.NodeProto]:
    renamed = _GRID_SAMPLE_MODES
    if step.down(_GRID_SAMPLE_RENAMED):
        renamed = {new: old for old, new in renamed.items()}
    for entry in node.attribute:
        if entry.name == "mode":
            entry.s = renamed.get(entry.s, entry.s)
    return [node]


REWRITES: Mapping[str, Callable[[onnx.NodeProto, Step, Reach], list[onnx.NodeProto]]] = {
    **dict.fromkeys(_AXES_BECAME_INPUT, _axes),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    "Split": _split,
    "Dropout": _dropout,
    "RoiAlign": _roi_align,
    "GridSample": _grid_sample,
}


def resize_from_corners(graph: onnx.GraphProto) -> None:
    """Write the meaning of each Resize before opset 11, or of the former Upsample, explicitly.

    onnx's converter keeps neither: a linear Resize would be shifted by half a point.

    Args:
        graph: The graph after that conversion; changed in place, with its bodies.
    """
    for node in all_nodes(graph):
        if node.op_type == "Resize":
            node.attribute.append(
                helper.make_attribute("coordinate_transformation_mode", "asymmetric")
            )
            node.attribute.append(helper.make_attribute("nearest_mode", "floor"))


def _to_input(node: onnx.NodeProto, name: str, graph: Reach) -> None:
    values = attribute(node, name)
    if values is not None:
        _remove(node, name)
        node.input.append(graph.add(f"{node.output[0]}/{name}", values))


def _to_attribute(node: onnx.NodeProto, name: str, graph: Reach) -> None:
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


def _remove(node: onnx.NodeProto, name: str) -> None:
    refill(node.attribute, (entry for entry in node.attribute if entry.name != name))
