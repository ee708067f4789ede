"""Small networks that numpy trains in seconds and that become ONNX graphs.

Every operation on a `Tensor` computes its value, keeps how its gradient goes back, and names the
ONNX node that computes the same. `export` follows the operations of an inference.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Back = Callable[[Array], Sequence[Array]]
"""Gradient of a result to the gradients of its parents, in their order."""


@dataclass(eq=False, kw_only=True)
class Tensor:
    """A value in a computation.

    Attributes:
        value: The value; the first axis is the batch.
        parents: Inputs of the computation.
        back: Its gradient's way back; None of inputs and constants.
        op, attributes, constants: The ONNX node: operator, attributes, further inputs behind the
            parents; "" of inputs and parameters.
        name: In the ONNX graph; "" is named by `export`.
        is_input: Fed, not stored in the model.
        grad: Filled by `backward`.
    """

    value: Array
    parents: tuple["Tensor", ...] = ()
    back: Back | None = None
    op: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[Array, ...] = ()
    name: str = ""
    is_input: bool = False
    grad: Array | None = None

    def __add__(self, other: "Tensor | float") -> "Tensor":
        right = _as_tensor(other)
        return _result(
            "Add",
            self.value + right.value,
            (self, right),
            lambda grad: (_fit(grad, self.value), _fit(grad, right.value)),
        )

    def __sub__(self, other: "Tensor | float") -> "Tensor":
        right = _as_tensor(other)
        return _result(
            "Sub",
            self.value - right.value,
            (self, right),
            lambda grad: (_fit(grad, self.value), _fit(-grad, right.value)),
        )

    def __mul__(self, other: "Tensor | float") -> "Tensor":
        right = _as_tensor(other)
        return _result(
            "Mul",
            self.value * right.value,
            (self, right),
            lambda grad: (
                _fit(grad * right.value, self.value),
                _fit(grad * self.value, right.value),
            ),
        )

    def __truediv__(self, other: "Tensor | float") -> "Tensor":
        right = _as_tensor(other)
        value = self.value / right.value
        return _result(
            "Div",
            value,
            (self, right),
            lambda grad: (
                _fit(grad / right.value, self.value),
                _fit(-grad * value / right.value, right.value),
            ),
        )

    def __matmul__(self, right: "Tensor") -> "Tensor":
        return _result(
            "MatMul",
            self.value @ right.value,
            (self, right),
            lambda grad: (
                _fit(grad @ np.swapaxes(right.value, -1, -2), self.value),
                _fit(np.swapaxes(self.value, -1, -2) @ grad, right.value),
            ),
        )


class Parameters:
    """Weights by name, drawn at first use."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.tensors: dict[str, Tensor] = {}

    def weight(self, name: str, *shape: int, fan_in: int, gain: float = 2.0) -> Tensor:
        """Return the weight of a name; new weights have variance `gain / fan_in`."""
        if name not in self.tensors:
            drawn = self._rng.normal(0, np.sqrt(gain / fan_in), shape).astype(np.float32)
            self.tensors[name] = Tensor(value=drawn, name=name)
        return self.tensors[name]

    def zeros(self, name: str, *shape: int) -> Tensor:
        """Return the parameter of a name; a new parameter is 0."""
        if name not in self.tensors:
            self.tensors[name] = Tensor(value=np.zeros(shape, np.float32), name=name)
        return self.tensors[name]

    def dense(self, x: Tensor, name: str, width: int) -> Tensor:
        """Apply a linear layer with bias to the last axis."""
        fan_in = x.value.shape[-1]
        weight = self.weight(f"{name}.weight", fan_in, width, fan_in=fan_in)
        bias = self.zeros(f"{name}.bias", width)
        if x.value.ndim != 2:
            return x @ weight + bias
        return _result(
            "Gemm",
            x.value @ weight.value + bias.value,
            (x, weight, bias),
            lambda grad: (grad @ weight.value.T, x.value.T @ grad, grad.sum(0)),
        )

    def conv(
        self, x: Tensor, name: str, width: int, kernel: int = 3, stride: int = 1, dilation: int = 1
    ) -> Tensor:
        """Apply a convolution with bias over one or two axes, padded to keep the size."""
        channels, axes = x.value.shape[1], x.value.ndim - 2
        fan_in = channels * kernel**axes
        shape = (width, channels, *(kernel,) * axes)
        weight = self.weight(f"{name}.weight", *shape, fan_in=fan_in)
        bias = self.zeros(f"{name}.bias", width)
        return _convolve(x, weight, bias, stride, dilation)

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        """Normalize the last axis."""
        width = x.value.shape[-1]
        scale = self.zeros(f"{name}.scale", width)
        if not scale.value.any():
            scale.value += 1
        bias = self.zeros(f"{name}.bias", width)
        centred = x.value - x.value.mean(-1, keepdims=True)
        inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        normal = centred * inverse

        def back(grad: Array) -> tuple[Array, ...]:
            inner = grad * scale.value
            mean = inner.mean(-1, keepdims=True)
            along = (inner * normal).mean(-1, keepdims=True)
            return (
                inverse * (inner - mean - normal * along),
                _fit(grad * normal, scale.value),
                _fit(grad, bias.value),
            )

        return _result(
            "LayerNormalization",
            normal * scale.value + bias.value,
            (x, scale, bias),
            back,
            {"axis": -1, "epsilon": 1e-5},
        )

    def embed(self, indices: Tensor, name: str, count: int, width: int) -> Tensor:
        """Look rows up in a table by whole numbers."""
        table = self.weight(f"{name}.table", count, width, fan_in=width, gain=float(width) / 2)

        def back(grad: Array) -> tuple[Array, ...]:
            found = np.zeros_like(table.value)
            np.add.at(found, indices.value, grad)
            return (found, np.zeros(0))

        return _result("Gather", table.value[indices.value], (table, indices), back, {"axis": 0})


