"""Half-quadratic quantization: a grid with less error for large errors, without samples.

Minimizes the l_p norm (p < 1, robust against outliers) of the weights' error over the zero point,
by half-quadratic splitting: in turn a shrinkage of the error and the zero point's closed form
(Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023). Providers
want whole zero points, so the result is rounded, the scale fitted to the codes by least squares,
and a block keeps its first grid where that was better.
"""

import numpy as np
from msgspec.structs import replace

from edgepack.packager.quantization.weight_only.blocks import BlockGrid, cut
from edgepack.tasks.arrays import Singles

_NORM = 0.7
_FIRST_PENALTY = 10.0
_PENALTY_GROWTH = 1.01
_ROUNDS = 20
_ROWS_AT_ONCE = 2048
_LEAST = np.float32(1e-12)


def refine_grid(weight: Singles, grid: BlockGrid) -> BlockGrid:
    """Return a grid with a smaller error, or the same.

    Args:
        weight: float32 (rows, columns).
        grid: Where to start: the grid by least and greatest weight.
    """
    scales = grid.scales.copy()
    zero_points = grid.zero_points.copy()
    for start in range(0, len(weight), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        scales[rows], zero_points[rows] = _refine(
            cut(weight[rows], grid.block_size),
            grid.scales[rows, :, None],
            grid.zero_points[rows, :, None].astype(np.float32),
            np.float32(grid.highest),
        )
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
