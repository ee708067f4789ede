"""Measure of outputs with unknown meaning: by each possible meaning."""

from collections.abc import Callable, Sequence

import numpy as np

from edgepack.decoding import convert_value
from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.classification.measure import compare_rows, same_decisions
from edgepack.tasks.contract import LOSS, Measure, Task
from edgepack.tasks.description import UNKNOWN, TaskOutputs
from edgepack.tasks.embedding.measure import measure_neighbourhood
from edgepack.tasks.likelihood import are_probabilities
from edgepack.tasks.sound.measure import compare_sounds
from edgepack.tasks.sums.measure import measure_sums
from edgepack.tasks.threshold.measure import measure_crossings
from edgepack.tasks.values.measure import ValueOutputs, ValueSettings, measure_strictly
from edgepack.tasks.values.parts import find_parts
from edgepack.tasks.values.strict import FEWEST_IN_MAP, NARROWEST, has_unlike_columns, is_row

UNLIKE = 10.0
"""Times that the spreads of a vector's columns may differ: beyond, they are quantities."""

LOGITS = 20.0
"""Median size up to which values of both signs may be logits."""


class UnknownOutputs(ValueOutputs):
    """The float model's values of outputs of unknown meaning: an `Expected`; see `ValueOutputs`."""

    def measure_whole(
        self, output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
    ) -> tuple[list[Measure], Floats]:
        """Measure an output that is not divided into parts."""
        is_narrow = expected[0].size < NARROWEST
        residual = self.settings.residuals.get(output)
        measures, losses = measure_strictly(
            output,
            expected,
            got,
            residual,
            by_column=is_narrow or has_unlike_columns(expected, UNLIKE),
        )
        near = measure_neighbourhood(output, expected, got, NARROWEST)
        if near is not None:
            measures.append(near)
        for may_be, measure in _POSSIBLE:
            is_known = measure is _measure_sound and residual is not None
            each = measure(output, expected, got) if may_be(expected) and not is_known else None
            if each is not None:
                measures.append(each[0])
                losses = np.maximum(losses, each[1])
        if output in self.settings.winners:
            pairs = zip(expected, got, strict=True)
            rows = compare_rows(output, [same_decisions(want, have) for want, have in pairs])
            measures += rows.measures
            losses = np.maximum(losses, rows.losses)
        return measures, losses


def _measure_sound(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats]:
    sound = compare_sounds(output, expected, got)
    return sound.measures[0], sound.losses


def _may_be_sound(values: Sequence[Tensor]) -> bool:
    """Return whether an output may be a sound: a long row of values on both sides of 0."""
    first = values[0]
    if first.size < FEWEST_IN_MAP or first.size != first.shape[-1]:
        return False
    flat = np.concatenate([value.ravel() for value in values]).astype(np.float64)
    return bool(UNLIKE * abs(np.nanmean(flat)) <= np.nanstd(flat))


def _may_be_summed(values: Sequence[Tensor]) -> bool:
    """Return whether an output may be a map that is summed: many values, none negative."""
    if is_row(values) or min(value.size for value in values) < FEWEST_IN_MAP:
        return False
    least = min(float(np.nanmin(value)) for value in values)
    greatest = max(float(np.nanmax(value)) for value in values)
    return least >= -LOSS * greatest


def _may_be_crossed(values: Sequence[Tensor]) -> bool:
    """Return whether values may be probabilities or logits, each for itself."""
    if are_probabilities(values):
        return True
    flat = np.concatenate([value.ravel() for value in values]).astype(np.float64)
    flat = flat[np.isfinite(flat)]
    return bool((flat < 0).any() and (flat > 0).any() and np.median(np.abs(flat)) <= LOGITS)


_POSSIBLE: tuple[
    tuple[
        Callable[[Sequence[Tensor]], bool],
        Callable[[str, Sequence[Tensor], Sequence[Tensor]], tuple[Measure, Floats] | None],
    ],
    ...,
] = (
    (_may_be_summed, measure_sums),
    (_may_be_crossed, measure_crossings),
    (_may_be_sound, _measure_sound),
)
"""Other meanings: whether values allow a meaning, and its measure. Of an output that reconstructs
an input, the error of the float model is known, and a sound's usual error does not count."""


class Unknown(Task):
    """Outputs of unknown meaning: a `Task`."""

    name = UNKNOWN
    words = "the variance of its values, and how its vectors differ from each other"
    items = "values"
    is_decision = False

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> UnknownOutputs:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        # The settings of a task that a later release added say nothing here.
        own = part.settings if part.task == UNKNOWN else {}
        settings = convert_value(own, ValueSettings)
        parts = find_parts(expected, part.outputs)
        return UnknownOutputs(self.name, part.outputs, expected, parts, settings)


TASK = Unknown()