def inputs(value: Array, name: str) -> Tensor:
    """Return a value that the model is fed."""
    return Tensor(value=value, name=name, is_input=True)


def constant(value: Array) -> Tensor:
    """Return a value that is stored in the model and not trained."""
    return Tensor(value=value)


def relu(x: Tensor) -> Tensor:
    """Return the values above 0, else 0."""
    return _result("Relu", np.maximum(x.value, 0), (x,), lambda grad: (grad * (x.value > 0),))


def sigmoid(x: Tensor) -> Tensor:
    """Return the logistic function."""
    value = 1 / (1 + np.exp(-np.clip(x.value, -60, 60)))
    return _result("Sigmoid", value, (x,), lambda grad: (grad * value * (1 - value),))


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    value = np.tanh(x.value)
    return _result("Tanh", value, (x,), lambda grad: (grad * (1 - value**2),))


def exp(x: Tensor) -> Tensor:
    """Return the exponential."""
    value = np.exp(np.clip(x.value, -30, 30))
    return _result("Exp", value, (x,), lambda grad: (grad * value,))


def absolute(x: Tensor) -> Tensor:
    """Return the values without sign."""
    return _result("Abs", np.abs(x.value), (x,), lambda grad: (grad * np.sign(x.value),))


def square_root(x: Tensor) -> Tensor:
    """Return the square root."""
    value = np.sqrt(x.value)
    return _result("Sqrt", value, (x,), lambda grad: (grad / 2 / value,))


