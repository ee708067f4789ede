"""Compare a verdict with the plain error, and tell where the verdict says little of the task.

A task's measure can be nearly perfect while the outputs are not, if the task was guessed or
declared wrongly, if people use more of the output than the task measures, or if the samples tell
little.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from edgepack.tasks.arrays import Outputs
from edgepack.tasks.contract import LOSS, Expected
from edgepack.tasks.description import GUESSED_FROM, UNKNOWN, TaskOutputs
from edgepack.tasks.doubts import chains, errors, meaning
from edgepack.tasks.doubts.case import Case, Doubt, Remedy
from edgepack.tasks.doubts.chains import CHAIN_STEPS
from edgepack.tasks.doubts.meaning import BOXES, GRAPH_LAYOUT, MAY_BE, MIXTURE, QUANTITIES


class Check(msgspec.Struct, frozen=True):
    """A row of the table of doubts.

    Attributes:
        covers: Returns whether outputs are checked.
        find: Returns the doubt in words; "" for none.
        remedies: What can settle the doubt, the best first.
        if_exact: Whether exact outputs have this doubt too, go on to the next check, or are beyond
            any doubt.
        is_last: Covered outputs without this doubt have none.
    """

    covers: Callable[[TaskOutputs], bool]
    find: Callable[[Case], str]
    remedies: tuple[Remedy, ...] | Callable[[Case], tuple[Remedy, ...]] = ("metric",)
    if_exact: Literal["doubt", "next", "settled"] = "doubt"
    is_last: bool = False


def _all(part: TaskOutputs) -> bool:
    return True


def _task(task: str) -> Callable[[TaskOutputs], bool]:
    return lambda part: part.task == task


def _setting(name: str, task: str = "") -> Callable[[TaskOutputs], bool]:
    return lambda part: bool(part.settings.get(name)) and task in ("", part.task)


def _may_be(other: str) -> Callable[[TaskOutputs], bool]:
    return lambda part: part.settings.get(MAY_BE) == other


def _is_inner(part: TaskOutputs) -> bool:
    """Return whether nobody reads the outputs: states and inner values."""
    return part.task == UNKNOWN and part.source != "unknown"


CHECKS = (
    # What outputs mean: anomalies, nothing that is read, or what was declared.
    Check(_setting("residuals"), meaning.find_residuals),
    Check(_is_inner, lambda case: "", is_last=True),
    Check(_all, meaning.find_constant, ("samples", "ignored")),
    Check(_task(UNKNOWN), meaning.find_unknown, ("task", "metric"), if_exact="settled"),
    Check(_setting(GRAPH_LAYOUT), meaning.find_layout),
    Check(_may_be(BOXES), meaning.find_boxes, ("layout", "metric"), if_exact="settled"),
    Check(_may_be(MIXTURE), meaning.find_mixture, if_exact="settled"),
    Check(_may_be(QUANTITIES), meaning.find_quantities, ("task", "metric"), if_exact="settled"),
    # What the samples tell of the task.
    Check(_all, lambda case: case.agreement.doubt, ("samples", "metric"), if_exact="next"),
    Check(_task("detections"), errors.find_places, is_last=True),  # most other places are noise
    Check(_setting(GUESSED_FROM), meaning.find_guess, ("task", "samples"), if_exact="next"),
    # Large errors, and then what small errors may cost: in sums, over time, in distances.
    Check(_all, errors.find_errors, errors.remedies),
    Check(_task("sums"), errors.find_bias, is_last=True),
    Check(_setting("steps", "values"), chains.find_few_series, ("series",)),
    Check(_setting(CHAIN_STEPS, "values"), chains.find_lost_series, ("steps", "metric")),
    Check(_task("values"), errors.find_distances, ("tolerance", "metric"), is_last=True),
    Check(_setting(CHAIN_STEPS), chains.find_growth, ("steps", "metric")),
)
"""All doubts, in the order in which they are looked for: the first that is found counts."""


def find_doubt(case: Case) -> Doubt | None:
    """Return why an agreement is weak evidence of the task; None if the agreement is sufficient."""
    for check in CHECKS:
        if not check.covers(case.part):
            continue
        if because := check.find(case):
            if check.if_exact == "doubt" or not case.is_exact:
                of = check.remedies
                return Doubt(because, of(case) if callable(of) else of)
            if check.if_exact == "settled":
                return None
        if check.is_last:
            return None
    return None


def is_blind(opened: Expected, expected: Sequence[Outputs]) -> bool:
    """Return whether outputs of other samples would keep the task: it sees no sample then.

    Args:
        opened: The task.
        expected: The float model's outputs, a dict per sample.
    """
    half = len(expected) // 2
    others = (*expected[half:], *expected[:half])
    return half > 0 and opened.measure(others).value >= 1.0 - LOSS
