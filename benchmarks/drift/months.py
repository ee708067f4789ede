"""Months of a device: windows drawn from sketched samples, judged by the agent's own rule."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.drift.subjects import Shift, Subject
from benchmarks.tasks.task import Array
from edgepack.agent.telemetry.drift_windows import (
    DAY_WINDOWS,
    FeatureWindows,
    estimate_loss,
)
from edgepack.bundle.drift import add_sketch, draw_features, sketch_outputs
from edgepack.bundle.features import CONFIDENCE, FeatureSum
from edgepack.bundle.metadata import Feature
from edgepack.packager.pipeline.reference import MOST_SAMPLES, SPOILT_SAMPLES, loss_by_confidence
from edgepack.tasks.sketch import Sketch, sketch_input, thin_input

LIGHTS = (1.0, 0.9, 0.8, 0.7, 0.6)
_SCENES = 10
"""Scenes of a window; the ten inferences of a scene are alike."""


class Sketched(NamedTuple):
    """Sketches of a pool of samples in one condition.

    Attributes:
        inputs, outputs: A sketch per sample.
        is_right: Whether each answer is right.
    """

    inputs: Sequence[Sketch]
    outputs: Sequence[Sketch]
    is_right: Array


class Build(NamedTuple):
    """Features of a build, and the values of these features for samples of each condition."""

    features: Sequence[Feature]
    values: Mapping[str, Array]


def sketch_pool(subject: Subject, shift: Shift) -> Sketched:
    """Run the model on all samples in one condition."""
    rng = np.random.default_rng(0)
    inputs, outputs, right = [], [], []
    for number, sample in enumerate(subject.samples):
        feeds = subject.as_feeds(shift(sample, rng))
        answer = subject.run(feeds)
        (value,) = feeds.values()
        inputs.append(sketch_input(thin_input(value)))
        outputs.append(sketch_outputs(subject.part, answer) or Sketch())
        right.append(subject.is_right(answer, number))
    return Sketched(inputs, outputs, np.array(right))


def draw_build(
    subject: Subject, pools: Mapping[str, Sketched], of_build: Sequence[str], seed: int
) -> Build:
    """Draw the samples of a build, and give its features their values in each condition.

    Args:
        subject: The model.
        pools: By condition.
        of_build: Conditions that the build's samples come from.
        seed: Draws the samples.
    """
    rng = np.random.default_rng(seed)
    drawn = [
        (pools[of_build[int(rng.integers(len(of_build)))]], int(number))
        for number in rng.choice(len(subject.samples), MOST_SAMPLES, replace=False)
    ]
    inputs = draw_features("x", [pool.inputs[number] for pool, number in drawn])
    outputs = draw_features("y", [pool.outputs[number] for pool, number in drawn])
    loss = _measure_loss(subject, [number for _, number in drawn[:SPOILT_SAMPLES]])
    features = [
        msgspec.structs.replace(one, loss_by_confidence=loss) if one.name == CONFIDENCE else one
        for one in (*inputs, *outputs)
    ]
    values = {
        condition: np.nan_to_num(
            [
                _values(features, of_input, of_output)
                for of_input, of_output in zip(pool.inputs, pool.outputs, strict=True)
            ]
        )
        for condition, pool in pools.items()
    }
    return Build(features, values)


def _measure_loss(subject: Subject, numbers: Sequence[int]) -> float | None:
    feeds = [subject.as_feeds(subject.samples[number]) for number in numbers]
    return loss_by_confidence(subject.part, [(one, subject.run(one)) for one in feeds], subject.run)


def _values(features: Sequence[Feature], of_input: Sketch, of_output: Sketch) -> list[float]:
    sums: dict[str, FeatureSum] = {}
    for tensor, sketch in (("x", of_input), ("y", of_output)):
        sums = add_sketch(sums, [one for one in features if one.tensor == tensor], sketch)
    return [sums[one.key].total if one.key in sums else np.nan for one in features]


class Device:
    """A device that judges windows.

    Args:
        build: The features.
        rng: Draws the scenes.
    """

    def __init__(self, build: Build, rng: np.random.Generator) -> None:
        self._build = build
        self._rng = rng
        self.windows = [FeatureWindows() for _ in build.features]

    def live(self, condition: str, among: Array | None = None) -> bool:
        """Judge another window; return whether any feature is changed.

        Args:
            condition: Condition of the scenes.
            among: Numbers of the samples that appear; all by default.
        """
        values = self._build.values[condition]
        drawn = self._rng.integers(len(values) if among is None else len(among), size=_SCENES)
        means = values[drawn if among is None else among[drawn]].mean(axis=0)
        features = self._build.features
        self.windows = [
            known.with_window(one, math.sqrt(mean) if one.kind == "spread" else mean, len(features))
            for known, one, mean in zip(self.windows, features, means.tolist(), strict=True)
        ]
        return any(one.is_changed for one in self.windows)

    @property
    def loss(self) -> float | None:
        """Estimated loss of the task; None without harm."""
        return estimate_loss(zip(self._build.features, self.windows, strict=True))


def daily(*, is_dusk: bool) -> Iterator[str]:
    """Yield the condition of each window of a day: still light, or light that falls to .6."""
    for number in range(DAY_WINDOWS):
        height = 0.5 + 0.5 * math.cos(2 * math.pi * number / DAY_WINDOWS) if is_dusk else 1.0
        yield light_name(LIGHTS[round((1.0 - height) * (len(LIGHTS) - 1))])


def light_name(light: float) -> str:
    """Return the name of the condition with a light, 0…1."""
    return f"light {light:g}"
