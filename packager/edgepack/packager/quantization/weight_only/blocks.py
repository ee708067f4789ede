"""Weights of few bits: codes in blocks along the inner axis, a scale and a zero point each.

The layout in bytes is that of com.microsoft's MatMulNBits and GatherBlockQuantized: 4-bit codes
lie two in a byte, the first in the lower half; zero points likewise, along the blocks.

Half-quadratic quantization (`refine_grid`) minimizes the l_p norm (p < 1, robust against outliers)
of the weights' error over the zero point, by half-quadratic splitting: in turn a shrinkage of the
error and the zero point's closed form (Badri and Shaji, "Half-Quadratic Quantization of Large
Machine Learning Models", 2023). Providers want whole zero points, so the result is rounded, the
scale fitted to the codes by least squares, and a block keeps its first grid where that was better.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgepack.tasks.arrays import Floats, Singles

_LEAST_SCALE = float(np.finfo(np.float32).tiny)

Codes = npt.NDArray[np.uint8]
_Scalar = TypeVar("_Scalar", bound=np.generic)


_NORM = 0.7

_FIRST_PENALTY = 10.0

_PENALTY_GROWTH = 1.01

_ROUNDS = 20

_ELEMENTS_AT_ONCE = 1 << 20
"""Rounding takes some copies of so many weights."""

_LEAST = np.float32(1e-12)

_SHARES = tuple(np.linspace(0.7, 1.15, 19).tolist())
"""Scales that are tried, as shares of the one by the largest weight."""


class BlockGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Grid of codes: `(code - zero_point) * scale`, for each block of a row.

    Attributes:
        scales: float32 (rows, blocks), never 0.
        zero_points: uint8 (rows, blocks).
        bits: 4 or 8.
        block_size: Columns that share a scale; the last block of a row may be shorter.
    """

    scales: Singles
    zero_points: Codes
    bits: int
    block_size: int

    @property
    def lowest(self) -> int:
        """The least code."""
        return 0

    @property
    def highest(self) -> int:
        """The greatest code."""
        return (1 << self.bits) - 1

    def of_columns(self, columns: npt.NDArray[np.intp]) -> tuple[Singles, Singles]:
        """Return step and zero point of a column, float32 (1, rows) each: see `gptq.Grid`."""
        blocks = columns // self.block_size
        return self.scales[:, blocks].T, self.zero_points[:, blocks].T.astype(np.float32)


class BlockWeight(msgspec.Struct, frozen=True, kw_only=True):
    """A quantized weight.

    Attributes:
        codes: uint8 (rows, columns): a row an output, a column an input.
        grid: Grid of the codes.
    """

    codes: Codes
    grid: BlockGrid

    def restore(self) -> Singles:
        """Return the weight that the codes stand for, float32 (rows, columns)."""
        blocked = cut(self.codes.astype(np.float32), self.grid.block_size)
        wide = (blocked - self.grid.zero_points[..., None]) * self.grid.scales[..., None]
        return wide.reshape(len(self.codes), -1)[:, : self.codes.shape[1]].astype(np.float32)

    def packed_codes(self) -> Codes:
        """Return codes in the form of MatMulNBits: uint8 (rows, blocks, bytes of a block)."""
        blocked = cut(self.codes, self.grid.block_size)
        return _pack(blocked, self.grid.bits)

    def packed_rows(self) -> Codes:
        """Return codes in the form of GatherBlockQuantized: uint8 (rows, bytes of a row), without
        filling.

        Rows of 4-bit codes must have an even number of columns.
        """
        return _pack(self.codes, self.grid.bits)

    def packed_zero_points(self) -> Codes:
        """Return zero points in the form of MatMulNBits: uint8 (rows, bytes of a row)."""
        return _pack(self.grid.zero_points, self.grid.bits)


