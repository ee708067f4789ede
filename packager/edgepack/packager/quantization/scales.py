"""From a range of real numbers to a scale and a zero point, and from weights to integers.

real = (integer - zero_point) * scale
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]

_DTYPES: dict[str, type[np.integer]] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
}
_EXPONENTS_TRIED = 6
_SHRINKS = np.linspace(1.0, 0.4, 13)
_BIAS_LIMIT = 2.0**30
"""Biases stay within half of int32, so that accumulation has room."""


@dataclass(frozen=True, kw_only=True)
class IntegerType:
    """How reals become integers.

    Attributes:
        dtype: `uint8`, `int8`, `uint16` or `int16`.
        symmetric: Zero point in the middle of the range.
        power_of_two: The scale is 2**n.
        min_real_range: Least width of a range.
        reduce_range: Use one bit less.
    """

    dtype: str
    symmetric: bool
    power_of_two: bool = False
    min_real_range: float = 1e-4
    reduce_range: bool = False

    @property
    def numpy(self) -> type[np.integer]:
        """NumPy's type."""
        return _DTYPES[self.dtype]

    @cached_property
    def lowest(self) -> int:
        """Least integer."""
        if self.reduce_range:
            return int(np.iinfo(self.numpy).min) // 2
        return int(np.iinfo(self.numpy).min)

    @cached_property
    def highest(self) -> int:
        """Greatest integer."""
        if self.reduce_range:
            return int(np.iinfo(self.numpy).max) // 2
        return int(np.iinfo(self.numpy).max)

    @cached_property
    def middle(self) -> int:
        """The zero point of a symmetric range."""
        return (self.lowest + self.highest + 1) // 2


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Scale and zero point of one tensor (scalars) or of each channel (float32 (channels,)).

    Attributes:
        scale: float32, () or (channels,).
        zero_point: int, the same for every channel.
        axis: The channels' axis; None for one scale.
        kind: The integer type.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.integer]
    axis: int | None
    kind: IntegerType

    @property
    def lowest_real(self) -> float:
        """Least real number that can be expressed (one scale only)."""
        return float((self.kind.lowest - int(self.zero_point)) * float(self.scale))

    @property
    def highest_real(self) -> float:
        """Greatest real number that can be expressed (one scale only)."""
        return float((self.kind.highest - int(self.zero_point)) * float(self.scale))


def scale_of_range(low: float, high: float, kind: IntegerType) -> Scale:
    """The scale that covers a range; zero is always exactly representable.

    Args:
        low, high: The range of reals.
        kind: The integer type.

    Returns:
        The scale and zero point, scalars.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < kind.min_real_range:
        high = low + kind.min_real_range
    if kind.symmetric:
        bound = max(-low, high)
        zero_point = kind.middle
        scale = bound / (kind.highest - kind.middle)
        if kind.power_of_two:
            scale = 2.0 ** math.ceil(math.log2(scale) - 1e-9)
    else:
        scale = (high - low) / (kind.highest - kind.lowest)
        zero_point = int(np.clip(round(kind.lowest - low / scale), kind.lowest, kind.highest))
    return fixed_scale(scale, zero_point, kind)


def fixed_scale(scale: float, zero_point: int, kind: IntegerType) -> Scale:
    """A scale that is given rather than derived."""
    return Scale(
        scale=np.array(scale, dtype=np.float32),
        zero_point=np.array(zero_point, dtype=kind.numpy),
        axis=None,
        kind=kind,
    )


def scale_of_weights(
    weights: FloatArray, axis: int | None, kind: IntegerType, method: Literal["minmax", "mse"]
) -> Scale:
    """The scale of a constant, from its values.

    Args:
        weights: float (any shape).
        axis: Axis of the channels, or None for one scale.
        kind: The integer type.
        method: `minmax` covers every value; `mse` takes the range with the least mean squared
            error (for powers of two: the exponent).

    Returns:
        The scale, () or (channels,).
    """
    if axis is None:
        return _scale_of_block(weights, kind, method)
    channels = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    scales = [_scale_of_block(channel, kind, method) for channel in channels]
    return Scale(
        scale=np.array([float(entry.scale) for entry in scales], dtype=np.float32),
        zero_point=np.array([int(entry.zero_point) for entry in scales], dtype=kind.numpy),
        axis=axis,
        kind=kind,
    )


def _scale_of_block(
    values: FloatArray, kind: IntegerType, method: Literal["minmax", "mse"]
) -> Scale:
    low = float(values.min()) if values.size else 0.0
    high = float(values.max()) if values.size else 0.0
    widest = scale_of_range(low, high, kind)
    if method == "minmax" or not values.size:
        return widest
    if kind.power_of_two:
        tried = [
            fixed_scale(float(widest.scale) * 2.0**-step, int(widest.zero_point), kind)
            for step in range(_EXPONENTS_TRIED)
        ]
    else:
        tried = [scale_of_range(low * shrink, high * shrink, kind) for shrink in _SHRINKS]
    errors = [float(np.mean((restore(quantize(values, s), s) - values) ** 2)) for s in tried]
    return tried[int(np.argmin(errors))]


def quantize(values: FloatArray, scale: Scale) -> npt.NDArray[np.integer]:
    """Integers of reals, rounded half to even and saturated, as QuantizeLinear does it."""
    factor, zero_point = _aligned(scale, values.ndim)
    integers = np.rint(values.astype(np.float32) / factor) + zero_point.astype(np.float32)
    limited: npt.NDArray[np.integer] = np.clip(
        integers, scale.kind.lowest, scale.kind.highest
    ).astype(scale.kind.numpy)
    return limited


def restore(integers: npt.NDArray[np.integer], scale: Scale) -> FloatArray:
    """Reals of integers, as DequantizeLinear does it."""
    factor, zero_point = _aligned(scale, integers.ndim)
    difference = integers.astype(np.int32) - zero_point.astype(np.int32)
    return difference.astype(np.float32) * factor


def _aligned(scale: Scale, ndim: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.integer]]:
    if scale.axis is None:
        return scale.scale, scale.zero_point
    shape = [1] * ndim
    shape[scale.axis] = -1
    return scale.scale.reshape(shape), scale.zero_point.reshape(shape)


def widen_for_bias(weight: Scale, activation: Scale, bias: FloatArray) -> Scale:
    """Widens weight scales where a bias would not fit into int32 with scale act * weight.

    Args:
        weight: Scale of the weights, () or (channels,).
        activation: Scale of the layer's input.
        bias: float (channels,).

    Returns:
        The same scale, or one with wider channels.
    """
    needed = np.abs(bias).astype(np.float64) / (float(activation.scale) * _BIAS_LIMIT)
    if weight.axis is None:
        needed = np.asarray(needed.max() if needed.size else 0.0)
    if weight.kind.power_of_two:
        needed = 2.0 ** np.ceil(np.log2(np.maximum(needed, 1e-38)))
    widened = np.maximum(weight.scale, needed.astype(np.float32)).astype(np.float32)
    return Scale(scale=widened, zero_point=weight.zero_point, axis=weight.axis, kind=weight.kind)
