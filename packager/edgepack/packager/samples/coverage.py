"""Coverage of inputs by the calibration samples, in numbers for a person.

Ranges come from the calibration samples alone. Held-out samples come from the same place: the
device's inputs will exceed the ranges as far as the held-out samples do.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.packager.config.inputs import ImageInput, InputDeclaration, TokenInput
from edgepack.packager.tensors.sequence import Feeds, Samples, SampleSplit
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Tensor

_BEYOND_SHARE = 0.1
"""Of the calibration's range; a held-out value further out than this is worth a word."""

TAIL = 10
"""Divides the samples: the largest tenth shows how far values go beyond the rest. Where this tenth
loses a tenth, a hundredth of the task is lost."""

_LIKELY_SHARE = 0.05
"""Of the calibration's range; inferences that are likely further out may cost the task."""

_MOST_EXTREMES = 3
"""Samples that are scaled to a likely extreme: their median loss counts."""

_MOST_SCALED = 4.0
"""Times that a sample is scaled to a likely extreme: its other values grow with it."""

_UNSEEN_SHARE = 0.2
"""Of the held-out tokens; more than this were never calibrated with: worth a word."""

_DECLARED_ROOM = 0.01
"""Of a declared range, for rounding."""


class _Seen(msgspec.Struct, kw_only=True):
    """Values of samples in an input.

    Attributes:
        low, high: Least and greatest value.
        ends: Negated least and greatest value of each sample.
        tokens: Different integers and how often each occurs; only of integer inputs.
        is_one_value: Whether all samples are equal.
    """

    low: float = np.inf
    high: float = -np.inf
    ends: list[tuple[float, float]] = msgspec.field(default_factory=list)
    tokens: dict[int, int] = msgspec.field(default_factory=dict)
    is_one_value: bool = True
    first: Tensor | None = None

    def is_one_number_in(self, other: "_Seen") -> bool:
        """Return True if all samples, and all others too, hold the same single number."""
        if self.first is None or self.first.size != 1:
            return False
        return self.low == self.high == other.low == other.high

    def add(self, array: Tensor) -> None:
        if self.first is None:
            self.first = array.copy()
        elif self.is_one_value:
            self.is_one_value = np.array_equal(self.first, array)
        if array.dtype.kind not in "fiu" or not array.size:
            return
        low, high = float(array.min()), float(array.max())
        self.ends.append((-low, high))
        self.low, self.high = min(self.low, low), max(self.high, high)
        if array.dtype.kind in "iu":
            for value, count in zip(*np.unique(array, return_counts=True), strict=True):
                self.tokens[int(value)] = self.tokens.get(int(value), 0) + int(count)


class _Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Values that will exceed the range by far.

    Attributes:
        side: Place of the end in `_Seen.ends`.
        end: The end that about one of the next inferences will reach.
        share: Distance to the range, as a share of the range.
    """

    side: int
    end: float
    share: float


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Coverage of inputs by the calibration samples.

    Attributes:
        notes: Problems, a sentence each.
        extremes: A few held-out samples, scaled until a value is as far beyond the range as in one
            of the next inferences; None where no input has such values.
    """

    notes: tuple[str, ...]
    extremes: Samples | None = None


def measure_coverage(
    split: SampleSplit,
    inputs: Sequence[TensorSpec],
    declarations: Mapping[str, InputDeclaration],
) -> Coverage:
    """Return the problems of the calibration samples, and samples with likely extremes.

    Args:
        split: The divided samples; each is read once.
        inputs: The model's inputs.
        declarations: Declared inputs by name.
    """
    names = [spec.name for spec in inputs]
    tables = {spec.name for spec in inputs if spec.lookup is not None}
    calibration, held_out = _look(split.calibration, names), _look(split.held_out, names)
    states = {state.input for state in split.calibration.states}
    notes, extremes = [], None
    for name in names:
        known, other = calibration[name], held_out[name]
        if split.calibration.are_texts and name not in tables:
            continue  # a mask, positions and empty caches, which the build itself writes
        if name in tables and known.is_one_number_in(other):
            continue  # a decoder's first token, say: nobody would vary it
        if known.is_one_value and split.calibration.count > 1:
            notes.append(
                f"Input '{name}' is the same in all {split.calibration.count} calibration samples"
                + ("." if other.is_one_value else ", and is not in the held-out ones.")
            )
        elif known.tokens:
            notes += _describe_tokens(name, known, other, declarations.get(name))
        elif name not in states and known.low <= known.high:
            tail = _find_tail(known, other)
            notes += _describe_range(name, known, other, tail)
            if extremes is None and not states and split.held_out.decoder is None:
                extremes = _scale(split.held_out, name, other, tail)
        notes += _describe_declared(name, known, declarations.get(name))
    return Coverage(notes=tuple(notes), extremes=extremes)


