"""Spoil samples on purpose: how much of the task is lost for each unit of fallen confidence.

A device has no labels, but it sees its confidence fall. A float model loses confidence and right
answers together; by how much differs by model. So a build spoils samples in several ways and
strengths, and compares the float model's answers and confidence with these on the whole samples.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from edgepack.bundle.drift import confidences
from edgepack.errors import BuildError
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.table import task_of

SPOILT_SAMPLES = 16
"""Samples that are spoilt; each runs once for each way and strength."""

_LEAST_FALL = 0.01
"""Mean fall of the confidence from which on a way of spoiling tells."""

_MOST_LOSS = 1_000.0


def loss_by_confidence(
    part: TaskOutputs, samples: Sequence[tuple[Feeds, Outputs]], run: Callable[[Feeds], Outputs]
) -> float | None:
    """Return the share of the task that is lost for each unit of fallen confidence.

    The float model's answers on whole samples count as right as often as their confidence says.

    Args:
        part: Outputs of a task with a confidence.
        samples: Inputs with the float model's outputs.
        run: Runs the float model.

    Returns:
        The ratio of losses to falls over all ways that lower the confidence; None without any.
    """
    expected = [outputs for _, outputs in samples]
    before = confidences(part, expected)
    if not before:
        return None
    opened = task_of(part).open(part, expected)
    falls, losses = 0.0, 0.0
    for spoilt in spoil([feeds for feeds, _ in samples]):
        try:
            outputs = [run(feeds) for feeds in spoilt]
        except BuildError:  # Mixed values can contradict each other, for example lengths.
            continue
        after = confidences(part, outputs)
        fall = float(np.mean(before) - np.mean(after)) if after else 0.0
        if fall > _LEAST_FALL:
            falls += fall
            losses += float(np.mean(before)) * (1.0 - opened.measure(outputs).value)
    return min(losses / falls, _MOST_LOSS) if falls else None


Way = Callable[[Tensor, Tensor], Tensor]
"""Spoils a tensor, given the same tensor of the next sample."""


def spoil(samples: Sequence[Feeds]) -> Iterator[list[Feeds]]:
    """Yield the samples spoilt in several ways and strengths, each time all of them.

    Floats get noise, less contrast and, as pictures, blur. Of all inputs, values are replaced by
    values of the next sample at the same places.
    """
    rng = np.random.default_rng(0)
    ways = (
        _noise(rng, 0.3),
        _noise(rng, 0.6),
        _fade(0.7),
        _blur(7),
        _mix(rng, 0.15),
        _mix(rng, 0.4),
    )
    for way in ways:
        spoilt = [
            {name: way(value, other[name]) if value.size else value for name, value in one.items()}
            for one, other in zip(samples, (*samples[1:], samples[0]), strict=True)
        ]
        if any(
            not np.array_equal(before[name], after[name])
            for before, after in zip(samples, spoilt, strict=True)
            for name in before
        ):
            yield spoilt


def _noise(rng: np.random.Generator, share: float) -> Way:
    def way(value: Tensor, _other: Tensor) -> Tensor:
        if value.dtype.kind != "f":
            return value
        noise = rng.standard_normal(value.shape) * share * _spread(value)
        return (value.astype(np.float64) + noise).astype(value.dtype)

    return way


def _fade(share: float) -> Way:
    """Return a way that makes a sample darker: its values move to its least value."""

    def way(value: Tensor, _other: Tensor) -> Tensor:
        if value.dtype.kind != "f":
            return value
        least = value.min()
        return np.asarray(least + (value - least) * (1.0 - share)).astype(value.dtype)

    return way


def _blur(width: int) -> Way:
    """Return a way that averages pictures, (…, rows, columns), over a square."""

    def way(value: Tensor, _other: Tensor) -> Tensor:
        if value.dtype.kind != "f" or value.ndim < 3 or min(value.shape[-2:]) < 8:
            return value
        wide: Floats = value.astype(np.float64)
        steps = range(-(width // 2), width // 2 + 1)
        for axis in (-2, -1):
            wide = np.mean([np.roll(wide, step, axis) for step in steps], axis=0)
        return wide.astype(value.dtype)

    return way


def _mix(rng: np.random.Generator, share: float) -> Way:
    def way(value: Tensor, other: Tensor) -> Tensor:
        if value.shape != other.shape or value.size < 2:
            return value
        return np.where(rng.random(value.shape) < share, other, value)

    return way


def _spread(value: Tensor) -> float:
    spread = float(np.std(value.astype(np.float64))) if value.size else 0.0
    return spread if math.isfinite(spread) else 0.0
