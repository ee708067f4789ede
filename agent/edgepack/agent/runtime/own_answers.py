"""A device's own first answers to the golden samples, and the comparison of later answers. Pure.

A sound provider gives the same bits each time, so any other bit is a fault. A provider that does
not repeat its bits is compared by distance: three times the worst of 20 own runs is let pass. The
distance is between projections, so no output of a secret sample is stored.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.runtime.verification import FirstAnswer, FirstAnswers

RUNS = 20
"""Runs that tell how far a provider's own answers lie apart."""
TIMES_WORST = 3.0
_PROJECTIONS = 16
"""Numbers stored of each output."""


_FAR = 1e200
"""Stands for what is not finite: JSON has no NaN."""

Outputs = Mapping[str, Tensor]


class Repeated(NamedTuple):
    """First answer to a sample.

    Attributes:
        outputs: All of it.
        answer: What is stored of it.
        worst: Greatest distance of further own runs; 0 if the bits repeat.
    """

    outputs: Outputs
    answer: FirstAnswer
    worst: float


def digest_of(outputs: Outputs) -> str:
    """Return the SHA-256 of outputs: every bit, with names, types and shapes."""
    found = hashlib.sha256()
    for name in sorted(outputs):
        value = np.ascontiguousarray(outputs[name])
        found.update(f"{name} {value.dtype.str} {value.shape} ".encode())
        found.update(value.tobytes())
    return found.hexdigest()


def repeat(run: Callable[[], Outputs]) -> Repeated:
    """Run a sample twice, and if the bits differ as often as tells how far.

    Args:
        run: Computes the sample.
    """
    outputs = run()
    first = FirstAnswer(digest=digest_of(outputs), projections=_project(outputs))
    if digest_of(again := run()) == first.digest:
        return Repeated(outputs, first, 0.0)
    worst = distance(first, again)
    for _ in range(RUNS - 1):
        worst = max(worst, distance(first, run()))
    # Two answers with other bits and equal projections still do not repeat.
    return Repeated(outputs, first, max(worst, float(np.finfo(np.float32).eps)))


def distance(first: FirstAnswer, outputs: Outputs) -> float:
    """Return the greatest distance of an output, relative to its first size; infinite for NaN."""
    now = _project(outputs)
    if [len(one) for one in now] != [len(one) for one in first.projections]:
        return math.inf
    found = 0.0
    for before, after in zip(first.projections, now, strict=True):
        size, error = math.hypot(*before), math.dist(before, after)
        part = error / size if size else error
        found = max(found, part if part < _FAR else math.inf)
    return found


def why_other(first: FirstAnswers, number: int, outputs: Outputs) -> str:
    """Return how an answer differs from the device's own first answer; "" if equal.

    Args:
        first: The first answers.
        number: The sample, from 0.
        outputs: The answer.
    """
    answer, title = first.answers[number], f"golden sample {number + 1} of {len(first.answers)}"
    if digest_of(outputs) == answer.digest:
        return ""
    found = distance(answer, outputs)
    if not first.worst:
        return f"{title} gives other bits than at first (distance {found:.2g})"
    if found <= TIMES_WORST * first.worst:
        return ""
    return f"{title} lies {found:.2g} from the first answer, own runs at most {first.worst:.2g}"


def _project(outputs: Outputs) -> tuple[tuple[float, ...], ...]:
    """Return sums of each output's values with fixed random signs, in a few parts."""
    found = []
    for name in sorted(outputs):
        value = outputs[name].astype(np.float64).ravel()
        signs = np.random.default_rng(value.size).choice((-1.0, 1.0), value.size)
        with np.errstate(all="ignore"):
            parts = [part.sum() for part in np.array_split(value * signs, _PROJECTIONS)]
        found.append(tuple(float(one) if np.isfinite(one) else _FAR for one in parts))
    return tuple(found)