def softmax(x: Tensor) -> Tensor:
    """Return shares over the last axis."""
    value = shares(x.value)
    return _result(
        "Softmax",
        value,
        (x,),
        lambda grad: (value * (grad - (grad * value).sum(-1, keepdims=True)),),
        {"axis": -1},
    )


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Join values along an axis."""
    ends = np.cumsum([part.value.shape[axis] for part in parts])[:-1]
    return _result(
        "Concat",
        np.concatenate([part.value for part in parts], axis),
        tuple(parts),
        lambda grad: np.split(grad, ends, axis),
        {"axis": axis},
    )


def reshape(x: Tensor, *shape: int) -> Tensor:
    """Give the axes behind the batch another shape."""
    whole = (len(x.value), *shape)
    return _result(
        "Reshape",
        x.value.reshape(whole),
        (x,),
        lambda grad: (grad.reshape(x.value.shape),),
        constants=(np.array(whole, np.int64),),
    )


def transpose(x: Tensor, *order: int) -> Tensor:
    """Move the axes into an order, the batch included."""
    return _result(
        "Transpose",
        x.value.transpose(order),
        (x,),
        lambda grad: (grad.transpose(np.argsort(order)),),
        {"perm": list(order)},
    )


def mean(x: Tensor, *axes: int) -> Tensor:
    """Return means over axes, which stay with length 1."""
    value = x.value.mean(axes, keepdims=True)
    share = value.size / x.value.size
    return _result(
        "ReduceMean",
        value,
        (x,),
        lambda grad: (np.broadcast_to(grad * share, x.value.shape),),
        {"axes": list(axes), "keepdims": 1},
    )


def max_pool(x: Tensor) -> Tensor:
    """Return the greatest value of each 2 (one axis) or 2 x 2 places."""
    axes = x.value.ndim - 2
    split = list(x.value.shape[:2])
    for size in x.value.shape[2:]:
        split += [size // 2, 2]
    blocks = x.value.reshape(split)
    inner = tuple(range(3, 3 + 2 * axes, 2))
    value = blocks.max(inner, keepdims=True)
    winners = blocks == value

    def back(grad: Array) -> tuple[Array, ...]:
        return ((winners * grad.reshape(value.shape)).reshape(x.value.shape),)

    attributes = {"kernel_shape": [2] * axes, "strides": [2] * axes}
    return _result("MaxPool", value.squeeze(inner), (x,), back, attributes)


def upsample(x: Tensor) -> Tensor:
    """Expand each axis behind the channels to twice its size, by nearest neighbours."""
    axes = tuple(range(2, x.value.ndim))
    value = x.value
    for axis in axes:
        value = value.repeat(2, axis)

    def back(grad: Array) -> tuple[Array, ...]:
        split = list(x.value.shape[:2])
        for size in x.value.shape[2:]:
            split += [size, 2]
        return (grad.reshape(split).sum(tuple(range(3, len(split), 2))),)

    scales = np.array([1, 1] + [2] * len(axes), np.float32)
    attributes = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return _result("Resize", value, (x,), back, attributes, (np.zeros(0, np.float32), scales))


def positions(x: Tensor) -> Tensor:
    """Return 0, 1, … for the places of the second axis, of any length."""
    size = np.array([x.value.shape[1]], np.int64)
    length = _result("Shape", size, (x,), _no_gradient(1), {"start": 1, "end": 2})
    scalar = _result("Squeeze", size.squeeze(), (length,), _no_gradient(1))
    start, step = (constant(np.array(value, np.int64)) for value in (0, 1))
    value = np.arange(x.value.shape[1], dtype=np.int64)
    return _result("Range", value, (start, scalar, step), _no_gradient(3))


def named(x: Tensor, name: str) -> Tensor:
    """Give an output its name in the ONNX graph."""
    x.name = name
    return x


def shares(values: Array) -> Array:
    """Return the softmax of the last axis."""
    powers = np.exp(values - values.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def backward(losses: Mapping[Tensor, Array]) -> None:
    """Fill the gradients of all values that outputs were computed from."""
    order = _ordered(list(losses))
    for tensor in order:
        tensor.grad = None
    for tensor, grad in losses.items():
        tensor.grad = grad
    for tensor in reversed(order):
        if tensor.back is None or tensor.grad is None:
            continue
        for parent, grad in zip(tensor.parents, tensor.back(tensor.grad), strict=True):
            if grad.size and (parent.back is not None or (parent.name and not parent.is_input)):
                parent.grad = grad if parent.grad is None else parent.grad + grad


def train(
    step: Callable[[np.random.Generator], Mapping[Tensor, Array]],
    parameters: Parameters,
    *,
    steps: int,
    rate: float = 3e-3,
    seed: int = 0,
) -> None:
    """Train by Adam with a rate that falls to 0.

    Args:
        step: Draws a batch and returns the gradient of the loss at each output.
        parameters: Changed in place.
        steps: Batches.
        rate: Of the first step.
        seed: Of the batches.
    """
    rng = np.random.default_rng(seed)
    firsts: dict[str, Array] = {}
    seconds: dict[str, Array] = {}
    with _one_thread():
        for count in range(1, steps + 1):
            backward(step(rng))
            size = rate * 0.5 * (1 + np.cos(np.pi * count / steps))
            for name, tensor in parameters.tensors.items():
                if tensor.grad is None:
                    continue
                first = 0.9 * firsts.get(name, np.float32(0)) + 0.1 * tensor.grad
                second = 0.99 * seconds.get(name, np.float32(0)) + 0.01 * tensor.grad**2
                firsts[name], seconds[name] = first, second
                scaled = np.sqrt(second / (1 - 0.99**count)) + 1e-8
                move = size * first / (1 - 0.9**count) / scaled
                tensor.value = (tensor.value - move).astype(np.float32)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit numpy's products to a single thread: two threads wait ten times as long as they work.

    That holds for small products on a busy machine. Nothing changes where numpy has another BLAS.
    """
    found = sorted(Path(np.__file__).parents[1].glob("numpy.libs/libscipy_openblas64*"))
    if not found:
        yield
        return
    library = ctypes.CDLL(str(found[0]))
    before = library.scipy_openblas_get_num_threads64_()
    library.scipy_openblas_set_num_threads64_(1)
    try:
        yield
    finally:
        library.scipy_openblas_set_num_threads64_(before)


