"""Array types, named by their content, for signatures, and facts about their values."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Tensor = npt.NDArray[np.generic]
"""An array of whatever type a model's tensor has."""

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Outputs = dict[str, Tensor]
"""Outputs of one inference by output name."""

FEWEST_FOR_SPREAD = 8
"""Values with a spread: of eight normal ones it is within half and twice the true one (96 %)."""


def are_whole(values: Sequence[Tensor]) -> bool:
    """Return whether all values are whole numbers, in whatever type."""
    return all(bool((value == np.rint(value)).all()) for value in values if value.dtype.kind == "f")
