"""Findings in the float model's values about the model's purpose."""

import msgspec

from edgepack.tasks.description import TaskOutputs

LOOKED_AT = 16
"""Samples by which it is told what the graph leaves open."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of the float model in samples.

    Attributes:
        parts: Outputs with a task settled by values.
        counts: Number of findings in each sample; empty if not counted.
        notes: How variants are judged, and how many samples tell something.
    """

    parts: tuple[TaskOutputs, ...] = ()
    counts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
