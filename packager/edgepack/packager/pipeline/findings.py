"""Findings in the float model's values about the model's purpose."""

from collections.abc import Mapping

import msgspec

from edgepack.packager.tensors.heads import Head
from edgepack.packager.tensors.meanings import NOTHING_KNOWN, Meaning

LOOKED_AT = 16
"""Samples by which it is told what the graph leaves open."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of the float model in samples.

    Attributes:
        head: Where it tells that, settled; None where nothing is known of what it is for.
        counts: How much it finds in each sample; empty where that is not counted.
        meanings: What other outputs are, by name.
        notes: How variants are judged, and how many samples tell something.
    """

    head: Head | None = None
    counts: tuple[int, ...] = ()
    meanings: Mapping[str, Meaning] = NOTHING_KNOWN
    notes: tuple[str, ...] = ()
