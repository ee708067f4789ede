"""Recognize outputs that reconstruct an input, as autoencoders do.

People take the error between both as a score of anomalies. An error of the variant counts relative
to the float model's residual, which is far less than the output itself.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.tasks.maps import LIKE_INPUT
from edgepack.packager.tensors.sequence import Feeds
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Floats, Outputs
from edgepack.tasks.contract import LOSS
from edgepack.tasks.description import UNKNOWN, ModelDescription, TaskOutputs
from edgepack.tasks.values.between_samples import FEWEST_FOR_MEAN
from edgepack.tasks.values.strict import Residual

_QUARTILES = 1.349
"""Standard deviations between the quartiles of a normal distribution."""


def with_residuals(
    description: ModelDescription, feeds: Sequence[Feeds], expected: Sequence[Outputs]
) -> ModelDescription:
    """Return the description with the residuals of values that reconstruct an input.

    Args:
        description: Of all outputs.
        feeds, expected: Samples, and the float model's outputs, a dict per sample.

    Raises:
        BuildError: An output that is declared as anomaly scores reconstructs an input.
    """
    return ModelDescription(
        parts=tuple(
            _with_residuals(part, feeds, expected)
            if part.task in ("values", "anomaly", UNKNOWN)
            else part
            for part in description.parts
        )
    )


def _with_residuals(
    part: TaskOutputs, feeds: Sequence[Feeds], expected: Sequence[Outputs]
) -> TaskOutputs:
    found = {name: _residual(name, feeds, expected) for name in part.outputs}
    found = {name: _residual(name, feeds, expected) for name in part.outputs}
    residuals = {name: of for name, of in found.items() if of is not None}
    if part.task == "anomaly" and residuals:
        name, (source, _) = next(iter(residuals.items()))
        raise BuildError(
            f"output '{name}' is declared 'anomaly' and reconstructs input '{source}': the score "
            "is the error between both, and not the highest value of the output",
            found_in=f"outputs.{toml_key(name)}",
            remedy='--metric with a measure of your alarms, task = "values" for an error that is '
            "small against the float model's, or a model that returns the error itself",
        )
    settings = {name: msgspec.to_builtins(residual) for name, (_, residual) in residuals.items()}
    return replace(part, settings=part.settings | {"residuals": settings}) if settings else part


def _residual(
    name: str, feeds: Sequence[Feeds], expected: Sequence[Outputs]
) -> tuple[str, Residual] | None:
    """Return the input that an output reconstructs, and the difference; None without such an
    input.
    """
    given = [outputs[name] for outputs in expected if name in outputs]
    if len(given) < len(feeds) or given[0].dtype.kind != "f" or given[0].size < FEWEST_FOR_MEAN:
        return None
    for source in feeds[0]:
        taken = [entry[source] for entry in feeds]
        pairs = zip(taken, given, strict=True)
        if taken[0].dtype.kind != "f" or any(one.size != two.size for one, two in pairs):
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
            ends = np.cumsum([value.size for value in given])[:-1]
            return source, _describe(np.split(first - second, ends), np.split(first, ends))
    return None


def _describe(apart: Sequence[Floats], inputs: Sequence[Floats]) -> Residual:
    """Return the statistics of differences.

    An application may divide the score of a sample by the size of its input: the smaller spread
    counts. Differences of independent samples have the product 0, give or take: its mean square
    tells the number of independent values. Samples of unlike sizes have only their scores.

    Args:
        apart: An array a sample.
        inputs: The inputs that are reconstructed, likewise.
    """
    scores = np.array([float(np.mean(row**2)) for row in apart])
    sizes = np.maximum([float(np.mean(row**2)) for row in inputs], 1e-300)
    mean = float(scores.mean())
    spread = mean * min(_relative_spread(scores), _relative_spread(scores / sizes))
    independent = 2.0 * (mean / max(spread, 1e-300)) ** 2
    if len({row.size for row in apart}) == 1 < len(apart):
        rows = np.stack(apart)
        products = rows @ rows.T
        others = products[~np.eye(len(rows), dtype=np.bool_)]
        independent = products.trace() ** 2 / len(rows) ** 2 / max(np.mean(others**2), 1e-300)
    independent = min(max(float(independent), 1.0), float(apart[0].size))
    return Residual(mean=mean, spread=spread, independent=independent)


def _relative_spread(scores: Floats) -> float:
    """Return the standard deviation over the mean, without outliers."""
    low, high = np.percentile(scores, (25.0, 75.0))
    return float((high - low) / _QUARTILES / scores.mean())