def _look(samples: Samples, names: Sequence[str]) -> dict[str, _Seen]:
    seen = {name: _Seen() for name in names}
    for feeds in samples:
        for name, entry in seen.items():
            entry.add(feeds[name])
    return seen


def _describe_range(name: str, known: _Seen, other: _Seen, tail: _Tail) -> list[str]:
    beyond = _beyond(known, other)
    if beyond <= _BEYOND_SHARE < tail.share:
        return [
            f"The extremes of input '{name}' differ much from sample to sample: about one of "
            f"{len(known.ends) + 1} inferences will go beyond the calibration's range "
            f"({known.low:.4g} … {known.high:.4g}), by {tail.share:.0%} of it or more, and a "
            "variant cuts such values off. Give more samples, or limit or scale the input before "
            "the model."
        ]
    if beyond <= _BEYOND_SHARE:
        return []
    return [
        f"Held-out samples go beyond the calibration's range in input '{name}' by {beyond:.0%} of "
        f"it ({other.low:.4g} … {other.high:.4g} against {known.low:.4g} … {known.high:.4g}): "
        "calibrate with samples that span what the device will see."
    ]


def _beyond(known: _Seen, other: _Seen) -> float:
    """Return how far held-out values go beyond the range, as a share of the range."""
    width = max(known.high - known.low, 1e-12)
    return max(known.low - other.low, other.high - known.high) / width


def _find_tail(known: _Seen, other: _Seen) -> _Tail:
    """Return how far values will exceed the range in one of the next inferences.

    A value beyond the range goes further by the mean excess of the largest tenth of the samples,
    if the tail is exponential, and by more if the tail is heavier.
    """
    ends = np.sort(np.array(known.ends + other.ends), axis=0)
    count = len(ends) // TAIL
    if count < 2:
        return _Tail(side=0, end=-known.low, share=0.0)
    excesses = ends[-count:].mean(axis=0) - ends[-count - 1]
    side = int(excesses.argmax())
    excess = float(excesses[side])
    share = excess / max(known.high - known.low, 1e-12)
    end = (-known.low, known.high)[side] + excess
    return _Tail(side=side, end=end, share=share)


def _scale(held_out: Samples, name: str, seen: _Seen, tail: _Tail) -> Samples | None:
    """Return the samples with the furthest values, scaled to the likely extreme.

    Args:
        held_out: The samples.
        name: The input.
        seen: Its values in these samples.
        tail: See `_Tail`.
    """
    ends = [each[tail.side] for each in seen.ends]
    furthest = sorted(range(len(ends)), key=lambda place: -ends[place])[:_MOST_EXTREMES]
    chosen = [place for place in furthest if ends[place] * _MOST_SCALED >= tail.end > 0.0]
    if (
        tail.share <= _LIKELY_SHARE
        or not chosen
        or seen.first is None
        or seen.first.dtype.kind != "f"
    ):
        return None
    few = held_out.pick(chosen)

    def read(index: int) -> Feeds:
        feeds = few.read(index)
        scaled = feeds[name].astype(np.float64) * (tail.end / ends[chosen[index]])
        return {**feeds, name: scaled.astype(feeds[name].dtype)}

    return replace(few, read=read)


def _describe_tokens(
    name: str, known: _Seen, other: _Seen, declaration: InputDeclaration | None
) -> list[str]:
    total = sum(other.tokens.values())
    unseen = sum(count for token, count in other.tokens.items() if token not in known.tokens)
    if not total or unseen <= _UNSEEN_SHARE * total:
        return []
    vocabulary = f" of {declaration.vocabulary:,}" if isinstance(declaration, TokenInput) else ""
    return [
        f"Calibration saw {len(known.tokens):,}{vocabulary} different values of input '{name}'; "
        f"{unseen / total:.0%} of the held-out ones are not among them: more samples cover more."
    ]


def _describe_declared(name: str, known: _Seen, declaration: InputDeclaration | None) -> list[str]:
    if not isinstance(declaration, ImageInput) or known.low > known.high:
        return []
    pixels = declaration.scale * np.array([[0.0], [255.0]])
    ends = (pixels - np.array(declaration.mean)) / np.array(declaration.std)
    low = ends.min()
    high = ends.max()
    room = _DECLARED_ROOM * (high - low)
    if low - room <= known.low and known.high <= high + room:
        return []
    return [
        f"Input '{name}' holds {known.low:.4g} … {known.high:.4g}, and the declared scale, mean "
        f"and std allow {low:.4g} … {high:.4g}: the samples or the declaration are "
        "not what the model was trained with."
    ]
