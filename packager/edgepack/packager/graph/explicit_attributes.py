"""Attributes that a node leaves to their defaults, written out.

ONNX lets a Conv omit strides, pads, dilations, kernel_shape and group. Some compilers need explicit
values. `auto_pad` becomes explicit pads.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import onnx
from onnx import defs, helper

from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, is_standard

_PADDED_BY_SIZE = ("SAME_UPPER", "SAME_LOWER")


def write_defaults(model: onnx.ModelProto, op_types: Collection[str]) -> None:
    """Write out the attributes that nodes leave to their defaults.

    Args:
        model: The model, its shapes known as far as possible; changed in place.
        op_types: Convolutions and poolings of the standard domain. A pad that depends on an unknown
            size stays as `auto_pad` or `output_shape`.
    """
    nodes = [it for it in model.graph.node if it.op_type in op_types and is_standard(it)]
    if not nodes:
        return
    index, opset = index_graph(model.graph), opset_of(model)
    for node in nodes:
        schema = defs.get_schema(node.op_type, opset, "")
        _Sized(index, node, schema).write()
        for name, described in schema.attributes.items():
            if described.default_value.name and name != "auto_pad":
                _set(node, name, helper.get_attribute_value(described.default_value))


def find_implicit(model: onnx.ModelProto, op_types: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the attributes that nodes leave to their defaults, by the name of the node."""
    opset, found = opset_of(model), {}
    for node in model.graph.node:
        if node.op_type not in op_types or not is_standard(node):
            continue
        given = {entry.name for entry in node.attribute}
        known = defs.get_schema(node.op_type, opset, "").attributes.keys()
        # output_shape and auto_pad are other ways to give the pads.
        if missing := known - given - {"output_shape", "auto_pad"}:
            found[node.name or node.output[0]] = tuple(sorted(missing))
    return found


class _Sized:
    """A convolution or pooling, with the facts that determine its sizes.

    Args:
        index: The graph.
        node: The node.
        schema: Its operator.
    """

    def __init__(self, index: GraphIndex, node: onnx.NodeProto, schema: defs.OpSchema) -> None:
        self._index, self._node, self._schema = index, node, schema
        self._sizes = self._shape(node.input[0])[2:]
        self._kernel = self._find_kernel()

    def write(self) -> None:
        """Write the attributes with a value per spatial axis."""
        if self._kernel is None:
            return
        axes = len(self._kernel)
        self._give("kernel_shape", self._kernel)
        self._give("strides", [1] * axes)
        self._give("dilations", [1] * axes)
        self._give("output_padding", [0] * axes)
        pads = self._find_pads(axes)
        if pads is None:
            return
        for name in ("auto_pad", "output_shape", "pads"):
            _drop(self._node, name)
        self._give("pads", pads)

    def _give(self, name: str, value: Sequence[int]) -> None:
        if name in self._schema.attributes:
            _set(self._node, name, list(value))

    def _find_kernel(self) -> list[int] | None:
        given = attribute(self._node, "kernel_shape", None)
        if given is not None:
            return list(given)
        weight = facts(self._node.op_type).weight
        if weight is None or weight >= len(self._node.input):
            return None
        sizes = self._shape(self._node.input[weight])[2:]
        return [int(size) for size in sizes if size] if sizes and all(sizes) else None

    def _shape(self, name: str) -> tuple[int | None, ...]:
        """Return a tensor's shape; ONNX infers none behind a pair of com.microsoft."""
        maker = self._index.maker(name)
        while name not in self._index.shapes and maker is not None:
            if not facts(maker.op_type).is_conversion:
                break
            name = maker.input[0]
            maker = self._index.maker(name)
        return self._index.shapes.get(name, ())

    def _find_pads(self, axes: int) -> list[int] | None:
        """Return begins, then ends; None if a needed size is unknown."""
        auto_pad = _text(attribute(self._node, "auto_pad", "NOTSET"))
        output_shape = attribute(self._node, "output_shape", None)
        if output_shape is None and auto_pad not in _PADDED_BY_SIZE:
            given = attribute(self._node, "pads", None) if auto_pad == "NOTSET" else None
            return list(given or [0] * (2 * axes))
        totals = [self._padded(axis, output_shape) for axis in range(axes)]
        if any(total is None or total < 0 for total in totals):
            return None
        lesser = [(total or 0) // 2 for total in totals]
        greater = [(total or 0) - less for total, less in zip(totals, lesser, strict=True)]
        first, last = (lesser, greater) if self._is_less_first(auto_pad) else (greater, lesser)
        return [*first, *last]

    def _is_less_first(self, auto_pad: str) -> bool:
        """Return ONNX Runtime's rule: an odd pad goes to the end, of SAME_LOWER to the
        beginning.
        """
        if self._node.op_type == "ConvTranspose":
            return auto_pad == "SAME_UPPER"
        return auto_pad != "SAME_LOWER"

    def _padded(self, axis: int, output_shape: Sequence[int] | None) -> int | None:
        """Return the pads of both ends together."""
        size = self._sizes[axis] if axis < len(self._sizes) else None
        if not size or self._kernel is None:
            return None
        axes = len(self._kernel)
        stride = attribute(self._node, "strides", [1] * axes)[axis]
        dilation = attribute(self._node, "dilations", [1] * axes)[axis]
        reach = (self._kernel[axis] - 1) * dilation + 1
        if self._node.op_type == "ConvTranspose":
            extra = attribute(self._node, "output_padding", [0] * axes)[axis]
            wanted = output_shape[-axes:][axis] if output_shape else size * stride
            return int(stride * (size - 1) + extra + reach - wanted)
        return int(max(0, (math.ceil(size / stride) - 1) * stride + reach - size))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _set(node: onnx.NodeProto, name: str, value: Any) -> None:
    if all(entry.name != name for entry in node.attribute):
        node.attribute.append(helper.make_attribute(name, value))


def _drop(node: onnx.NodeProto, name: str) -> None:
    for entry in [entry for entry in node.attribute if entry.name == name]:
        node.attribute.remove(entry)
