"""Measure sound by its scale-invariant signal to distortion ratio."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.contract import MOST_DECIBELS, Measure, Scale
from edgepack.tasks.decibels import compare_ratios, decibels
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch, finite_values

SI_SDR = Scale(metric="si_sdr_db", least=30.0, best=MOST_DECIBELS, is_decibels=True)

_SILENT = 1e-6
"""Share of the loudest sample's power below which a sample is silent, and tells nothing."""


def compare_sounds(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the waveforms of an output; see `Compare`."""
    powers = [float(value.astype(np.float64).var()) for value in expected]
    heard = [n for n, power in enumerate(powers) if power > _SILENT * max(powers)]
    losses = np.zeros(len(expected))
    if not heard:
        silent = Measure(scale=SI_SDR, value=MOST_DECIBELS, low=MOST_DECIBELS, output=output)
        return Compared(measures=(silent,), losses=losses, notes=("nothing is to be heard",))
    found = compare_ratios(
        SI_SDR, output, _ratio, [expected[n] for n in heard], [got[n] for n in heard]
    )
    losses[heard] = found.losses
    return Compared(measures=found.measures, losses=losses, notes=found.notes)


def _ratio(want: Floats, have: Floats) -> float:
    want, have = want - want.mean(), have - have.mean()
    if not have.any():  # silence, or values that are no numbers
        return -MOST_DECIBELS
    part = want * (float(want @ have) / float(want @ want))
    return decibels(float(part @ part), float((have - part) @ (have - part)))


def sketch_sound(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return the loudness, decibels."""
    values = finite_values(outputs[part.outputs[0]])
    if not values.size:
        return Sketch()
    power = float(np.mean(values**2))
    return Sketch(columns={"loudness": decibels(max(power, 1e-10), 1.0)})


TASK = ValueTask("sound", "its sound (SI-SDR)", "sounds", compare_sounds, sketch_sound)
