"""Reject declarations that the float model's values on samples contradict."""

from collections.abc import Iterable, Sequence

import numpy as np

from edgepack.errors import BuildError
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Outputs
from edgepack.tasks.description import TaskOutputs

_WIDEST = 2.0
"""Tolerance as a multiple of the distance to the mean result: without a model three quarters of the
results, or more, are right then (Chebyshev)."""

_ROUNDING = 1e-3
"""Half floats round probabilities beside 1 by half of that."""


def check_probabilities(parts: Iterable[TaskOutputs], expected: Sequence[Outputs]) -> None:
    """Reject declared probabilities that lie outside 0...1.

    Args:
        parts: Outputs and their tasks.
        expected: The float model's outputs, a dict per sample.

    Raises:
        BuildError: Values are no probabilities.
    """
    names = [
        name
        for part in parts
        if part.task == "probabilities" and part.source == "declared"
        for name in part.outputs
    ]
    for name in names:
        values = np.concatenate([outputs[name].astype(np.float64).ravel() for outputs in expected])
        known = values[np.isfinite(values)]  # NaN at padding
        low, high = known.min(initial=np.inf), known.max(initial=-np.inf)
        if known.size and not -_ROUNDING <= low <= high <= 1.0 + _ROUNDING:
            raise BuildError(
                f"output {name!r} is declared 'probabilities', and holds values from {low:.4g} to "
                f"{high:.4g}",
                found_in=f"outputs.{toml_key(name)}.task",
                remedy='task = "classification" or "threshold" for scores before a Softmax or '
                'Sigmoid, "values" for quantities',
            )


def check_tolerances(parts: Iterable[TaskOutputs], expected: Sequence[Outputs]) -> None:
    """Reject a tolerance that accepts nearly any result.

    Args:
        parts: Outputs and their tasks.
        expected: The float model's outputs, a dict per sample.

    Raises:
        BuildError: A tolerance is twice as large as the distances between results, or larger.
    """
    declared = {
        name: tolerance
        for part in parts
        for name, tolerance in part.settings.get("tolerances", {}).items()
    }
    for name, tolerance in declared.items():
        values = [outputs[name].astype(np.float64) for outputs in expected]
        unlike = any(value.shape != values[0].shape for value in values)
        if len(values) < FEWEST_FOR_SPREAD or unlike or not values[0].ndim:
            continue
        results = np.ma.masked_invalid(np.stack(values) / np.array(tolerance))  # NaN at padding
        spread = float(np.sqrt(np.square(results - results.mean(axis=0)).sum(axis=-1).mean()))
        if 1.0 >= _WIDEST * spread > 0.0:
            raise BuildError(
                f"tolerance = {tolerance} takes nearly any result for right: the results of output "
                f"{name!r} are {spread:.3g} times that from their mean (root mean square of "
                f"{len(values)} samples)",
                found_in=f"outputs.{toml_key(name)}.tolerance",
                remedy="the distance within which a result is right, in the unit of the output; or "
                "samples that differ as in use",
            )
