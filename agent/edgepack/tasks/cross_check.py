"""Compare a verdict with the plain error, and tell where the verdict says little of the task.

A task's measure can be nearly perfect while the outputs are not, if the task was guessed or
declared wrongly, if people use more of the output than the task measures, or if the samples tell
little.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Floats, Outputs, Tensor, are_whole
from edgepack.tasks.contract import LOSS, Agreement, Expected, Measure
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.description import GUESSED_FROM, UNKNOWN, TaskOutputs
from edgepack.tasks.details import BOX_PLACES
from edgepack.tasks.likelihood import are_probabilities, lost_skill
from edgepack.tasks.values.measure import measure_explained
from edgepack.tasks.values.series import measure_series
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

_EXACT = LOSS
"""Error in their own spread up to which values keep any task: of an error that grows with theirs,
such as the mean absolute one, no more is lost."""

_GROWTH = 2.0**0.25
"""Error at the end of a chain as a multiple of the error in the middle: half-way (in decibels) from
1, of a model that forgets its state in half a chain, to √2, of errors that add up at random."""

_MOST_IN_DISTANCE = LOSS / (2.0 - LOSS)
"""Share of a variance. A float model's distance to the truth is the share r of the naive answer's.
With e more of the variance lost, the share is √(r² + e): a hundredth of 1 - r is lost for
e = .02 r (1 - r) + (.01 (1 - r))², which is at most this value, near r = ½. So beyond it, any float
model loses more than a hundredth."""

GRAPH_LAYOUT = "graph_layout"
"""Setting of outputs that are declared otherwise, and the graph gives boxes there: their layout."""

UNKNOWN_LAYOUT = "unknown"
"""Value of this setting where no known layout fits."""

MAY_BE = "may_be"
"""Setting of outputs that the graph or the values show to be perhaps of another task, a key of
`_MAY_BE`."""

QUANTITIES = "quantities"
"""Value of this setting of a short row that was taken for scores by its values alone."""

MIXTURE = "mixture"
"""Value of this setting of declared values that a Softmax gives in part."""

BOXES = "boxes"
"""Value of this setting of declared values that hold boxes beside scores."""

CHAIN_STEPS = "chain_steps"
"""Setting of outputs of a model with a state: inferences of a chain, where no one states how long a
series is."""

CHANGES = "changes"
"""Setting of pictures and sounds that change an input: mean square of the change, by output."""

_OF_SCORES = ("classification", "probabilities")
_OF_CLASSES = ("classification", "segmentation", "text", "tokens", "transcript")
"""Tasks whose whole numbers name classes: their distances say nothing."""

Remedy = Literal["task", "layout", "tolerance", "steps", "series", "metric", "samples", "ignored"]
"""Remedy for a doubt: declarations, a metric of the user, other samples, an output without use."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Reason for a weak verdict.

    Attributes:
        because: The reason.
        remedies: What can settle the doubt, the best first.
    """

    because: str
    remedies: tuple[Remedy, ...] = ("metric",)


_MAY_BE: Mapping[str, Doubt] = {
    BOXES: Doubt(
        because="{listed} {are} declared {task!r}, but each place holds four numbers beside "
        "scores, as a detector's do: boxes may move",
        remedies=("layout", "metric"),
    ),
    MIXTURE: Doubt(
        because="{listed} {are} declared {task!r}, and a Softmax gives a part of the values, as in "
        "a mixture of distributions: its likelihood may lose more",
    ),
    QUANTITIES: Doubt(
        because="only values tell that {listed} {are} scores of classes, and so few numbers may be "
        "quantities side by side",
        remedies=("task", "metric"),
    ),
}


def find_doubt(
    part: TaskOutputs,
    agreement: Agreement,
    expected: Sequence[Outputs],
    got: Sequence[Outputs],
    *,
    blind: bool = False,
) -> Doubt | None:
    """Return why an agreement is weak evidence of the task; None if the agreement is sufficient.

    Args:
        part: The outputs, and how their task is known.
        agreement: Result of the task.
        expected, got: The float model's outputs and others, a dict per sample.
        blind: Other samples' outputs agree as well, see `is_blind`.
    """
    if reconstructed := part.settings.get("residuals"):
        return Doubt(
            because=f"output '{next(iter(reconstructed))}' reconstructs an input: if its error "
            "tells anomalies, samples without anomalies say little of them"
        )
    if part.task == UNKNOWN and part.source != "unknown":
        return None
    listed = ", ".join(f"'{name}'" for name in part.outputs)
    are = "are" if len(part.outputs) > 1 else "is"
    if _are_constant(part, expected):
        return Doubt(
            because=f"the float model's {listed} {are} the same in all {len(expected)} samples: "
            "every variant that returns a constant agrees",
            remedies=("samples", "ignored"),
        )
    if part.task == UNKNOWN:
        if _are_exact(part, expected, got):
            return None
        means = "mean" if len(part.outputs) > 1 else "means"
        return Doubt(because=f"nothing tells what {listed} {means}", remedies=("task", "metric"))
    if (layout := part.settings.get(GRAPH_LAYOUT)) == UNKNOWN_LAYOUT:
        return Doubt(
            because=f"{listed} {are} declared {part.task!r}, but shaped like a detector's boxes in "
            "a layout that is not known",
            remedies=("metric",),
        )
    if layout:
        return Doubt(
            because=f"{listed} {are} declared {part.task!r}, and the graph gives boxes there "
            f"(layout {layout!r}): leave the declaration out"
        )
    if other := _MAY_BE.get(part.settings.get(MAY_BE, "")):
        if _are_exact(part, expected, got):
            return None
        return replace(other, because=other.because.format(listed=listed, are=are, task=part.task))
    if agreement.doubt and not _are_exact(part, expected, got):
        return Doubt(because=agreement.doubt, remedies=("samples", "metric"))
    if part.task == "detections":  # most places are noise that nobody reads
        return _doubt_places(agreement)
    is_guess = part.source != "declared"
    if (count := part.settings.get(GUESSED_FROM)) and not _are_exact(part, expected, got):
        return Doubt(
            because=f"{listed} {are} taken for {part.task} by {count} samples",
            remedies=("task", "samples"),
        )
    # Values must keep what a blind task does not see.
    far = LOSS if blind else _FAR + 1.0 - agreement.value
    of_scores = LOSS if is_guess else far
    off = next(_errors(part, expected, got, far, of_scores), "")
    if not off:
        if part.task == "sums":
            return _doubt_bias(part, expected, got)
        if part.task != "values":
            return _doubt_growth(part, expected, got)
        return _doubt_chains(part, expected, got) or _doubt_distances(part, expected, got)
    why = ", as outputs of other samples would agree" if blind else ""
    remedies: tuple[Remedy, ...] = ("task", "metric")
    if blind or part.task in _OF_SCORES:
        remedies = (*remedies, "samples")
    if part.task == "values" and not part.settings.get("tolerances"):
        remedies = ("tolerance", *remedies)
    return Doubt(because=f"{agreement.words} of {off}{why}", remedies=remedies)


def is_blind(opened: Expected, expected: Sequence[Outputs]) -> bool:
    """Return whether outputs of other samples would keep the task: it sees no sample then.

    Args:
        opened: The task.
        expected: The float model's outputs, a dict per sample.
    """
    half = len(expected) // 2
    others = (*expected[half:], *expected[:half])
    return half > 0 and opened.measure(others).value >= 1.0 - LOSS


def _errors(
    part: TaskOutputs,
    expected: Sequence[Outputs],
    got: Sequence[Outputs],
    far: float,
    of_scores: float,
) -> Iterator[str]:
    """Yield which plain errors are large, in words.

    Args:
        part, expected, got: See `find_doubt`.
        far: Allowed share of the variance.
        of_scores: Allowed share of the skill of scores of classes.
    """
    for name in part.outputs:
        wanted = [outputs[name] for outputs in expected]
        given = [outputs[name] for outputs in got if name in outputs]
        names_classes = part.task in _OF_CLASSES and wanted[0].dtype.kind != "f"
        if names_classes or len(given) != len(wanted):
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
            column = _measure_columns(name, wanted, given)
            if column is not None and _surely_lost(column[0]) > far:
                yield f"output '{name}', and yet: {column[0].words}"
        elif part.task == "values" and measure_peaks(name, wanted, given) is None:
            for axis in range(1, wanted[0].ndim):
                band = measure_slices(name, wanted, given, axis)
                if band is not None and _surely_lost(band) > far:
                    yield f"output '{name}', and yet: {band.words}"


def _measure_columns(
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


def _are_constant(part: TaskOutputs, expected: Sequence[Outputs]) -> bool:
    """Return whether no output differs between samples."""
    first = expected[0]
    return all(
        outputs[name].shape == first[name].shape
        and np.array_equal(outputs[name], first[name], equal_nan=first[name].dtype.kind == "f")
        for outputs in expected
        for name in part.outputs
    )


def _doubt_chains(
    part: TaskOutputs, expected: Sequence[Outputs], got: Sequence[Outputs]
) -> Doubt | None:
    """Return a doubt where series are few, or chains do not keep their own variance."""
    series = part.settings.get("steps", 0)
    if series and (count := len(expected) // series) < FEWEST_FOR_SPREAD:
        return Doubt(
            because=f"only {count} series of {series} inferences were held out, and others may be "
            "of another level",
            remedies=("series",),
        )
    steps = part.settings.get(CHAIN_STEPS, 0)
    for name in part.outputs:
        found = measure_series(
            name, [outputs[name] for outputs in expected], [outputs[name] for outputs in got], steps
        )
        if found is not None and found[0].kept < 1.0 - LOSS:
            return Doubt(
                because=f"{found[0].words}, and nothing tells how long a series is in use",
                remedies=("steps", "metric"),
            )
    return None


def _doubt_bias(
    part: TaskOutputs, expected: Sequence[Outputs], got: Sequence[Outputs]
) -> Doubt | None:
    """Return a doubt where sums have a bias, of low or of high sums, above 1 % of the mean sum.

    If the float model errs on the same side, its mean error grows by the whole bias.
    """
    for name in part.outputs:
        pairs = [
            flat_pair(one[name], other[name]) for one, other in zip(expected, got, strict=True)
        ]
        sums = np.array([want.sum() for want, _ in pairs])
        errors = np.array([have.sum() for _, have in pairs]) - sums
        halves = np.array_split(errors[np.argsort(sums)], 2)
        if len(errors) < FEWEST_FOR_SPREAD:
            continue
        off = sum(abs(float(half.mean())) for half in halves) / 2.0
        noise = sum(float(half.std()) / math.sqrt(len(half)) for half in halves) / 2.0
        mean = max(float(np.abs(sums).mean()), 1e-12)
        if (off - noise) / mean > LOSS:
            return Doubt(
                because=f"sums of output '{name}' have a bias of {off / mean:.1%} of their mean: "
                "if the float model errs on the same side, all of that is lost",
            )
    return None


def _doubt_growth(
    part: TaskOutputs, expected: Sequence[Outputs], got: Sequence[Outputs]
) -> Doubt | None:
    """Return a doubt where the errors of scores or decisions still grow at the end of chains."""
    steps = part.settings.get(CHAIN_STEPS, 0)
    if not steps or len(expected) % steps:
        return None
    for name in part.outputs:
        wanted = [outputs[name] for outputs in expected]
        if any(value.shape != wanted[0].shape for value in wanted):
            continue
        want, have = (
            np.stack([outputs[name].astype(np.float64).ravel() for outputs in values])
            for values in (expected, got)
        )
        if wanted[0].dtype.kind == "f":
            squares = np.nanmean(np.square(have - want), axis=1) / max(np.nanvar(want), 1e-30)
        else:
            squares = np.mean(have != want, axis=1)
        middle, end = np.sqrt(squares.reshape(-1, steps).mean(axis=0))[[steps // 2 - 1, -1]]
        if end > max(_EXACT, _GROWTH * middle):
            return Doubt(
                because=f"the error of output '{name}' still grows at the end of {steps} "
                f"inferences ({end:.1%} of the spread, after half of them {middle:.1%}), and "
                "nothing tells how long a series is in use",
                remedies=("steps", "metric"),
            )
    return None


def _doubt_distances(
    part: TaskOutputs, expected: Sequence[Outputs], got: Sequence[Outputs]
) -> Doubt | None:
    """Return a doubt where a short row keeps its variance and not its distances to the truth.

    Values that span magnitudes are held against their relative error.
    """
    for name in part.outputs:
        wanted = [outputs[name] for outputs in expected]
        given = [outputs[name] for outputs in got]
        if name in part.settings.get("tolerances", {}) or wanted[0].size >= NARROWEST:
            continue
        relative = measure_magnitudes(name, wanted, given)
        if relative is not None and relative[0].value >= 1.0 - LOSS:
            continue
        if relative is not None:
            return Doubt(
                because=f"{relative[0].words}: the largest values make the variance that is kept",
                remedies=("tolerance", "metric"),
            )
        measure = _measure_columns if wanted[0].size > 1 else measure_explained
        found = measure(name, wanted, given)
        if found is not None and (lost := 1.0 - found[0].value) > _MOST_IN_DISTANCE:
            kept = found[0].words or f"{found[0].metric} {found[0].value:.4f} of output '{name}'"
            return Doubt(
                because=f"{kept}: errors of {math.sqrt(lost):.0%} of a standard deviation, which "
                "cost more than 1 % of the task where people measure distances, angles or overlaps",
                remedies=("tolerance", "metric"),
            )
    return None


def _doubt_places(agreement: Agreement) -> Doubt | None:
    """Return a doubt where boxes that count as found lie beside the float model's boxes."""
    places = agreement.details.get(BOX_PLACES, 1.0)
    if places >= 1.0 - LOSS:
        return None
    return Doubt(
        because=f"{agreement.words}, and yet boxes are less exact: of the common boxes, "
        f"{places:.1%} overlap enough on average over COCO's overlaps of .5 to .95",
        remedies=("metric",),
    )


