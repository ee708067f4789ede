"""GPTQ: columns are rounded one after another, and later ones make up for earlier errors.

What counts is the error of the product on the calibration samples, so the columns' second moments
X^T X weigh it (Frantar et al., "GPTQ", 2022). Columns with the most signal come first; scales are
set before, so that blocks stay where they are whatever the order. The lazy update in groups of
columns is the paper's.
"""

import numpy as np
import numpy.typing as npt

from edgepack.packager.quantization.gptq import feedback_of
from edgepack.packager.quantization.products import Floats
from edgepack.packager.quantization.weight_only.blocks import BlockWeight, Grid

_COLUMNS_AT_ONCE = 128


def round_with_feedback(
    weight: Floats, grid: Grid, moments: npt.NDArray[np.float64]
) -> BlockWeight:
    """Rounds a weight so that its products on the samples stay near.

    Args:
        weight: float32 (rows, columns).
        grid: What codes stand for.
        moments: float64 (columns, columns): the sum of x^T x over the inputs of the product.
    """
    columns = weight.shape[1]
    order = np.argsort(-np.diagonal(moments), kind="stable")
    feedback = feedback_of(moments[np.ix_(order, order)])
    left = weight[:, order].astype(np.float32)
    codes = np.empty(weight.shape, dtype=np.uint8)
    highest = np.float32((1 << grid.bits) - 1)
    for start in range(0, columns, _COLUMNS_AT_ONCE):
        end = min(start + _COLUMNS_AT_ONCE, columns)
        errors = np.empty((len(weight), end - start), dtype=np.float32)
        for i in range(start, end):
            scale, zero_point = grid.column(int(order[i]))
            code = np.clip(np.rint(left[:, i] / scale) + zero_point, 0.0, highest)
            error = (left[:, i] - (code - zero_point) * scale) / feedback[i, i]
            left[:, i + 1 : end] -= np.outer(error, feedback[i, i + 1 : end])
            errors[:, i - start] = error
            codes[:, order[i]] = code.astype(np.uint8)
        left[:, end:] -= errors @ feedback[start:end, end:]
    return BlockWeight(codes=codes, grid=grid)
