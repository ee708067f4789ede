"""Rows of quantities that people measure by distances, angles, overlaps or variance.

Each model is computed by least squares, with a known error of the float model, and quantized in a
few ways. A variant loses if it has less than .99 of the float model's score on 10,000 fresh inputs.
Poses are the models that the constant was chosen beside. Variants that other doubts or the gate
meet are left out.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from benchmarks.evidence.cases.extremes import computed_model
from benchmarks.evidence.known import Case
from benchmarks.evidence.recordings import quantize
from benchmarks.task_kinds.kind import Half
from benchmarks.tasks.task import Array
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.runtime.evaluator import open_plain
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import ModelDescription, TaskOutputs

QUESTION = "Does the lost variance cost a hundredth of the task?"

_KEPT = 0.99
_TRAINING, _FRESH, _HELD_OUT, _CALIBRATION = 4000, 10_000, 64, 64
_WIDTH, _HIDDEN = 12, 64
_RECIPES = ("a16w8", "a8w8", "weights of 6 bits", "weights of 5 bits")
_NODES = "h = MatMul(x, a) r = Tanh(h) y = MatMul(r, b)"
_BY_DISTANCE = "measure distances"


class _Kind(NamedTuple):
    """A kind of model.

    Attributes:
        name, half: See `Case`.
        columns: Number of quantities.
        score: Returns the score of outputs by the truth.
        noise: Error of the truth, in the spread of a quantity.
    """

    name: str
    half: Half
    columns: int
    score: Callable[[Array, Array], float]
    noise: float


def _right_joints(truth: Array, got: Array) -> float:
    """Return the share of joints that are off by less than a fifth of the spread."""
    off = np.linalg.norm((got - truth).reshape(len(truth), -1, 2), axis=-1)
    return float((off < 0.2).mean())


def _distance(truth: Array, got: Array) -> float:
    naive = np.linalg.norm(truth - truth.mean(0), axis=1).mean()
    return float(1 - np.linalg.norm(got - truth, axis=1).mean() / naive)


def _angle(truth: Array, got: Array) -> float:
    """Return how much nearer than the mean direction a direction is, by angles."""

    def between(others: Array) -> float:
        norms = np.linalg.norm(ahead, axis=1) * np.linalg.norm(others, axis=1)
        return float(np.arccos(np.clip((ahead * others).sum(1) / norms, -1, 1)).mean())

    shift = np.array([0.0, 0.0, 3.0])
    ahead = truth + shift
    return 1 - between(got + shift) / between(np.broadcast_to(shift, truth.shape))


def _overlap(truth: Array, got: Array) -> float:
    """Return the mean overlap of boxes of centre and logarithm of the sides."""
    corners = []
    for boxes in (truth, got):
        sides = np.exp(0.3 * boxes[:, 2:]) * 3.0
        corners.append((boxes[:, :2] - sides / 2, boxes[:, :2] + sides / 2))
    (low, high), (other_low, other_high) = corners
    common = np.maximum(np.minimum(high, other_high) - np.maximum(low, other_low), 0).prod(1)
    both = (high - low).prod(1) + (other_high - other_low).prod(1) - common
    return float((common / both).mean())


def _explained(truth: Array, got: Array) -> float:
    return float(np.mean(1 - np.square(got - truth).mean(0) / truth.var(0)))


def _order(truth: Array, got: Array) -> float:
    """Return the mean correlation of each quantity with the truth."""
    pairs = zip(truth.T, got.T, strict=True)
    return float(np.mean([np.corrcoef(want, have)[0, 1] for want, have in pairs]))


_KINDS = (
    _Kind("poses", "developed", 10, _right_joints, 0.1),
    _Kind("vague poses", "developed", 10, _right_joints, 0.3),
    _Kind("gaze", "independent", 3, _angle, 0.2),
    _Kind("vague gaze", "independent", 3, _angle, 0.6),
    _Kind("a box in a picture", "independent", 4, _overlap, 0.2),
    _Kind("places in a room", "independent", 2, _distance, 0.05),
    _Kind("vague places", "independent", 2, _distance, 0.5),
    _Kind("an age", "independent", 1, _distance, 0.4),
    _Kind("a sure age", "independent", 1, _distance, 0.02),
    _Kind("temperatures", "independent", 5, _explained, 0.2),
    _Kind("vague temperatures", "independent", 5, _explained, 0.7),
    _Kind("ranks", "independent", 3, _order, 0.3),
)


def cases(work: Path) -> Iterator[Case]:
    """Yield the cases.

    Args:
        work: Folder for the models.
    """
    for number, kind in enumerate(_KINDS):
        folder = work / kind.name
        folder.mkdir()
        yield from _cases(kind, number, folder)


def _cases(kind: _Kind, number: int, folder: Path) -> Iterator[Case]:
    rng = np.random.default_rng([47, number])
    hidden, real = (
        rng.normal(0, 1.2 * _WIDTH**-0.5, (_WIDTH, columns)) for columns in (_HIDDEN, kind.columns)
    )

    def draw(count: int) -> tuple[Array, Array]:
        x = rng.normal(0, 1, (count, _WIDTH)).astype(np.float32)
        values = np.tanh(x @ real) + 0.3 * (x @ real)
        truth = values / values.std(0)
        return x, truth + kind.noise * rng.normal(0, 1, truth.shape)

    x, truth = draw(_TRAINING)
    weights = np.linalg.lstsq(np.tanh(x @ hidden), truth, rcond=None)[0]
    path = folder / "model.onnx"
    onnx.save(computed_model(_NODES, {"a": hidden, "b": weights}), path)
    float_run = open_plain(path)
    fresh, fresh_truth = draw(_FRESH)
    best = kind.score(fresh_truth, float_run({"x": fresh})["y"].astype(np.float64))
    held_out = draw(_HELD_OUT)[0][:, None]
    part = TaskOutputs(task="values", outputs=("y",), source="declared")
    expected = [float_run({"x": row}) for row in held_out]
    reference = Reference(expected, {}, ModelDescription(parts=(part,)))
    for recipe in _RECIPES:
        quantized = folder / f"{recipe.replace(' ', '-')}.onnx"
        quantize(recipe, path, quantized, [{"x": row[None]} for row in x[:_CALIBRATION]])
        run = open_plain(quantized)
        kept = kind.score(fresh_truth, run({"x": fresh})["y"].astype(np.float64)) / best
        got = [run({"x": row}) for row in held_out]
        verdict = reference.judge(got)
        if verdict.passed and all(_BY_DISTANCE in because for because in verdict.weak):
            decide = partial(_is_doubted, reference, got)
            yield Case(f"{kind.name}, {recipe}", kind.half, kept < _KEPT, decide)


def _is_doubted(reference: Reference, got: list[Outputs]) -> bool:
    return bool(reference.judge(got).weak)
