"""Recognize outputs that reconstruct an input, as autoencoders do.

People take the error between both as a score of anomalies. An error of the variant counts relative
to the float model's residual, which is far less than the output itself.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from edgepack.packager.tasks.maps import LIKE_INPUT
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.contract import LOSS
from edgepack.tasks.description import UNKNOWN, ModelDescription, TaskOutputs
from edgepack.tasks.values.between_samples import FEWEST_FOR_MEAN


def with_residuals(
    description: ModelDescription, feeds: Sequence[Feeds], expected: Sequence[Outputs]
) -> ModelDescription:
    """Return the description with the residuals of values that reconstruct an input.

    Args:
        description: Of all outputs.
        feeds, expected: Samples, and the float model's outputs, a dict per sample.
    """
    return ModelDescription(
        parts=tuple(
            _with_residuals(part, feeds, expected) if part.task in ("values", UNKNOWN) else part
            for part in description.parts
        )
    )


def _with_residuals(
    part: TaskOutputs, feeds: Sequence[Feeds], expected: Sequence[Outputs]
) -> TaskOutputs:
    found = {name: _residual(name, feeds, expected) for name in part.outputs}
    residuals = {name: value for name, value in found.items() if value}
    return replace(part, settings=part.settings | {"residuals": residuals}) if residuals else part


def _residual(name: str, feeds: Sequence[Feeds], expected: Sequence[Outputs]) -> float:
    """Return the mean square of an output's difference from its input; 0 without a similar
    input.
    """
    given = [outputs[name] for outputs in expected if name in outputs]
    if len(given) < len(feeds) or given[0].dtype.kind != "f" or given[0].size < FEWEST_FOR_MEAN:
        return 0.0
    for source in feeds[0]:
        taken = [entry[source] for entry in feeds]
        pairs = zip(taken, given, strict=True)
        if taken[0].dtype.kind != "f" or any(one.shape != two.shape for one, two in pairs):
            continue
        first, second = (
            np.concatenate([value.astype(np.float64).ravel() for value in values])
            for values in (taken, given)
        )
        if not (np.isfinite(first).all() and np.isfinite(second).all() and first.std() > 0.0):
            continue
        residual = float(np.mean((first - second) ** 2))
        is_like = second.std() > 0.0 and np.corrcoef(first, second)[0, 1] >= LIKE_INPUT
        if is_like and residual > LOSS**2 * first.var():
            return residual
    return 0.0
