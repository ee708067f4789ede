"""Array types, named by their content, for signatures, and how many values have a spread."""

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

FEWEST_WITHIN = 8
"""Values from which on the spread within a sample says something."""
