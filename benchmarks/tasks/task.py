"""A benchmark task: a shipped model, calibration inputs, and labelled inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
"""One inference's inputs by name, batch axis included."""

Run = Callable[[Feeds], dict[str, Array]]
"""Runs a model once: inputs by name to outputs by name."""

Part = Literal["development", "evaluation"]
"""Two labelled sets without a common sample.

A build may look at the development set as often as it likes (`edgepack build --metric`); what a
benchmark prints comes from the evaluation set, which nothing is chosen by.
"""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A real model with a real use.

    Attributes:
        name: Short name.
        model: The ONNX file as shipped by its package.
        shapes: Input shapes to fix, for targets with static shapes.
        metric: Name of the result of `score`; higher is better.
        calibration: Inputs without labels, in a fixed order, none from a labelled set.
        score: Runs a model over a labelled set.
        declared: What the metric ignores, as a user of edgepack declares it: an edgepack.toml.
        edition: Number of the task's version; metrics of other editions are not comparable.
    """

    name: str
    model: Path
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    metric: str
    calibration: Callable[[], Sequence[Feeds]]
    score: Callable[[Run, Part], float]
    declared: str = ""
    edition: int = 1


def accuracy(run: Run, feeds: Sequence[Feeds], labels: Sequence[int]) -> float:
    """Return the share of samples with the highest score, over the only output, at their label."""
    right = [
        int(np.argmax(_only(run(sample)))) == label
        for sample, label in zip(feeds, labels, strict=True)
    ]
    return sum(right) / len(right)


def _only(outputs: dict[str, Array]) -> Array:
    (output,) = outputs.values()
    return output
