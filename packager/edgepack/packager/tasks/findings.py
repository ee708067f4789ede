"""What the float model's values settle of what a model is for."""

import msgspec

from edgepack.tasks.description import TaskOutputs

LOOKED_AT = 16
"""Samples by which it is told what the graph leaves open."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What the float model finds in samples.

    Attributes:
        parts: Outputs whose task the values settle.
        counts: How much it finds in each sample; empty where that is not counted.
        notes: How variants are judged, and how many samples tell something.
    """

    parts: tuple[TaskOutputs, ...] = ()
    counts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
