"""Fixed shapes that compute what free shapes compute: a graph that knows which pixels are padding.

A graph of fixed size gets smaller pictures with zeros behind. Without a mask it reads these as
pixels: a convolution at the edge sees biases in place of its own zeros, an average and a softmax
count them. So a text recognizer drops spaces. The graph gets one more input, 1 for pixels and 0 for
padding, and

1. what a convolution slides over is 0 in the padding, and so is what a MaxPool with pads of its own
   takes, if no value is below 0,
2. an average over the picture is divided by the share of pixels,
3. a softmax over the picture adds a bias that hides the padding,
4. outputs are 0 in the padding.

Smaller layers get the mask by the strides of convolutions and pools.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.bundle.generation import HIDDEN_BIAS
from edgepack.packager.graph.edits import drop_unused_nodes, refill, sort_nodes
from edgepack.packager.graph.known_shapes import fold_shapes
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.queries import attribute, attributes
from edgepack.packager.passes.plain_constants import make_constants_plain
from edgepack.packager.source.fixed_inputs import fix_shapes
from edgepack.stages.wiring import MASK_INPUT

_RANK = 4
_NOT_NEGATIVE = ("Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus")

Shape = tuple[int, ...]


class UnmaskableError(ValueError):
    """A graph with an operator for which padding cannot be hidden."""


def add_padding_mask(
    model: onnx.ModelProto, name: str, shape: Shape, axes: Sequence[int]
) -> onnx.ModelProto:
    """Return a model of fixed size with one more input, the mask of its padding.

    Args:
        model: The model, with open sizes.
        name: Input float32 (1, channels, height, width).
        shape: Its fixed shape.
        axes: Axes that may have padding at their ends: height, width, or both.

    Raises:
        UnmaskableError: The graph has an operator for which padding cannot be hidden.
    """
    fixed = deepcopy(model)
    make_constants_plain(fixed.graph)
    larger = deepcopy(fixed)
    doubled = tuple(size * (2 if axis in axes else 1) for axis, size in enumerate(shape))
    shapes = []
    for one, sizes in ((fixed, shape), (larger, doubled)):
        fix_shapes(one, one.graph.input, {name: sizes})
        shapes.append(fold_shapes(one))
    if len(shape) != _RANK or any(one.name == name + MASK_INPUT for one in fixed.graph.input):
        raise UnmaskableError(f"input '{name}' has {len(shape)} axes, or a mask already")
    return _Masking(fixed, shapes[0], _find_open(*shapes), name, tuple(axes)).apply()


def _find_open(
    shapes: Mapping[str, Shape], larger: Mapping[str, Shape]
) -> dict[str, tuple[int, ...]]:
    """Return by tensor the axes whose sizes grow with the picture."""
    return {
        name: tuple(axis for axis, size in enumerate(sizes) if larger[name][axis] != size)
        for name, sizes in shapes.items()
        if name in larger and larger[name] != sizes
    }


class _Masking:
    """Adds the mask to a graph, node by node.

    Args:
        model: The model with fixed shapes; changed.
        shapes: Shape by tensor.
        open_axes: See `_find_open`.
        name: The input.
        axes: See `add_padding_mask`.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        shapes: dict[str, Shape],
        open_axes: Mapping[str, tuple[int, ...]],
        name: str,
        axes: tuple[int, ...],
    ) -> None:
        self._model, self._shapes, self._open = model, shapes, open_axes
        self._axes = axes
        mask = name + MASK_INPUT
        sizes = tuple(shapes[name][axis] if axis in axes else 1 for axis in range(_RANK))
        model.graph.input.append(helper.make_tensor_value_info(mask, TensorProto.FLOAT, sizes))
        self._sizes = {mask: sizes}
        self._mask_of = {name: mask}
        self._masked = {name}
        self._nodes: list[onnx.NodeProto] = []
        self._made: dict[tuple[object, ...], str] = {}
        self._not_negative = {
            name
            for node in model.graph.node
            if node.op_type in _NOT_NEGATIVE
            for name in node.output
        }

    def apply(self) -> onnx.ModelProto:
        """Return the changed model."""
        graph = self._model.graph
        sort_nodes(graph)
        for node in graph.node:
            given = [one for one in node.input if one in self._mask_of]
            if not given:
                self._nodes.append(node)
                continue
            act = _ACTS.get(node.op_type, _Masking._pass_on)
            act(self, node, given[0])
        self._mask_outputs()
        refill(graph.node, self._nodes)
        drop_unused_nodes(graph)
        return self._model

    def _pass_on(self, node: onnx.NodeProto, given: str) -> None:
        """Keep the mask of a node that works on each place alone, or moves places."""
        self._nodes.append(node)
        self._mark(node, self._mask_of[given])

    def _mark(self, node: onnx.NodeProto, mask: str) -> None:
        for output in node.output:
            if self._open.get(output):
                self._mask_of[output] = mask

    def _window(self, node: onnx.NodeProto, given: str) -> None:
        """Hide padding from a convolution or a pool, and make the mask of its output."""
        options = attributes(node)
        is_pool = node.op_type != "Conv"
        kernel = options.get("kernel_shape") or self._shapes[node.input[1]][2:]
        count = len(kernel)
        steps = options.get("strides", [1] * count)
        apart = options.get("dilations", [1] * count)
        pads = options.get("pads", [0] * 2 * count)
        if options.get("ceil_mode") or options.get("auto_pad", b"NOTSET") != b"NOTSET":
            raise UnmaskableError(f"{node.op_type} '{node.output[0]}' rounds sizes up")
        is_hiding = node.op_type == "MaxPool" and given in self._not_negative
        if is_pool and any(pads) and not is_hiding:
            raise UnmaskableError(f"{node.op_type} '{node.output[0]}' pads its input")
        spans = [(size - 1) * gap + 1 for size, gap in zip(kernel, apart, strict=True)]
        is_open = [axis + 2 in self._open[given] for axis in range(count)]
        reaches = any(span > 1 and yes for span, yes in zip(spans, is_open, strict=True))
        if reaches and (not is_pool or any(pads)):
            node.input[0] = self._hidden(given)
        self._nodes.append(node)
        mask = self._mask_of[given]
        firsts = [
            max(span - 1 - pads[axis] - pads[axis + count], 0) for axis, span in enumerate(spans)
        ]
        if any(is_open[axis] and (steps[axis], firsts[axis]) != (1, 0) for axis in range(count)):
            mask = self._thin(mask, firsts, steps)
            made = self._shapes[node.output[0]]
            if any(self._sizes[mask][axis] != made[axis] for axis in self._axes):
                raise UnmaskableError(f"{node.op_type} '{node.output[0]}' makes an odd size")
        self._mark(node, mask)

    def _thin(self, mask: str, firsts: Sequence[int], steps: Sequence[int]) -> str:
        """Return the mask of an output: place j is valid if the last pixel of its window is."""
        axes = self._axes
        starts, strides = ([values[axis - 2] for axis in axes] for values in (firsts, steps))
        key = ("thin", mask, tuple(starts), tuple(strides))
        if key not in self._made:
            ends = [self._sizes[mask][axis] for axis in axes]
            names = [self._store(values) for values in (starts, ends, axes, strides)]
            self._made[key] = thinned = self._add("Slice", [mask, *names])
            sizes = list(self._sizes[mask])
            for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
                sizes[axis] = len(range(start, end, stride))
            self._sizes[thinned] = tuple(sizes)
        return self._made[key]

    def _grow(self, node: onnx.NodeProto, given: str) -> None:
        """Enlarge the mask as an operator without overlap enlarges its picture."""
        options = attributes(node)
        mask, made = self._mask_of[given], self._shapes[node.output[0]]
        if node.op_type == "ConvTranspose":
            kernel = options.get("kernel_shape") or list(self._shapes[node.input[1]][2:])
            is_plain = kernel == options.get("strides") and not any(options.get("pads", ()))
        else:
            is_plain = options.get("mode", b"nearest") == b"nearest"
        ratios = {axis: made[axis] / self._shapes[given][axis] for axis in self._open[given]}
        if not is_plain or any(ratio != int(ratio) for ratio in ratios.values()):
            raise UnmaskableError(f"{node.op_type} '{node.output[0]}' mixes neighbours")
        self._nodes.append(node)
        for axis, ratio in ratios.items():
            mask = self._repeat(mask, axis, int(ratio))
        self._mark(node, mask)

    def _repeat(self, mask: str, axis: int, times: int) -> str:
        """Return a mask with each of its places repeated along an axis."""
        key = ("repeat", mask, axis, times)
        if key not in self._made:
            height, width = self._sizes[mask][2:]
            apart = (1, height, 1, width) if axis == 2 else (1, height, width, 1)
            ones = np.ones((1, 1, times, 1) if axis == 2 else (1, 1, 1, times), np.float32)
            split = self._add("Reshape", [mask, self._store(apart)])
            copied = self._add("Mul", [split, self._store(ones)])
            sizes = (1, 1, height * times, width) if axis == 2 else (1, 1, height, width * times)
            self._made[key] = self._add("Reshape", [copied, self._store(sizes)])
            self._sizes[self._made[key]] = sizes
        return self._made[key]

    def _average(self, node: onnx.NodeProto, given: str) -> None:
        """Average over pixels alone."""
        rank = len(self._shapes[given])
        axes: Sequence[int] = range(2, rank)
        if node.op_type == "ReduceMean":
            axes = [axis % rank for axis in self._axes_of(node)]
        if not set(axes) & set(self._open[given]):
            self._pass_on(node, given)
            return
        if not set(self._open[given]) <= set(axes) or not attribute(node, "keepdims", 1):
            raise UnmaskableError(f"{node.op_type} '{node.output[0]}' averages a part")
        whole = node.output[0]
        node.input[0] = self._hidden(given)
        node.output[0] = f"{whole}/all"
        self._nodes.append(node)
        share = deepcopy(node)
        mask = self._view(given, self._open[given])
        key = ("share", mask, node.op_type, tuple(axes))
        if key not in self._made:
            del share.input[:], share.output[:]
            share.input.extend([mask, *node.input[1:]])
            share.output.append(f"{mask}/share-{len(self._made)}")
            share.name = share.output[0]
            self._nodes.append(share)
            self._made[key] = share.output[0]
        self._add("Div", [node.output[0], self._made[key]], whole)

    def _softmax(self, node: onnx.NodeProto, given: str) -> None:
        """Give places in the padding no share."""
        rank = len(self._shapes[given])
        is_old = opset_of(self._model) < 13
        axis = attribute(node, "axis", 1 if is_old else -1) % rank
        if is_old and axis != rank - 1:
            raise UnmaskableError(f"Softmax '{node.output[0]}' is over several axes")
        if axis in self._open[given]:
            mask = self._view(given, (axis,))
            key = ("bias", mask)
            if key not in self._made:
                low = self._store(np.float32(-HIDDEN_BIAS))
                self._made[key] = self._add(
                    "Sub", [self._add("Mul", [mask, low]), self._store(np.float32(-HIDDEN_BIAS))]
                )
            node.input[0] = self._add("Add", [given, self._made[key]])
        self._pass_on(node, given)

    def _hidden(self, given: str) -> str:
        """Return a tensor with 0 in the padding."""
        if given in self._masked:
            return given
        key = ("hidden", given)
        if key not in self._made:
            self._made[key] = self._add("Mul", [given, self._view(given, self._open[given])])
        return self._made[key]

    def _view(self, given: str, axes: Sequence[int]) -> str:
        """Return the mask of a tensor along some of its axes, in a shape that broadcasts."""
        mask, sizes = self._mask_of[given], self._shapes[given]
        shape = tuple(size if axis in axes else 1 for axis, size in enumerate(sizes))
        if shape == self._sizes[mask]:
            return mask
        if np.prod(shape) != np.prod(self._sizes[mask]):
            raise UnmaskableError(f"the mask does not fit the tensor '{given}'")
        key = ("view", mask, shape)
        if key not in self._made:
            self._made[key] = self._add("Reshape", [mask, self._store(shape)])
        return self._made[key]

    def _mask_outputs(self) -> None:
        for output in self._model.graph.output:
            if output.name in self._mask_of:
                inner = f"{output.name}/whole"
                for node in self._nodes:
                    for names in (node.input, node.output):
                        names[:] = [inner if one == output.name else one for one in names]
                view = self._view(output.name, self._open[output.name])
                self._add("Mul", [inner, view], output.name)

    def _axes_of(self, node: onnx.NodeProto) -> Sequence[int]:
        if len(node.input) > 1:
            stored = {one.name: one for one in self._model.graph.initializer}
            return [int(axis) for axis in numpy_helper.to_array(stored[node.input[1]])]
        return list(attribute(node, "axes", ()))

    def _add(self, kind: str, inputs: Sequence[str], output: str = "") -> str:
        name = f"{inputs[0]}/{kind}-{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output or name], name))
        return output or name

    def _store(self, values: object) -> str:
        array = np.asarray(values)
        if array.dtype != np.float32:
            array = array.astype(np.int64)
        key = ("stored", array.dtype.name, array.shape, tuple(array.ravel().tolist()))
        if key not in self._made:
            self._made[key] = f"mask-constant-{len(self._made)}"
            stored = numpy_helper.from_array(array, self._made[key])
            self._model.graph.initializer.append(stored)
        return self._made[key]


_ACTS = {
    "Conv": _Masking._window,
    "AveragePool": _Masking._window,
    "MaxPool": _Masking._window,
    "ConvTranspose": _Masking._grow,
    "Resize": _Masking._grow,
    "Upsample": _Masking._grow,
    "GlobalAveragePool": _Masking._average,
    "ReduceMean": _Masking._average,
    "Softmax": _Masking._softmax,
}
"""Operators that mix places; each other one works on each place alone, which the build checks."""
