"""Drift: features of a device's inferences against the features of the build's samples.

1. The build sketches its samples (`edgepack.tasks.sketch`) and stores mean and spread of each
   feature in the manifest (`draw_features`).
2. A serving process sketches some of its inferences and adds up each feature (`FeatureSum`).
3. The difference of a feature is the distance of the device's mean from the build's mean in
   standard deviations of an inference, less two standard errors: chance explains these.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from edgepack.bundle.features import CONFIDENCE, FeatureSum
from edgepack.bundle.metadata import MAX_WORDS, Feature
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.description import NOT_EVALUATED, SELECTION, ModelDescription, TaskOutputs
from edgepack.tasks.sketch import Sketch, sketch_input, thin_input
from edgepack.tasks.table import task_of

MOST_CLASSES = 16
"""Most frequent classes that are features by themselves."""

_CONSTANT = 1e-6
"""Spread, as a share of the mean, up to which a number is constant and no feature."""

_LEAST_SHARE = 0.005
_LEAST_CONFIDENCE = 0.02
"""Spread of a share, and of a confidence, at least: smaller changes matter to nobody."""


def sketched_parts(description: ModelDescription) -> tuple[TaskOutputs, ...]:
    """Return the parts of a description that have features."""
    return tuple(
        part
        for part in description.parts
        if part.task not in NOT_EVALUATED or part.task == SELECTION
    )


def sketch_outputs(part: TaskOutputs, outputs: Mapping[str, Tensor]) -> Sketch | None:
    """Return the sketch of a part; None if an output is missing or has an unexpected shape."""
    if not all(name in outputs for name in part.outputs):
        return None
    try:
        return task_of(part).sketch(part, {name: outputs[name] for name in part.outputs})
    except (ValueError, IndexError):
        return None


def sketch_tensor(value: Tensor) -> Sketch:
    """Return the sketch of an input; build and device use the same function."""
    return sketch_input(thin_input(value))


def confidences(part: TaskOutputs, outputs: Iterable[Mapping[str, Tensor]]) -> list[float]:
    """Return the confidence of each inference; empty if any has none."""
    found: list[float] = []
    for one in outputs:
        sketch = sketch_outputs(part, one)
        if sketch is None or sketch.confidence is None:
            return []
        found.append(sketch.confidence)
    return found


def confidence_shifts(
    parts: Iterable[TaskOutputs],
    expected: Sequence[Mapping[str, Tensor]],
    got: Sequence[Mapping[str, Tensor]],
) -> dict[str, float]:
    """Return by how much a variant's mean confidence differs from the float model's.

    Args:
        parts: The parts of the description that have features.
        expected, got: The float model's outputs and the variant's on the same samples.

    Returns:
        By the first output of a part; parts without confidence are left out.
    """
    pairs = {
        part.outputs[0]: (confidences(part, expected), confidences(part, got)) for part in parts
    }
    return {
        name: _rounded(float(np.mean(after) - np.mean(before)))
        for name, (before, after) in pairs.items()
        if before and after
    }


def draw_features(tensor: str, sketches: Sequence[Sketch], of: str = "") -> tuple[Feature, ...]:
    """Return mean and spread of each feature over the build's samples.

    Args:
        tensor: The input, or the first output of the part.
        sketches: A sketch for each sample.
        of: Words behind a feature's own, where a model has several inputs or outputs.

    Returns:
        The most frequent classes, the other classes together, the confidence, and numbers and
        columns that are not constant.
    """
    found = list(_draw_shares(tensor, sketches, of))
    for name, values, is_column in _numbers(sketches):
        mean, spread = float(np.mean(values)), float(np.std(values))
        if name == CONFIDENCE:
            spread = max(spread, _LEAST_CONFIDENCE)
        elif spread <= _CONSTANT * abs(mean):
            continue
        level = Feature(
            tensor=tensor,
            name=name[:MAX_WORDS],
            words=f"{name}{of}"[:MAX_WORDS],
            mean=_rounded(mean),
            spread=_rounded(spread),
            samples=len(values),
        )
        found.append(level)
        if is_column:
            words = f"spread of {level.words}"[:MAX_WORDS]
            found.append(
                msgspec.structs.replace(
                    level, kind="spread", words=words, mean=level.spread, center=level.mean
                )
            )
    return tuple(found)


def _numbers(sketches: Sequence[Sketch]) -> Iterator[tuple[str, list[float], bool]]:
    """Yield each number of the sketches: its name, its values, and whether its spread counts."""
    confidences = [one.confidence for one in sketches if one.confidence is not None]
    if confidences:
        yield CONFIDENCE, confidences, False
    for is_column in (False, True):
        values: dict[str, list[float]] = {}
        for sketch in sketches:
            for name, value in (sketch.columns if is_column else sketch.numbers).items():
                values.setdefault(name, []).append(value)
        for name, found in values.items():
            yield name, found, is_column


def _draw_shares(tensor: str, sketches: Sequence[Sketch], of: str) -> Iterator[Feature]:
    totals: Counter[str] = Counter()
    for sketch in sketches:
        totals.update(sketch.shares)
    if not totals:
        return
    listed = [name for name, _ in totals.most_common(MOST_CLASSES)]
    count, first = len(sketches), sketches[0]
    unseen = max(sum(totals.values()) / count, 1.0) / math.sqrt(count)
    for name in (*listed, *([first.rest] if first.rest else [])):
        is_rest = name == first.rest
        values = [_share(sketch, "" if is_rest else name, listed) for sketch in sketches]
        spread = float(np.std(values))
        yield Feature(
            tensor=tensor,
            name="" if is_rest else name[:MAX_WORDS],
            kind="class",
            words=f"{first.share_words.format(name)}{of}"[:MAX_WORDS],
            mean=_rounded(float(np.mean(values))),
            spread=_rounded(max(spread, _LEAST_SHARE) if spread else unseen),
            samples=count,
        )


def _share(sketch: Sketch, name: str, listed: Iterable[str]) -> float:
    """Return the share of a class, or with "" of the classes that are not listed."""
    if name:
        return sketch.shares.get(name, 0.0)
    return sum(sketch.shares.values()) - sum(sketch.shares.get(one, 0.0) for one in listed)


def add_sketch(
    sums: Mapping[str, FeatureSum], features: Sequence[Feature], sketch: Sketch
) -> dict[str, FeatureSum]:
    """Return the sums with another inference of a part or input.

    Args:
        sums: By `Feature.key`.
        features: The features of the part or input.
        sketch: The inference's.
    """
    listed = [one.name for one in features if one.kind == "class" and one.name]
    added = dict(sums)
    for feature in features:
        value: float | None
        if feature.kind == "class":
            value = _share(sketch, feature.name, listed)
        elif feature.name == CONFIDENCE:
            value = sketch.confidence
        else:
            value = sketch.numbers.get(feature.name, sketch.columns.get(feature.name))
        if value is not None and math.isfinite(value):
            known = added.get(feature.key) or FeatureSum(feature=feature)
            added[feature.key] = known.with_value(value)
    return added


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
