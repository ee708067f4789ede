"""Doubts of errors beside the task: people may use more of an output than its task measures."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Floats, Tensor
from edgepack.tasks.contract import LOSS, Measure
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.details import BOX_PLACES
from edgepack.tasks.doubts.case import Case, Remedy, worst_tenth
from edgepack.tasks.likelihood import are_probabilities, lost_skill
from edgepack.tasks.values.measure import measure_explained
from edgepack.tasks.values.strict import (
    NARROWEST,
    ROUNDED,
    is_row,
    measure_columns,
    measure_magnitudes,
    measure_peaks,
    measure_slices,
)

_FAR = 0.25
"""Share of its own variance by which a sample is far off, in the worst tenth of the samples. Of
variants of 30 small models that kept the task, .04 or less was lost; of wrong declarations that
kept half of the task or less, most lost .5 to 100."""

_MOST_IN_DISTANCE = LOSS / (2.0 - LOSS)
"""Share of a variance. A float model's distance to the truth is the share r of the naive answer's.
With e more of the variance lost, the share is √(r² + e): a hundredth of 1 - r is lost for
e = .02 r (1 - r) + (.01 (1 - r))², which is at most this value, near r = ½. So beyond it, any float
model loses more than a hundredth."""

CHANGES = "changes"
"""Setting of pictures and sounds that change an input: mean square of the change, by output."""

_OF_SCORES = ("classification", "probabilities")
_OF_CLASSES = ("classification", "segmentation", "text", "tokens", "transcript")
"""Tasks whose whole numbers name classes: their distances say nothing."""


def find_places(case: Case) -> str:
    """Return a doubt where boxes that count as found lie beside the float model's boxes."""
    places = case.agreement.details.get(BOX_PLACES, 1.0)
    if places >= 1.0 - LOSS:
        return ""
    return (
        f"{case.agreement.words}, and yet boxes are less exact: of the common boxes, "
        f"{places:.1%} overlap enough on average over COCO's overlaps of .5 to .95"
    )


def find_errors(case: Case) -> str:
    """Return a doubt where plain errors are large, beside what the task keeps.

    Values must keep what a blind task does not see, and scores of a guessed task what they tell.
    """
    far = LOSS if case.blind else _FAR + 1.0 - case.agreement.value
    of_scores = far if case.part.source == "declared" else LOSS
    why = ", as outputs of other samples would agree" if case.blind else ""
    errors = (f"{case.agreement.words} of {off}{why}" for off in _errors(case, far, of_scores))
    return next(errors, "")


def remedies(case: Case) -> tuple[Remedy, ...]:
    """Return what settles a large error: what the values mean, or samples that tell more."""
    declared: tuple[Remedy, ...] = ("task", "metric")
    if case.part.task == "values" and not case.part.settings.get("tolerances"):
        declared = ("tolerance", *declared)
    more: tuple[Remedy, ...] = ("samples",)
    return declared + more * (case.blind or case.part.task in _OF_SCORES)


def _errors(case: Case, far: float, of_scores: float) -> Iterator[str]:
    """Yield which plain errors are large, in words.

    Args:
        case: The agreement and the outputs.
        far: Allowed share of the variance.
        of_scores: Allowed share of the skill of scores of classes.
    """
    part = case.part
    for name, wanted, given in case.outputs():
        if part.task in _OF_CLASSES and wanted[0].dtype.kind != "f":
            continue
        error = worst_tenth(wanted, given, of_all=part.task == "sums")
        if error**2 > far:
            yield (
                f"output '{name}', and yet its values are off by {error:.0%} of their own spread "
                "in the worst tenth of the samples"
            )
        changed = part.settings.get(CHANGES, {}).get(name)
        if changed and (lost := _mean_square_error(wanted, given) / changed) > far:
            yield (
                f"output '{name}', and yet its error is {lost:.0%} of the model's change of its "
                "input (mean square)"
            )
        are_shares = are_probabilities(wanted)
        is_scores = part.task in _OF_SCORES and wanted[0].ndim and wanted[0].shape[-1] > 1
        lost = lost_skill(wanted, given) if are_shares or is_scores else 0.0
        if lost > (of_scores if is_scores else far):
            yield (
                f"output '{name}', and yet its probabilities lose {min(lost, 1.0):.0%} of what "
                "they tell (log loss)"
            )
        if not are_shares and is_row(wanted):
            column = _measure_any_column(name, wanted, given)
            if column is not None and _surely_lost(column[0]) > far:
                yield f"output '{name}', and yet: {column[0].words}"
        elif part.task == "values" and measure_peaks(name, wanted, given) is None:
            for axis in range(1, wanted[0].ndim):
                band = measure_slices(name, wanted, given, axis)
                if band is not None and _surely_lost(band) > far:
                    yield f"output '{name}', and yet: {band.words}"


def find_bias(case: Case) -> str:
    """Return a doubt where sums have a bias, of low or of high sums, above 1 % of the mean sum.

    If the float model errs on the same side, its mean error grows by the whole bias.
    """
    for name, wanted, given in case.outputs():
        pairs = [flat_pair(*pair) for pair in zip(wanted, given, strict=True)]
        sums = np.array([want.sum() for want, _ in pairs])
        errors = np.array([have.sum() for _, have in pairs]) - sums
        if len(errors) < FEWEST_FOR_SPREAD:
            continue
        halves = np.array_split(errors[np.argsort(sums)], 2)
        off = sum(abs(float(half.mean())) for half in halves) / 2.0
        noise = sum(float(half.std()) / math.sqrt(len(half)) for half in halves) / 2.0
        mean = max(float(np.abs(sums).mean()), 1e-12)
        if (off - noise) / mean > LOSS:
            return (
                f"sums of output '{name}' have a bias of {off / mean:.1%} of their mean: if the "
                "float model errs on the same side, all of that is lost"
            )
    return ""


def find_distances(case: Case) -> str:
    """Return a doubt where a short row keeps its variance and not its distances to the truth.

    Values that span magnitudes are held against their relative error.
    """
    for name, wanted, given in case.outputs():
        if name in case.part.settings.get("tolerances", {}) or wanted[0].size >= NARROWEST:
            continue
        if (relative := measure_magnitudes(name, wanted, given)) is not None:
            if relative[0].value < 1.0 - LOSS:
                return f"{relative[0].words}: the largest values make the variance that is kept"
            continue
        measure = _measure_any_column if wanted[0].size > 1 else measure_explained
        found = measure(name, wanted, given)
        if found is not None and (lost := 1.0 - found[0].value) > _MOST_IN_DISTANCE:
            kept = found[0].words or f"{found[0].metric} {found[0].value:.4f} of output '{name}'"
            return (
                f"{kept}: errors of {math.sqrt(lost):.0%} of a standard deviation, which cost more "
                "than 1 % of the task where people measure distances, angles or overlaps"
            )
    return ""


def _measure_any_column(
    name: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure all columns that vary by more than the rounding of the output's type."""
    if expected[0].dtype == np.float16:
        return measure_columns(name, expected, got)
    return measure_columns(name, expected, got, ROUNDED)


def _mean_square_error(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    pairs = (flat_pair(*pair) for pair in zip(expected, got, strict=True))
    return float(np.mean([np.mean((have - want) ** 2) for want, have in pairs if want.size]))


def _surely_lost(measure: Measure) -> float:
    """Return the share that is lost at least, one-sided, 95 %."""
    low = measure.value if measure.low is None else measure.low
    return 1.0 - 2.0 * measure.value + low