def export(outputs: Sequence[Tensor], *, free_axes: Mapping[str, Mapping[int, str]] = {}) -> Any:
    """Return the ONNX model of an inference.

    Args:
        outputs: The outputs, each with a name, computed from a batch of 1.
        free_axes: By input or output, the names of axes of any length; other axes are fixed.
    """
    nodes, fed, stored = [], [], []
    for count, tensor in enumerate(_ordered(outputs)):
        tensor.name = tensor.name or f"t{count}"
        if tensor.is_input:
            fed.append(_value_info(tensor, free_axes))
        elif not tensor.op:
            stored.append(numpy_helper.from_array(tensor.value, tensor.name))
        else:
            names = [parent.name for parent in tensor.parents]
            for number, value in enumerate(tensor.constants):
                name = f"{tensor.name}.{number}" if value.size else ""
                if name:
                    stored.append(numpy_helper.from_array(value, name))
                names.append(name)
            nodes.append(
                helper.make_node(
                    tensor.op,
                    names,
                    [tensor.name],
                    name=f"{tensor.op}_{count}",
                    **tensor.attributes,
                )
            )
    results = [_value_info(tensor, free_axes) for tensor in outputs]
    graph = helper.make_graph(nodes, "graph", fed, results, stored)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="benchmark"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _value_info(tensor: Tensor, free_axes: Mapping[str, Mapping[int, str]]) -> Any:
    kind = TensorProto.INT64 if tensor.value.dtype == np.int64 else TensorProto.FLOAT
    free = free_axes.get(tensor.name, {})
    shape = [free.get(axis, size) for axis, size in enumerate(tensor.value.shape)]
    return helper.make_tensor_value_info(tensor.name, kind, shape)


