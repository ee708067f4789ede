"""Recognize outputs that reconstruct an input, as autoencoders do.

People take the error between both as a score of anomalies. An error of the variant counts relative
to the float model's residual, which is far less than the output itself.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.tasks.maps import LIKE_INPUT
from edgepack.packager.tensors.sequence import Feeds
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Floats, Outputs
from edgepack.tasks.contract import LOSS
from edgepack.tasks.description import UNKNOWN, ModelDescription, TaskOutputs
from edgepack.tasks.doubts.errors import CHANGES
from edgepack.tasks.values.strict import Residual

_QUARTILES = 1.349
"""Standard deviations between the quartiles of a normal distribution."""


def with_residuals(
    description: ModelDescription,
    feeds: Sequence[Feeds],
    expected: Sequence[Outputs],
    states: Collection[str] = (),
) -> ModelDescription:
    """Return the description with the residuals of values that reconstruct an input.

    Args:
        description: Of all outputs.
        feeds, expected: Samples, and the float model's outputs, a dict per sample.
        states: Outputs that feed the next inference: a slow state resembles the state before.

    Raises:
        BuildError: An output that is declared as anomaly scores reconstructs an input.
    """
    return ModelDescription(
        parts=tuple(
            _with_residuals(part, feeds, expected, states) if part.task in _FROM_INPUTS else part
            for part in description.parts
        )
    )


_FROM_INPUTS = ("values", "anomaly", "picture", "sound", UNKNOWN)


class _Pair(NamedTuple):
    """An output and the input that it reconstructs: the values of each sample in a row."""

    source: str
    inputs: list[Floats]
    outputs: list[Floats]

    @property
    def apart(self) -> list[Floats]:
        """Input minus output, an array a sample."""
        return [one - two for one, two in zip(self.inputs, self.outputs, strict=True)]


def _with_residuals(
    part: TaskOutputs,
    feeds: Sequence[Feeds],
    expected: Sequence[Outputs],
    states: Collection[str],
) -> TaskOutputs:
    names = [name for name in part.outputs if name not in states]
    found = {name: _find_input(name, feeds, expected) for name in names}
    pairs = {name: pair for name, pair in found.items() if pair is not None}
    if not pairs:
        return part
    if part.task == "anomaly":
        name, pair = next(iter(pairs.items()))
        raise BuildError(
            f"output '{name}' is declared 'anomaly' and reconstructs input '{pair.source}': the "
            "score is the error between both, and not the highest value of the output",
            found_in=f"outputs.{toml_key(name)}",
            remedy='--metric with a measure of your alarms, task = "values" for an error that is '
            "small against the float model's, or a model that returns the error itself",
        )
    changes = {name: _mean_square(pair.apart) for name, pair in pairs.items()}
    if part.task in ("picture", "sound"):
        return replace(part, settings=part.settings | {CHANGES: changes})
    residuals = {
        name: msgspec.to_builtins(_describe(pair.apart, pair.inputs))
        for name, pair in pairs.items()
        if changes[name] > LOSS**2 * np.concatenate(pair.inputs).var()
    }
    return replace(part, settings=part.settings | {"residuals": residuals}) if residuals else part


def _mean_square(rows: Sequence[Floats]) -> float:
    return float(np.mean(np.concatenate(rows) ** 2))


def _find_input(name: str, feeds: Sequence[Feeds], expected: Sequence[Outputs]) -> _Pair | None:
    """Return an output with the input that it resembles; None without such an input."""
    given = [outputs[name] for outputs in expected if name in outputs]
    if len(given) < len(feeds) or given[0].dtype.kind != "f" or given[0].size < FEWEST_FOR_SPREAD:
        return None
    for source in feeds[0]:
        taken = [entry[source] for entry in feeds]
        sizes = zip(taken, given, strict=True)
        if taken[0].dtype.kind != "f" or any(one.size != two.size for one, two in sizes):
            continue
        pair = _Pair(source, *([v.astype(np.float64).ravel() for v in of] for of in (taken, given)))
        first, second = np.concatenate(pair.inputs), np.concatenate(pair.outputs)
        is_known = bool(np.isfinite(first).all() and np.isfinite(second).all())
        if not is_known or not first.std() > 0.0 or not second.std() > 0.0:
            continue
        if np.corrcoef(first, second)[0, 1] >= LIKE_INPUT:
            return pair
    return None


def _describe(apart: Sequence[Floats], inputs: Sequence[Floats]) -> Residual:
    """Return the statistics of differences.

    An application may divide the score of a sample by the size of its input: the smaller spread
    counts. Samples that are all zeros have no such score. Differences of independent samples have
    the product 0, give or take: its mean square tells the number of independent values. Samples of
    unlike sizes have only their scores.

    Args:
        apart: An array a sample.
        inputs: The inputs that are reconstructed, likewise.
    """
    scores = np.array([float(np.mean(row**2)) for row in apart])
    sizes = np.array([float(np.mean(row**2)) for row in inputs])
    has_size, mean = sizes > 0.0, float(scores.mean())
    relative = min(_relative_spread(scores), _relative_spread(scores[has_size] / sizes[has_size]))
    independent = 2.0 / max(relative**2, 1e-300)
    if len({row.size for row in apart}) == 1 < len(apart):
        rows = np.stack(apart)
        products = rows @ rows.T
        others = products[~np.eye(len(rows), dtype=np.bool_)]
        independent = products.trace() ** 2 / len(rows) ** 2 / max(np.mean(others**2), 1e-300)
    independent = min(max(float(independent), 1.0), float(apart[0].size))
    return Residual(mean=mean, spread=mean * relative, independent=independent)


def _relative_spread(scores: Floats) -> float:
    """Return the standard deviation over the mean, without outliers."""
    low, high = np.percentile(scores, (25.0, 75.0))
    return float((high - low) / _QUARTILES / scores.mean())