def read_packed(
    settings: Mapping[str, Any],
    codes: npt.NDArray[Any],
    scales: npt.NDArray[Any],
    zero_points: npt.NDArray[Any] | None,
) -> BlockWeight:
    """Return a weight from the form of MatMulNBits.

    Args:
        settings: The node's attributes.
        codes: uint8, see `BlockWeight.packed_codes`.
        scales: Singles, rows and blocks in any shape.
        zero_points: uint8, see `BlockWeight.packed_zero_points`, or a number each; None if all are
            in the middle.
    """
    rows, columns, bits = settings["N"], settings["K"], settings.get("bits", 4)
    blocked = scales.astype(np.float32).reshape(rows, -1)
    if zero_points is None:
        middle = np.full(blocked.shape, 1 << (bits - 1), np.uint8)
    elif zero_points.dtype == np.uint8:
        middle = _unpack(zero_points.reshape(rows, -1), bits)[:, : blocked.shape[1]]
    else:
        middle = zero_points.reshape(rows, -1)
    grid = BlockGrid(
        scales=blocked, zero_points=middle, bits=bits, block_size=settings["block_size"]
    )
    return BlockWeight(codes=_unpack(codes.reshape(rows, -1), bits)[:, :columns], grid=grid)


def cut(matrix: npt.NDArray[_Scalar], block_size: int) -> npt.NDArray[_Scalar]:
    """Cut rows into blocks, the last filled up with zeros: (rows, blocks, block_size)."""
    rows, columns = matrix.shape
    padded = np.pad(matrix, ((0, 0), (0, -columns % block_size)))
    return padded.reshape(rows, -1, block_size)


