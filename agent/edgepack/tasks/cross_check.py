"""Compare a verdict with the plain error, and tell where the verdict says little of the task.

A task's measure can be nearly perfect while the outputs are not, if the task was guessed wrongly or
if people use more of the output than the task measures.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import FEWEST_WITHIN, Floats, Outputs, Tensor
from edgepack.tasks.contract import LOSS, Agreement
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.description import UNKNOWN, TaskOutputs

_PERFECT = 0.99
"""Share of the task from which on a measure is nearly perfect."""

_FAR = 0.5
"""Error of a sample in its own spread, in the worst tenth of the samples, that is not. Of variants
of small classifiers, readers and detectors that kept the task the worst tenth was off by .02 to
.4; of five dead outputs of ten by 1 and more."""

_EXACT = LOSS
"""Error in their own spread up to which values keep any task: of an error that grows with theirs,
such as the mean absolute one, no more is lost."""

_MOVED = 0.02
"""Nats of log loss that probabilities moved by: .087 was AUC .992 to .982."""

LOOKS_LIKE = "looks_like"
"""Setting of outputs that a person declared to be another task than the graph says: its layout."""

_HEADS = ("detections", "text", "tokens")


def find_doubt(
    part: TaskOutputs, agreement: Agreement, expected: Sequence[Outputs], got: Sequence[Outputs]
) -> str:
    """Return why an agreement is weak evidence of the task; "" if the agreement is sufficient.

    Args:
        part: The outputs, and how their task is known.
        agreement: Result of the task.
        expected, got: The float model's outputs and others, a dict per sample.
    """
    if reconstructed := part.settings.get("residuals"):
        return (
            f"output '{next(iter(reconstructed))}' reconstructs an input: if its error tells "
            "anomalies, samples without anomalies say little of them"
        )
    if part.task == UNKNOWN:
        if part.source != "unknown" or _are_exact(part, expected, got):
            return ""
        listed = ", ".join(f"'{name}'" for name in part.outputs)
        return f"nothing tells what {listed} {'mean' if len(part.outputs) > 1 else 'means'}"
    if layout := part.settings.get(LOOKS_LIKE):
        listed = ", ".join(f"'{name}'" for name in part.outputs)
        return (
            f"{listed} {'are' if len(part.outputs) > 1 else 'is'} declared {part.task!r}, and the "
            f"graph gives boxes there (layout {layout!r}): leave the declaration out, or give a "
            "--metric of your own"
        )
    if part.source == "declared" or part.task in _HEADS or agreement.value < _PERFECT:
        return ""
    for name in part.outputs:
        wanted = [outputs[name] for outputs in expected]
        given = [outputs[name] for outputs in got if name in outputs]
        if wanted[0].dtype.kind != "f" or len(given) != len(wanted):
            continue
        error = worst_tenth(wanted, given)
        if error > _FAR:
            return (
                f"{agreement.words} of output '{name}', and yet its values are off by {error:.0%} "
                "of their own spread in the worst tenth of the samples"
            )
        if part.task == "classification" and (moved := log_loss(wanted, given)) > _MOVED:
            return (
                f"{agreement.words} of output '{name}', and yet its probabilities moved: "
                f"log loss +{moved:.3f}"
            )
    return ""


def _are_exact(part: TaskOutputs, expected: Sequence[Outputs], got: Sequence[Outputs]) -> bool:
    """Return True if outputs are so near that no meaning could be lost."""
    for name in part.outputs:
        wanted = [outputs[name] for outputs in expected]
        given = [outputs[name] for outputs in got if name in outputs]
        if len(given) != len(wanted) or wanted[0].dtype.kind != "f":
            return False
        if worst_tenth(wanted, given) > _EXACT or _worst_column(wanted, given) > _EXACT:
            return False
    return True


def _worst_column(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Return the greatest error of a column in its own spread; 0 where samples are unlike."""
    shape = expected[0].shape
    if any(v.shape != shape for v in (*expected, *got)):
        return 0.0
    want, have = (
        np.stack([value.astype(np.float64).ravel() for value in values])
        for values in (expected, got)
    )
    known = ~np.isnan(want).any(axis=0)
    errors = np.sqrt(np.square(have - want)[:, known].mean(axis=0))
    return float((errors / np.maximum(want[:, known].std(axis=0), 1e-30)).max(initial=0.0))


def worst_tenth(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Return the error of samples in their own spread that nine tenths of the samples keep.

    Args:
        expected, got: The float model's values and others, an array per sample; samples of fewer
            than eight values count in the spread of all samples.
    """
    pairs = [flat_pair(*pair) for pair in zip(expected, got, strict=True)]
    pairs = [(want, have) for want, have in pairs if want.size]
    if not pairs:
        return 0.0
    overall = float(np.std(np.concatenate([want for want, _ in pairs])))
    errors = []
    for want, have in pairs:
        spread = float(np.std(want)) if want.size >= FEWEST_WITHIN else overall
        error = float(np.sqrt(np.mean((have - want) ** 2)))
        errors.append(error / max(spread, 0.01 * overall, 1e-30))
    return float(np.percentile(errors, 90))


def log_loss(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Return by how many nats the log loss grows where the float model's probabilities are true.

    Args:
        expected, got: Rows of scores or distributions, an array per sample.

    Returns:
        The mean over rows; 0 where samples cannot be compared.
    """
    lost: list[float] = []
    is_told = all(is_distribution(value) for value in expected)
    for want, have in zip(expected, got, strict=True):
        if want.shape != have.shape or not want.ndim or want.shape[-1] < 2:
            return 0.0
        first, second = (_shares(value, is_told=is_told) for value in (want, have))
        lost += (first * (np.log(first) - np.log(second))).sum(axis=-1).tolist()
    return float(np.nanmean(lost)) if lost else 0.0


def is_distribution(value: Tensor) -> bool:
    """Return whether rows (last axis) are not negative and sum to 1."""
    rows = value.astype(np.float64).reshape(-1, value.shape[-1])
    rows = rows[~np.isnan(rows).any(axis=-1)]
    return bool((rows >= -1e-6).all()) and bool(np.allclose(rows.sum(axis=-1), 1.0, atol=1e-3))


def _shares(value: Tensor, *, is_told: bool) -> Floats:
    rows = value.astype(np.float64).reshape(-1, value.shape[-1])
    if not is_told:
        rows = np.exp(rows - rows.max(axis=-1, keepdims=True))
    rows = np.maximum(rows, 1e-4)
    return np.asarray(rows / rows.sum(axis=-1, keepdims=True))
