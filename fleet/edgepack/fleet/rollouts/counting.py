"""The devices of a rollout, counted by the states of their assignments."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from edgepack.text import counted

AssignmentState = Literal[
    "WAITING", "OFFERED", "WORKING", "COMMITTED", "FAILED", "SILENT", "WITHDRAWN", "RECALLED"
]


UNDECIDED: frozenset[AssignmentState] = frozenset({"OFFERED", "WORKING"})
DECIDED: frozenset[AssignmentState] = frozenset({"COMMITTED", "FAILED", "SILENT"})
FAILURES: frozenset[AssignmentState] = frozenset({"FAILED", "SILENT"})
LIVE: frozenset[AssignmentState] = frozenset({"WAITING", *UNDECIDED, *DECIDED})
"""States of those that a rollout is for still."""

# What a device's life cycle state means for its assignment (see `edgepack.agent`).
MEANING: dict[str, AssignmentState] = {
    "OFFERED": "WORKING",
    "DOWNLOADING": "WORKING",
    "VERIFIED": "WORKING",
    "STAGED": "WORKING",
    "INSTALLING": "WORKING",
    "REBOOTING": "WORKING",
    "PROBING": "WORKING",
    "SHADOWING": "WORKING",
    "ACTIVATING": "WORKING",
    "SOAKING": "WORKING",
    "CONFIRMING": "WORKING",
    "ROLLING_BACK": "WORKING",
    "REVERTING": "WORKING",
    "COMMITTED": "COMMITTED",
    "ROLLED_BACK": "FAILED",
    "REJECTED": "FAILED",
}


Wave = Mapping[AssignmentState, int]
"""Devices of one wave by the state of their part; states that nobody is in may be missing."""

Classes = Mapping[str, Sequence[Wave]]
"""By hardware class: all waves of the rollout, in order; as many for each."""


def total(classes: Classes) -> tuple[Wave, ...]:
    """Return hardware classes together, wave by wave."""
    by_wave = zip(*classes.values(), strict=True)
    return tuple(sum(map(Counter, same), Counter[AssignmentState]()) for same in by_wave)


def over(classes: Classes, wave: int) -> frozenset[str]:
    """Return the hardware classes of which nobody in the current wave is undecided."""
    open_states = {"WAITING", "RECALLED", *UNDECIDED}
    return frozenset(
        name
        for name, waves in classes.items()
        if not count(waves[max(wave, 0) : wave + 1], open_states)
    )


def count(waves: Iterable[Wave], states: Collection[AssignmentState]) -> int:
    """Return the number of devices of these waves in these states."""
    return sum(wave.get(state, 0) for wave in waves for state in states)


def tell_outcome(waves: Sequence[Wave]) -> str:
    """Return the outcome of a rollout as a sentence."""
    devices = sum(sum(wave.values()) for wave in waves)
    return (
        f"{count(waves, {'COMMITTED'})} of {counted(devices, 'device')} committed, "
        f"{count(waves, FAILURES)} failed or stayed silent"
    )
