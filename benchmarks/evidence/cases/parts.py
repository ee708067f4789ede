"""Outputs that hold two quantities of different size, and outputs that hold one.

Detectors that Python packages ship, with boxes and scores in one output, and drawn outputs of two
quantities without zeros. The others are channels of one quantity whose sizes differ.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.evidence.cases.boxes import detectors
from benchmarks.evidence.known import Case
from benchmarks.tasks.task import Array
from edgepack.tasks.values.parts import find_parts

QUESTION = "Does an output hold two quantities?"

_SAMPLES, _PLACES = 6, 200
_TWO = {
    "depth in metres and its confidence": (3, 40.0, 1, 0.5),
    "angles in degrees and speed": (3, 90.0, 1, 1.2),
    "pixels and class shares": (4, 160.0, 8, 0.3),
    "pressure in pascals and humidity": (1, 101_000.0, 1, 0.6),
    "millimetres and radians": (3, 400.0, 3, 1.0),
    "temperature and humidity": (1, 22.0, 1, 0.5),
    "metres in a room and their confidence": (3, 4.0, 1, 0.5),
}
"""Channels and size of each quantity."""
_ONE = {
    "features": np.exp(np.random.default_rng(29).normal(0, 0.5, 32)),
    "hidden layer with an outlier": np.array([1.0] * 31 + [9.0]),
    "shares of classes, one of them rare": np.array([0.9, 0.5, 0.3, 0.017]),
    "counts of events": np.array([40.0, 12.0, 3.0, 0.4]),
}
"""Sizes of channels."""


def cases(work: Path) -> Iterator[Case]:
    """Yield the cases.

    Args:
        work: Folder for the models.
    """
    for name, half, pairs in detectors():
        joined = [np.concatenate(pair, axis=-1) for pair in pairs]
        yield Case(name, half, True, partial(_holds_two, joined))
    for number, (name, (first, large, second, small)) in enumerate(_TWO.items()):
        sizes = [large] * first + [small] * second
        yield Case(name, "independent", True, partial(_holds_two, _draw(number, np.array(sizes))))
    for number, (name, unlike) in enumerate(_ONE.items()):
        yield Case(name, "independent", False, partial(_holds_two, _draw(number, unlike)))


def _holds_two(values: list[Array]) -> bool:
    return len(find_parts([{"y": one} for one in values], ["y"])) > 1


def _draw(seed: int, sizes: Array) -> list[Array]:
    rng = np.random.default_rng([31, seed])
    shape = (_SAMPLES, 1, _PLACES, len(sizes))
    return list((rng.normal(1, 1, shape) * sizes).astype(np.float32))
