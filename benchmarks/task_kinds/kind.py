"""A task with a small model, and truth that no build sees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx

from benchmarks.tasks.task import Array, Feeds, Run

Half = Literal["developed", "independent"]
"""By whether the task was made beside the evaluator that it tests, or without sight of it."""


@dataclass(frozen=True, kw_only=True)
class TaskModel:
    """A trained or computed model, with a measure of the task's quality.

    Attributes:
        model: The float model.
        calibration: Inputs without labels.
        metric: Name of the result of `measure`.
        measure: Runs a model on data that is in no calibration sample; returns the task's metric,
            greater is better, 0 or less of a model without use.
        outputs: Declarations of the outputs, as sections of edgepack.toml.
        shapes: Input shapes to fix, for targets with static shapes.
        draw: Draws a number of inputs, and truth as the last item; None if not needed elsewhere.
    """

    model: onnx.ModelProto
    calibration: Sequence[Feeds]
    metric: str
    measure: Callable[[Run], float]
    outputs: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    draw: Callable[[np.random.Generator, int], tuple[Any, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A row of the table.

    Attributes:
        name: Short name.
        half: See `Half`.
        make: Trains or computes the model, equal each time on the same machine.
    """

    name: str
    half: Half
    make: Callable[[], TaskModel]

    @property
    def what(self) -> str:
        """The output: the first line of the maker's docstring, without "Return"."""
        return (self.make.__doc__ or "").split("\n", 1)[0].removeprefix("Return ").rstrip(".")


def declare(output: str, task: str, **keys: Any) -> str:
    """Return a section of edgepack.toml that declares an output."""
    lines = [f"[outputs.{output}]", f'task = "{task}"']
    for key, value in keys.items():
        lines.append(f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}")
    return "\n".join(lines) + "\n"


def rows(name: str, values: Array) -> list[Feeds]:
    """Return a sample for each row of a batch."""
    return [{name: row[None]} for row in values]


def run_rows(run: Run, name: str, values: Array) -> dict[str, Array]:
    """Run a model once for each row and join each output's results."""
    results = [run(sample) for sample in rows(name, values)]
    return {key: np.concatenate([result[key] for result in results]) for key in results[0]}
