"""Plain errors of an output's values, for any meaning.

A plain error is not a verdict on a task. The plain error orders candidates that a task finds equal,
shows whether two providers compute the same values, and is compared with every verdict.

Where the float model's value is NaN (padding) nothing is compared.
"""

import math
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from edgepack.tasks.arrays import Bools, Floats, Outputs, Tensor
from edgepack.tasks.stacking import as_rows, stacks


class PlainError(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of an output against the float model's, over all samples.

    Attributes:
        output: Its name.
        cosine: Cosine similarity, all samples flattened into a single vector.
        worst_cosine: The same of the worst sample.
        nrmse: Root-mean-square error over the float output's root-mean-square.
        worst_nrmse: The same of the worst sample.
        sqnr_db: Signal to quantization noise, decibels.
        max_abs_error: Greatest absolute difference.
        rms: Root-mean-square of the float output, in its own unit.
        worst_rms_error: Root-mean-square error of the worst sample, in the same unit: a sample on
            which the model says next to nothing does not stand out.
    """

    output: str
    cosine: float
    worst_cosine: float
    nrmse: float
    worst_nrmse: float
    sqnr_db: float
    max_abs_error: float
    rms: float
    worst_rms_error: float


def measure_errors(
    expected: Sequence[Outputs], got: Sequence[Outputs], names: Collection[str]
) -> tuple[PlainError, ...]:
    """Measure some outputs over all samples.

    Args:
        expected, got: The float model's outputs and others, a dict per sample.
        names: Which outputs.
    """
    return tuple(
        measure_error(name, [one[name] for one in expected], [one[name] for one in got])
        for name in names
    )


def measure_error(name: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> PlainError:
    """Measure an output.

    Args:
        name: The output.
        expected, got: The float model's values and others, an array per sample.
    """
    dots, sizes, norms, errors, counts = ([] for _ in range(5))
    greatest = 0.0
    for part in stacks(expected, got):
        a, b, count = comparable(expected[part], got[part], None)
        error = b - a
        counts += count
        dots += row_products(a, b)
        sizes += row_products(a, a)
        norms += row_products(b, b)
        errors += row_products(error, error)
        greatest = max(greatest, float(np.abs(error).max(initial=0.0)))
    whole = _ratios(sum(dots), sum(sizes), sum(norms), sum(errors))
    each = [_ratios(*entry) for entry in zip(dots, sizes, norms, errors, strict=True)]
    return PlainError(
        output=name,
        cosine=whole[0],
        worst_cosine=min(entry[0] for entry in each),
        nrmse=whole[1],
        worst_nrmse=max(entry[1] for entry in each),
        sqnr_db=-20.0 * math.log10(max(whole[1], 1e-10)),
        max_abs_error=greatest,
        rms=math.sqrt(sum(sizes) / max(sum(counts), 1)),
        worst_rms_error=max(
            math.sqrt(error / max(count, 1)) for error, count in zip(errors, counts, strict=True)
        ),
    )


def relative_error(
    expected: Sequence[Tensor], got: Sequence[Tensor], read: Sequence[Bools] | None = None
) -> float:
    """Return only `PlainError.nrmse`.

    Args:
        expected, got: The float model's values and others, an array per sample.
        read: Which values count, an array a sample; None for all.
    """
    sizes, errors = 0.0, 0.0
    for part in stacks(expected, got):
        a, b, _ = comparable(expected[part], got[part], None if read is None else read[part])
        apart = b - a
        sizes += sum(row_products(a, a))
        errors += sum(row_products(apart, apart))
    return _ratios(0.0, sizes, 0.0, errors)[1]


def comparable(
    expected: Sequence[Tensor], got: Sequence[Tensor], read: Sequence[Bools] | None
) -> tuple[Floats, Floats, list[int]]:
    """Return a stack's samples as rows, 0 where nothing is compared, and how many values are.

    A sample that cannot be compared (shape, NaN) counts as zeros.

    Args:
        expected, got: Samples of a common shape, see `stacks`.
        read: Which values count; None for all.
    """
    a = as_rows(expected)
    counts = np.isfinite(a) if read is None else np.isfinite(a) & as_rows(read).astype(np.bool_)
    if got[0].shape != expected[0].shape:
        return a, np.zeros_like(a), [value.size for value in expected]
    b = as_rows(got)
    if not counts.all():
        a, b = np.where(counts, a, 0.0), np.where(counts, b, 0.0)
    is_broken = ~np.isfinite(b).all(axis=1)
    if is_broken.any():
        b[is_broken] = 0.0
    return a, b, counts.sum(axis=1).tolist()


def row_products(a: Floats, b: Floats) -> list[float]:
    """Return a @ b of each row in a single thread: with several threads the last digits depend on
    their number.

    On a busy machine the BLAS library's threads waited for each other longer than the computation
    took: a quarter of a detector's search.
    """
    products: list[float] = np.einsum("ij,ij->i", a, b).tolist()
    return products


def _ratios(dot: float, size: float, norm: float, error: float) -> tuple[float, float]:
    """Return cosine similarity and relative root-mean-square error from sums of products."""
    if error == 0.0:
        return 1.0, 0.0
    cosine = dot / math.sqrt(size * norm) if size > 0.0 and norm > 0.0 else 0.0
    return cosine, math.sqrt(error / size) if size > 0.0 else 1.0
