"""Distributions of input and output values, and the distance between two distributions.

The build says what it saw, in a few bins a tensor; devices count what they see into the same bins.
Both look at a few thousand values of each inference, evenly over the tensor.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edgepack.bundle.metadata import Distribution
from edgepack.errors import BundleError

MAX_VALUES = 4096
"""Values of one tensor that are looked at in one inference, about."""

MAX_BINS = 10
MAX_LEVELS = 256
"""Different values of integers that are taken for a measure; more of them are names."""

_VALUES_A_BIN = 20
_LEAST_SHARE = 1e-4
"""What an empty bin is taken for: the index stays finite."""

Values = npt.NDArray[np.generic]


def thin(tensor: Values) -> Values:
    """Return some of a tensor's values, evenly over it, as an array of their own.

    The step has no divisor with the tensor's size in common, so that no row, column or channel is
    looked at alone.
    """
    flat = tensor.ravel(order="K")
    step = max(1, math.ceil(flat.size / MAX_VALUES))
    while math.gcd(step, flat.size) > 1:
        step += 1
    return flat[::step].copy()


def count_values(edges: Sequence[float], values: Values) -> npt.NDArray[np.int64]:
    """Return values by bin; see `Distribution`.

    Args:
        edges: Of the bins.
        values: (n,) of any numeric type.

    Returns:
        int64 (len(edges) + 2,).
    """
    if values.dtype.kind == "f":
        finite = values[np.isfinite(values)]
    else:
        finite = values
    bins = np.searchsorted(np.asarray(edges), finite, side="left")
    counts = np.bincount(bins, minlength=len(edges) + 2).astype(np.int64)
    counts[-1] = values.size - finite.size
    return counts


def stability_index(shares: Sequence[float], counts: Sequence[int]) -> float:
    """Return the population stability index of what was counted against what was expected.

    Below 0.1 a distribution is usually taken for the same, above 0.25 for another.

    Args:
        shares: Expected shares, by bin.
        counts: Counts, in the same bins; not all 0.

    Returns:
        Sum over the bins of (found - expected) * ln(found / expected), at least 0.
    """
    total = sum(counts)
    index = 0.0
    for share, count in zip(shares, counts, strict=True):
        expected, found = max(share, _LEAST_SHARE), max(count / total, _LEAST_SHARE)
        index += (found - expected) * math.log(found / expected)
    return index


def describe_values(tensor: str, values: Values) -> Distribution | None:
    """Return the distribution of values: a bin each where they are few, else bins of about as many
    each.

    Args:
        tensor: Name of the input or output.
        values: (n,) of a numeric type, of all samples.

    Returns:
        None where nothing can be determined by it: all values are equal, none is finite, or they
        are integers that name something, such as tokens.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    levels = np.unique(finite)
    if levels.size < 2 or (values.dtype.kind in "iu" and levels.size > MAX_LEVELS):
        return None
    if levels.size <= MAX_BINS:
        chosen = levels[:-1]
    else:
        bins = max(3, min(MAX_BINS, values.size // _VALUES_A_BIN))
        quantiles = np.quantile(finite, np.linspace(0, 1, bins + 1)[1:-1], method="lower")
        chosen = np.minimum(quantiles, levels[-2])
    edges = sorted({float(f"{edge:.6g}") for edge in chosen})
    counts = count_values(edges, values)
    shares = tuple(round(float(count) / values.size, 6) for count in counts)
    return Distribution(tensor=tensor, edges=tuple(edges), shares=shares)


def check_reference(reference: Sequence[Distribution], *, found_in: str) -> None:
    """Judge what a manifest says of distributions.

    Raises:
        BundleError: A tensor stands twice, or its numbers contradict each other.
    """
    if len({each.tensor for each in reference}) < len(reference):
        raise BundleError("a tensor has two references", found_in=found_in)
    for each in reference:
        if len(each.shares) != len(each.edges) + 2:
            problem = f"{len(each.shares)} shares for {len(each.edges)} edges"
        elif not all(low < high for low, high in pairwise((-math.inf, *each.edges, math.inf))):
            problem = "edges that do not rise"
        elif not math.isclose(sum(each.shares), 1.0, abs_tol=1e-3):
            problem = f"shares of {sum(each.shares):g} together"
        else:
            continue
        raise BundleError(f"the reference of '{each.tensor}' has {problem}", found_in=found_in)