def _unpack(packed: Codes, bits: int) -> Codes:
    """Return codes of rows (rows, columns), including codes that fill up a row's end."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = np.right_shift(packed[..., None], shifts) & ((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(len(packed), -1)


def _pack(codes: Codes, bits: int) -> Codes:
    if bits == 8:
        return np.ascontiguousarray(codes)
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    packed = np.bitwise_or(codes[..., 0::2], np.left_shift(codes[..., 1::2], 4))
    return packed.astype(np.uint8)


def make_grid(weight: Singles, *, bits: int, block_size: int, symmetric: bool) -> BlockGrid:
    """Return the grid that reaches every weight of a block, and 0 exactly.

    A symmetric grid spends its extra code, -2^(bits-1), on the side of the largest weight.

    Args:
        weight: float32 (rows, columns).
        bits: Bits of a code.
        block_size: Columns that share a scale.
        symmetric: Whether every zero point lies in the middle.
    """
    blocked = cut(weight, block_size)
    low = np.minimum(blocked.min(axis=-1), 0.0)
    high = np.maximum(blocked.max(axis=-1), 0.0)
    middle = 1 << (bits - 1)
    if symmetric:
        extreme = np.where(-low > high, low, high)
        scales = extreme / np.float32(-middle)
        zero_points = np.full(scales.shape, middle, dtype=np.uint8)
    else:
        scales = (high - low) / np.float32(2 * middle - 1)
        zero_points = np.rint(-low / np.maximum(scales, _LEAST_SCALE)).astype(np.uint8)
    scales = np.where(np.abs(scales) < _LEAST_SCALE, np.float32(1.0), scales)
    return BlockGrid(
        scales=scales.astype(np.float32),
        zero_points=zero_points,
        bits=bits,
        block_size=block_size,
    )


def round_to_nearest(weight: Singles, grid: BlockGrid) -> BlockWeight:
    """Round every weight to the nearest code.

    Args:
        weight: float32 (rows, columns).
        grid: See `make_grid`.
    """
    blocked = cut(weight, grid.block_size)
    codes = np.rint(blocked / grid.scales[..., None]) + grid.zero_points[..., None]
    clipped = np.clip(codes, grid.lowest, grid.highest).astype(np.uint8)
    return BlockWeight(codes=clipped.reshape(len(weight), -1)[:, : weight.shape[1]], grid=grid)


def round_rows(weight: Singles, make: Callable[[Singles], BlockGrid]) -> BlockWeight:
    """Round every weight to the nearest code, some rows at a time, so that little memory is taken.

    Args:
        weight: float32 (rows, columns).
        make: Returns the grid of some rows.
    """
    step = max(1, _ELEMENTS_AT_ONCE // weight.shape[1])
    parts = [
        round_to_nearest(part, make(part))
        for part in (weight[start : start + step] for start in range(0, len(weight), step))
    ]
    grids = [part.grid for part in parts]
    grid = replace(
        grids[0],
        scales=np.concatenate([one.scales for one in grids]),
        zero_points=np.concatenate([one.zero_points for one in grids]),
    )
    return BlockWeight(codes=np.concatenate([part.codes for part in parts]), grid=grid)


def with_half_scales(grid: BlockGrid) -> BlockGrid:
    """Return the grid with scales that 16-bit floats hold exactly."""
    largest = float(np.finfo(np.float16).max)
    halves = np.clip(grid.scales, -largest, largest).astype(np.float16)
    lost = np.copysign(np.finfo(np.float16).smallest_subnormal, grid.scales)
    return replace(grid, scales=np.where(halves == 0, lost, halves).astype(np.float32))


def fit_scales(weight: Singles, grid: BlockGrid, importance: Floats | None = None) -> BlockGrid:
    """Return the grid with the scales that give each block its least squared error.

    Scales are tried that are narrower or wider than the largest weight: to clip one weight may
    round all others better.

    Args:
        weight: float32 (rows, columns).
        grid: Where to start: the grid by least and largest weight.
        importance: (columns,), mean square of the input that each column multiplies; None counts
            all columns alike.
    """
    blocked = cut(weight, grid.block_size)
    counts = np.ones(weight.shape[1]) if importance is None else importance
    factors = cut(counts[None].astype(np.float32), grid.block_size)
    zero = grid.zero_points[..., None].astype(np.float32)
    best, least = grid.scales, np.full(grid.scales.shape, np.inf, np.float32)
    for share in _SHARES:
        scales = grid.scales * np.float32(share)
        steps = np.rint(blocked / scales[..., None]) + zero
        codes = np.clip(steps, grid.lowest, grid.highest) - zero
        error = (np.square(blocked - codes * scales[..., None]) * factors).sum(axis=-1)
        best = np.where(error < least, scales, best)
        least = np.minimum(error, least)
    return replace(grid, scales=best)


def refine_grid(weight: Singles, grid: BlockGrid) -> BlockGrid:
    """Return a grid with a smaller error, or the same.

    Args:
        weight: float32 (rows, columns).
        grid: Where to start: the grid by least and greatest weight.
    """
    scales, zero_points = _refine(
        cut(weight, grid.block_size),
        grid.scales[..., None],
        grid.zero_points[..., None].astype(np.float32),
        np.float32(grid.highest),
    )
    zero_points = zero_points.astype(np.uint8)
    return replace(grid, scales=scales, zero_points=zero_points)


def _refine(
    blocked: Singles, scale: Singles, first_zero: Singles, highest: np.float32
) -> tuple[Singles, Singles]:
    """Return works in steps of the scale, so that the penalty means the same for every block."""
    target = blocked / scale

    def error(zero: Singles, stretch: Singles) -> Singles:
        codes = np.clip(np.rint(target / stretch + zero), 0.0, highest)
        return np.asarray(target - (codes - zero) * stretch)

    same = np.ones_like(scale)
    zero = first_zero
    penalty = _FIRST_PENALTY
    for _ in range(_ROUNDS):
        codes = np.clip(np.rint(target + zero), 0.0, highest)
        outliers = _shrink(target - (codes - zero), penalty)
        zero = np.mean(codes - (target - outliers), axis=-1, keepdims=True)
        penalty *= _PENALTY_GROWTH
    whole = np.clip(np.rint(zero), 0.0, highest)
    steps = np.clip(np.rint(target + whole), 0.0, highest) - whole
    power = np.sum(steps * steps, axis=-1, keepdims=True)
    fitted = np.sum(target * steps, axis=-1, keepdims=True) / np.maximum(power, _LEAST)
    stretch = np.where(fitted > _LEAST, fitted, same)
    better = _norm(error(whole, stretch)) < _norm(error(first_zero, same))
    best_scale = np.where(better, scale * stretch, scale)[..., 0]
    best_zero = np.where(better, whole, first_zero)[..., 0]
    return best_scale, best_zero


def _norm(error: Singles) -> Singles:
    return np.asarray(np.sum(np.abs(error) ** np.float32(_NORM), axis=-1, keepdims=True))


def _shrink(error: Singles, penalty: float) -> Singles:
    """Return the proximal operator of the l_p norm, as in the paper."""
    size = np.abs(error)
    threshold = np.power(np.maximum(size, _LEAST), np.float32(_NORM - 1.0)) / np.float32(penalty)
    return np.asarray(np.sign(error) * np.maximum(size - threshold, 0.0))
