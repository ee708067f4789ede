"""Meanings of outputs that are known without a look at their values."""

import enum
from collections.abc import Collection, Mapping
from types import MappingProxyType


class Meaning(enum.Enum):
    """Meaning of an output.

    The names that a person may write in `[outputs]` are the values of all but `SELECTED`.
    """

    SCORES = "scores"
    """Of each row (last axis) the highest wins."""
    EMBEDDING = "embedding"
    """A vector that is compared with other samples' vectors."""
    VALUES = "values"
    """Numbers that count each for itself: quantities, boxes, probabilities with a threshold."""
    SEGMENTATION = "segmentation"
    """A map that says of each place of a picture to which class it belongs."""
    DEPTH = "depth"
    """A map of distances, or of their inverses."""
    IMAGE = "image"
    """A picture to look at."""
    AUDIO = "audio"
    """A waveform to listen to."""
    IGNORED = "ignored"
    """Nobody reads it."""
    SELECTED = "selected"
    """What TopK or NonMaxSuppression picked: rows that change places where scores are alike."""


NOTHING_KNOWN: Mapping[str, Meaning] = MappingProxyType({})
"""Of no output."""


def judged_outputs(names: Collection[str], meanings: Mapping[str, Meaning]) -> tuple[str, ...]:
    """Return the outputs whose values tell how near a model is to another, in order."""
    untold = (Meaning.IGNORED, Meaning.SELECTED)
    return tuple(name for name in names if meanings.get(name) not in untold)