def _ordered(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return all values that outputs need, each behind its parents."""
    order: dict[Tensor, None] = {}
    waiting: list[tuple[Tensor, bool]] = [(tensor, False) for tensor in reversed(outputs)]
    while waiting:
        tensor, is_ready = waiting.pop()
        if is_ready:
            order[tensor] = None
        elif tensor not in order:
            waiting.append((tensor, True))
            waiting += [(parent, False) for parent in reversed(tensor.parents)]
    return list(order)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor, stride: int, dilation: int) -> Tensor:
    """Compute a convolution as a single product: channels come first, so that shifted copies are
    copies of rows.
    """
    kernel = weight.value.shape[2:]
    axes = len(kernel)
    pads = [(size - 1) * dilation // 2 for size in kernel]
    by_channel = np.swapaxes(x.value, 0, 1)
    padded = np.pad(by_channel, [(0, 0), (0, 0), *((pad, pad) for pad in pads)])
    channels, count = by_channel.shape[:2]
    sizes = [(size - 1) // stride + 1 for size in x.value.shape[2:]]
    cuts = [
        (
            *(slice(None), slice(None)),
            *(
                slice(start * dilation, start * dilation + (size - 1) * stride + 1, stride)
                for start, size in zip(offset, sizes, strict=True)
            ),
        )
        for offset in np.ndindex(*kernel)
    ]
    columns = np.empty((channels, len(cuts), count, *sizes), x.value.dtype)
    for index, cut in enumerate(cuts):
        columns[:, index] = padded[cut]
    matrix = columns.reshape(channels * len(cuts), -1)
    flat = weight.value.reshape(len(weight.value), -1)
    value = (flat @ matrix + bias.value[:, None]).reshape(len(flat), count, *sizes)

    def back(grad: Array) -> tuple[Array, ...]:
        by_row = np.swapaxes(grad, 0, 1).reshape(len(flat), -1)
        of_weight, of_bias = (by_row @ matrix.T).reshape(weight.value.shape), by_row.sum(1)
        if x.back is None:
            return np.zeros(0), of_weight, of_bias
        parts = (flat.T @ by_row).reshape(columns.shape)
        found = np.zeros_like(padded)
        for index, cut in enumerate(cuts):
            found[cut] += parts[:, index]
        inner = (slice(pad, pad + size) for pad, size in zip(pads, x.value.shape[2:], strict=True))
        of_x = found[(slice(None), slice(None), *inner)]
        return np.swapaxes(of_x, 0, 1), of_weight, of_bias

    attributes = {
        "kernel_shape": list(kernel),
        "pads": pads * 2,
        "strides": [stride] * axes,
        "dilations": [dilation] * axes,
    }
    whole = np.ascontiguousarray(np.swapaxes(value, 0, 1))
    return _result("Conv", whole, (x, weight, bias), back, attributes)


def _result(
    op: str,
    value: Array,
    parents: tuple[Tensor, ...],
    back: Back,
    attributes: Mapping[str, Any] | None = None,
    constants: tuple[Array, ...] = (),
) -> Tensor:
    return Tensor(
        value=value,
        parents=parents,
        back=back,
        op=op,
        attributes=attributes or {},
        constants=constants,
    )


def _no_gradient(parents: int) -> Back:
    return lambda grad: (np.zeros(0),) * parents


def _as_tensor(value: "Tensor | float") -> Tensor:
    return value if isinstance(value, Tensor) else constant(np.array(value, np.float32))


def _fit(grad: Array, value: Array) -> Array:
    """Sum a gradient over the axes along which a value was repeated."""
    extra = grad.ndim - value.ndim
    summed = grad.sum(tuple(range(extra))) if extra else grad
    axes = tuple(
        axis for axis, size in enumerate(value.shape) if size == 1 and summed.shape[axis] != 1
    )
    return np.asarray(summed.sum(axes, keepdims=True) if axes else summed)
