"""Round to nearest: the grid of each block spans its least and greatest weight."""

import numpy as np

from edgepack.packager.quantization.weight_only.blocks import BlockGrid, BlockWeight, cut
from edgepack.packager.tensors.arrays import Singles

_LEAST_SCALE = float(np.finfo(np.float32).tiny)


def make_grid(weight: Singles, *, bits: int, block_size: int, symmetric: bool) -> BlockGrid:
    """The grid that reaches every weight of a block, and 0 exactly.

    A symmetric one spends its extra code, -2^(bits-1), on the side of the largest weight.

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
    """Every weight by itself to the nearest code.

    Args:
        weight: float32 (rows, columns).
        grid: See `make_grid`.
    """
    blocked = cut(weight, grid.block_size)
    codes = np.rint(blocked / grid.scales[..., None]) + grid.zero_points[..., None]
    clipped = np.clip(codes, grid.lowest, grid.highest).astype(np.uint8)
    return BlockWeight(codes=clipped.reshape(len(weight), -1)[:, : weight.shape[1]], grid=grid)