def _are_exact(part: TaskOutputs, expected: Sequence[Outputs], got: Sequence[Outputs]) -> bool:
    """Return True if outputs are so near that no meaning could be lost."""
    for name in part.outputs:
        wanted = [outputs[name] for outputs in expected]
        given = [outputs[name] for outputs in got if name in outputs]
        if len(given) != len(wanted) or wanted[0].dtype.kind != "f" or are_whole(wanted):
            return False  # whole numbers that are equal say little of other samples
        if worst_tenth(wanted, given) > _EXACT or _worst_column(wanted, given) > _EXACT:
            return False
    return True


def _worst_column(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Return the greatest error of a column in its own spread; 0 where samples are unlike."""
    shape = expected[0].shape
    if any(v.shape != shape for v in (*expected, *got)):
        return 0.0
    want, have = (
        np.stack([value.astype(np.float64).ravel() for value in values])
        for values in (expected, got)
    )
    known = ~np.isnan(want).any(axis=0)
    errors = np.sqrt(np.square(have - want)[:, known].mean(axis=0))
    return float((errors / np.maximum(want[:, known].std(axis=0), 1e-30)).max(initial=0.0))


def worst_tenth(
    expected: Sequence[Tensor], got: Sequence[Tensor], *, of_all: bool = False
) -> float:
    """Return the error of samples in their own spread that nine tenths of the samples keep.

    Args:
        expected, got: The float model's values and others, an array per sample; samples of fewer
            than eight values count in the spread of all samples.
        of_all: Compare no sample with less than the spread of all samples: a picture without
            objects has next to none of its own, and adds to the error of sums what others add.
    """
    pairs = [flat_pair(*pair) for pair in zip(expected, got, strict=True)]
    pairs = [(want, have) for want, have in pairs if want.size]
    if not pairs:
        return 0.0
    overall = float(np.std(np.concatenate([want for want, _ in pairs])))
    errors = []
    for want, have in pairs:
        spread = float(np.std(want)) if want.size >= FEWEST_FOR_SPREAD else overall
        error = float(np.sqrt(np.mean((have - want) ** 2)))
        errors.append(error / max(spread, overall if of_all else LOSS * overall, 1e-30))
    return float(np.percentile(errors, 90))
