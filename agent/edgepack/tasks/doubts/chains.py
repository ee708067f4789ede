"""Doubts of models with a state: series are few, or errors may grow in longer use."""

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD
from edgepack.tasks.contract import LOSS
from edgepack.tasks.doubts.case import EXACT, Case
from edgepack.tasks.stacking import as_rows
from edgepack.tasks.values.series import measure_series

_GROWTH = 2.0**0.25
"""Error at the end of a chain as a multiple of the error in the middle: half-way (in decibels) from
1, of a model that forgets its state in half a chain, to √2, of errors that add up at random."""

CHAIN_STEPS = "chain_steps"
"""Setting of outputs of a model with a state: inferences of a chain, where no one states how long a
series is."""


def find_few_series(case: Case) -> str:
    """Return a doubt where series are few."""
    steps = case.part.settings["steps"]
    count = len(case.expected) // steps
    if count >= FEWEST_FOR_SPREAD:
        return ""
    return (
        f"only {count} series of {steps} inferences were held out, and others may be of another "
        "level"
    )


def find_lost_series(case: Case) -> str:
    """Return a doubt where chains do not keep their own variance."""
    for name, wanted, given in case.outputs():
        found = measure_series(name, wanted, given, case.part.settings[CHAIN_STEPS])
        if found is not None and found[0].kept < 1.0 - LOSS:
            return f"{found[0].words}, and nothing tells how long a series is in use"
    return ""


def find_growth(case: Case) -> str:
    """Return a doubt where the errors of scores or decisions still grow at the end of chains."""
    steps = case.part.settings[CHAIN_STEPS]
    for name, wanted, given in () if len(case.expected) % steps else case.outputs():
        if any(value.shape != wanted[0].shape for value in wanted):
            continue
        want, have = as_rows(wanted), as_rows(given)
        if wanted[0].dtype.kind == "f":
            squares = np.nanmean(np.square(have - want), axis=1) / max(np.nanvar(want), 1e-30)
        else:
            squares = np.mean(have != want, axis=1)
        middle, end = np.sqrt(squares.reshape(-1, steps).mean(axis=0))[[steps // 2 - 1, -1]]
        if end > max(EXACT, _GROWTH * middle):
            return (
                f"the error of output '{name}' still grows at the end of {steps} inferences "
                f"({end:.1%} of the spread, after half of them {middle:.1%}), and nothing tells "
                "how long a series is in use"
            )
    return ""
