"""From a range of real numbers to a scale and a zero point, and from weights to integers.

real = (integer - zero_point) * scale
"""

from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgepack.tasks.arrays import Floats, Integers, Singles

FloatArray = npt.NDArray[np.floating]

_DTYPES: dict[str, type[np.integer]] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
}
_EXPONENTS_TRIED = 6
_SHRINKS = np.linspace(1.0, 0.4, 13)
_VALUES_AT_ONCE = 1 << 18
"""Of weights, whose scales are compared: several copies of so many are held."""

_BIAS_LIMIT = 2.0**30
"""Biases stay within half of int32, so that accumulation has room."""

_NEAR_POWER, _STEP_OFF = 2e-6, 8e-6
"""A float32 is known to 1e-7; a step changes no integer that matters."""


class IntegerType(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Integer type for reals.

    Attributes:
        dtype: `uint8`, `int8`, `uint16` or `int16`.
        symmetric: Zero point in the middle of the range.
        power_of_two: The scale is 2**n.
        min_real_range: Least width of a range.
        reduce_range: Use a bit less.
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
        return int(np.iinfo(self.numpy).min) // (2 if self.reduce_range else 1)

    @cached_property
    def highest(self) -> int:
        """Greatest integer."""
        return int(np.iinfo(self.numpy).max) // (2 if self.reduce_range else 1)

    @cached_property
    def middle(self) -> int:
        """The zero point of a symmetric range."""
        return (self.lowest + self.highest + 1) // 2


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Scale and zero point of a tensor (scalars) or of each channel (float32 (channels,)).

    Attributes:
        scale: float32, () or (channels,).
        zero_point: int, the same for every channel.
        axis: The channels' axis; None for a single scale.
        kind: The integer type.
    """

    scale: Singles
    zero_point: npt.NDArray[np.integer]
    axis: int | None
    kind: IntegerType

    @property
    def lowest_real(self) -> float:
        """Least real number that can be expressed (single scale only)."""
        return float((self.kind.lowest - int(self.zero_point)) * float(self.scale))

    @property
    def highest_real(self) -> float:
        """Greatest real number that can be expressed (single scale only)."""
        return float((self.kind.highest - int(self.zero_point)) * float(self.scale))


def scale_of_range(low: float, high: float, kind: IntegerType) -> Scale:
    """Return the scale that covers a range; zero is always exactly representable.

    Args:
        low, high: The range of reals.
        kind: The integer type.

    Returns:
        The scale and zero point, scalars.
    """
    scales, zero_points = scales_of_ranges(np.array([low]), np.array([high]), kind)
    return fixed_scale(float(scales[0]), int(zero_points[0]), kind)


def scales_of_ranges(low: Floats, high: Floats, kind: IntegerType) -> tuple[Floats, Integers]:
    """Return scales and zero points that cover the ranges; zero is always exactly representable.

    Args:
        low, high: The ranges of reals, float64 (ranges,).
        kind: The integer type.

    Returns:
        Scales, float64, and zero points, both (ranges,).
    """
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    high = np.maximum(high, low + kind.min_real_range)
    if not kind.symmetric:
        scale = (high - low) / (kind.highest - kind.lowest)
        zero_point = np.rint(kind.lowest - low / scale)
        return scale, np.clip(zero_point, kind.lowest, kind.highest).astype(np.int64)
    scale = np.maximum(-low, high) / (kind.highest - kind.middle)
    if kind.power_of_two:
        scale = 2.0 ** np.ceil(np.log2(scale) - 1e-9)
    return scale, np.full(np.shape(scale), kind.middle)


def fixed_scale(scale: float, zero_point: int, kind: IntegerType) -> Scale:
    """Return a scale that is given rather than derived."""
    return Scale(
        scale=np.array(scale, dtype=np.float32),
        zero_point=np.array(zero_point, dtype=kind.numpy),
        axis=None,
        kind=kind,
    )


def scale_of_weights(
    weights: FloatArray, axis: int | None, kind: IntegerType, method: Literal["minmax", "mse"]
) -> Scale:
    """Return the scale of a constant, from its values.

    Args:
        weights: float (any shape).
        axis: Axis of the channels, or None for a single scale.
        kind: The integer type.
        method: `minmax` covers every value; `mse` takes the range with the least mean squared error
            (for powers of two: the exponent).

    Returns:
        The scale, () or (channels,).
    """
    rows = 1 if axis is None else weights.shape[axis]
    channels = weights if axis is None else np.moveaxis(weights, axis, 0)
    channels = channels.reshape(rows, -1) if weights.size else np.zeros((rows, 0), np.float32)
    at_once = max(1, _VALUES_AT_ONCE // max(1, channels.shape[1]))
    found = [
        _scales_of_rows(channels[start : start + at_once], kind, method)
        for start in range(0, rows, at_once)
    ]
    shape = () if axis is None else (rows,)
    return Scale(
        scale=np.concatenate([scale for scale, _ in found]).reshape(shape),
        zero_point=np.concatenate([zero for _, zero in found]).reshape(shape),
        axis=axis,
        kind=kind,
    )


def _scales_of_rows(
    rows: FloatArray, kind: IntegerType, method: Literal["minmax", "mse"]
) -> tuple[Singles, npt.NDArray[np.integer]]:
    """Scale and zero point of each row.

    Args:
        rows: float32 (channels, values).
        kind, method: See `scale_of_weights`.

    Returns:
        (channels,) and (channels,).
    """
    low = rows.min(axis=1, initial=0.0).astype(np.float64)
    high = rows.max(axis=1, initial=0.0).astype(np.float64)
    widest, zero_points = scales_of_ranges(low, high, kind)
    if method == "minmax" or not rows.size:
        return np.asarray(widest, np.float32), np.asarray(zero_points, kind.numpy)
    if kind.power_of_two:
        tried = [(widest * 2.0**-step, zero_points) for step in range(_EXPONENTS_TRIED)]
    else:
        tried = [scales_of_ranges(low * shrink, high * shrink, kind) for shrink in _SHRINKS]
    scales = np.stack([scale.astype(np.float32) for scale, _ in tried])
    zeros = np.stack([zero.astype(kind.numpy) for _, zero in tried])
    errors = np.stack([_errors(rows, *each, kind) for each in zip(scales, zeros, strict=True)])
    best = np.argmin(errors, axis=0)
    every = np.arange(len(rows))
    return scales[best, every], zeros[best, every]


def _errors(
    rows: FloatArray, scale: Singles, zero_point: npt.NDArray[np.integer], kind: IntegerType
) -> npt.NDArray[np.floating]:
    """Return mean squared error of each row, float32 (channels,)."""
    scales = Scale(scale=scale, zero_point=zero_point, axis=0, kind=kind)
    apart = restore(quantize(rows, scales), scales) - rows
    return np.asarray(np.mean(apart**2, axis=1))


def quantize(values: FloatArray, scale: Scale) -> npt.NDArray[np.integer]:
    """Return integers of reals, rounded half to even and saturated like QuantizeLinear."""
    factor, zero_point = _aligned(scale, values.ndim)
    integers = np.rint(values.astype(np.float32) / factor) + zero_point.astype(np.float32)
    limited = np.clip(integers, scale.kind.lowest, scale.kind.highest)
    return np.asarray(limited, dtype=scale.kind.numpy)


def restore(integers: npt.NDArray[np.integer], scale: Scale) -> FloatArray:
    """Return reals of integers, like DequantizeLinear."""
    factor, zero_point = _aligned(scale, integers.ndim)
    difference = integers.astype(np.int32) - zero_point.astype(np.int32)
    return difference.astype(np.float32) * factor


def _aligned(scale: Scale, ndim: int) -> tuple[Singles, npt.NDArray[np.integer]]:
    if scale.axis is None:
        return scale.scale, scale.zero_point
    shape = [1] * ndim
    shape[scale.axis] = -1
    return scale.scale.reshape(shape), scale.zero_point.reshape(shape)


def widen_for_bias(weight: Scale, activation: Scale, bias: FloatArray) -> Scale:
    """Return widens weight scales where a bias would not fit into int32 with scale act * weight.

    Args:
        weight: Scale of the weights, () or (channels,).
        activation: Scale of the layer's input.
        bias: float (channels,).

    Returns:
        The same scale, or a scale with wider channels.
    """
    needed = np.abs(bias).astype(np.float64) / (float(activation.scale) * _BIAS_LIMIT)
    if weight.axis is None:
        needed = np.asarray(needed.max() if needed.size else 0.0)
    if weight.kind.power_of_two:
        needed = 2.0 ** np.ceil(np.log2(np.maximum(needed, 1e-38)))
    widened = np.maximum(weight.scale, needed.astype(np.float32)).astype(np.float32)
    return Scale(scale=widened, zero_point=weight.zero_point, axis=weight.axis, kind=weight.kind)


def off_powers_of_two(weight: Scale, activation: Scale, output: Scale) -> Scale:
    """Return widens weight scales by a trifle where activation * weight / output is a power of two.

    Args:
        weight: Scale of the weights, () or (channels,).
        activation: Scale of the layer's input.
        output: Scale of the requantized sums.

    Returns:
        The same scale, or a scale with wider channels.
    """
    exponent = np.log2(weight.scale.astype(np.float64) * float(activation.scale) / output.scale)
    is_near = np.abs(exponent - np.rint(exponent)) < _NEAR_POWER
    if not is_near.any():
        return weight
    widened = np.where(is_near, weight.scale * (1.0 + _STEP_OFF), weight.scale)
    return replace(weight, scale=widened.astype(np.float32))
