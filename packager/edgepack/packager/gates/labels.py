"""Accuracy by labels: the share of evaluation samples with the highest score at their label."""

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from edgepack.bundle.accuracy_words import LABEL_ACCURACY
from edgepack.errors import BuildError
from edgepack.packager.config.inputs import WantedInputs
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.profiles.schema import AccuracyBudgets, keep_of
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.formats import open_files
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.classification.measure import ONE_MISS_FROM
from edgepack.tasks.description import OWN
from edgepack.tasks.intervals import share_low
from edgepack.text import counted

_MOST_PREDICTED = 64
"""Samples whose predicted classes are counted."""

_COLLAPSED = 0.9
"""Share of one class among predictions from which on a person should look at the input, where the
labels have it at least a tenth less often."""


class LabelledSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples and the class of each.

    Attributes:
        samples: All files, repeated samples included.
        labels: Index of the right class, an integer per sample.
        source: The labels' file, for messages.
    """

    samples: Samples
    labels: tuple[int, ...]
    source: str


def open_labelled(labels: Path, evaluation: str, wanted: WantedInputs) -> LabelledSamples:
    """Read labels and their samples.

    Args:
        labels: An integer per line, or an integer `.npy`; in the order of the samples' files.
        evaluation: The evaluation samples' path.
        wanted: Inputs of each sample.

    Raises:
        BuildError: The file cannot be read, holds other content, or not exactly 1 label per sample.
    """
    raw = open_files(Path(evaluation), wanted)
    values = _read(labels)
    if len(values) != raw.count:
        raise BuildError(
            f"{labels.name} has {len(values)} labels, and there are {raw.count} evaluation samples",
            found_in=str(labels),
            remedy="one label a sample, in the order of the files (2 before 10)",
        )
    samples = Samples(count=raw.count, read=lambda index: raw.fit(index).feeds, source=evaluation)
    return LabelledSamples(samples=samples, labels=values, source=str(labels))


def measure_accuracy(labelled: LabelledSamples, run: Run) -> float:
    """Return the share of right answers.

    Raises:
        BuildError: No single output holds a row of scores, or a label is beyond its classes.
    """
    right = 0
    for feeds, label in zip(labelled.samples, labelled.labels, strict=True):
        scores = _scores(run(feeds))
        if not 0 <= label < scores.size:
            raise BuildError(
                f"label {label} is beyond the model's {scores.size} classes",
                found_in=labelled.source,
                remedy="labels are indices into the output, from 0 on",
            )
        right += int(np.argmax(scores)) == label
    return right / len(labelled.labels)


def describe_collapse(labelled: LabelledSamples, run: Run) -> str:
    """Return the class that the float model gives nearly all samples while labels differ; "" else.

    Args:
        labelled: The samples; up to `_MOST_PREDICTED` samples run, evenly spread.
        run: The float model.

    Raises:
        BuildError: No single output holds a row of scores.
    """
    count = min(len(labelled.labels), _MOST_PREDICTED)
    chosen = [number * len(labelled.labels) // count for number in range(count)]
    predicted = Counter(int(np.argmax(_scores(run(labelled.samples.read(i))))) for i in chosen)
    labels = Counter(labelled.labels[i] for i in chosen)
    top, times = predicted.most_common(1)[0]
    if count < ONE_MISS_FROM or times < _COLLAPSED * count:
        return ""
    if times - labels[top] < (1.0 - _COLLAPSED) * count:
        return ""
    named = counted(len(labels), "class", "classes")
    return (
        f"The float model predicts class {top} for {times} of {count} evaluation samples; "
        f"{labels[top]} of them have that label, and the labels name {named}. "
        "Compare the preprocessing in edgepack.toml with the training (scale, mean, std, color, "
        "layout), and the order of the labels with that of the files."
    )


def judge_by_labels(
    labelled: LabelledSamples, run: Run, float_run: Run, budgets: AccuracyBudgets
) -> Verdict:
    """Evaluate a variant by the number of right labels.

    Args:
        labelled: The samples.
        run, float_run: The variant and the float model.
        budgets: The budget of `own` is the share of the float model's accuracy that must be kept;
            from ten samples on, an additional wrong answer is tolerated.

    Raises:
        BuildError: See `measure_accuracy`; or the float model does no better than chance.
    """
    count = len(labelled.labels)
    float_value = measure_accuracy(labelled, float_run)
    _refuse_guesses(labelled, float_run, float_value)
    value = measure_accuracy(labelled, run)
    budget = float_value * keep_of(budgets, OWN)
    if count >= ONE_MISS_FROM:
        budget = min(budget, float_value - 1.0 / count)
    return Verdict(
        metric=LABEL_ACCURACY,
        value=value,
        float_value=float_value,
        budget=budget,
        passed=value >= budget - 1e-12,
        spare=(value - budget) / max(float_value - budget, 1e-9),
        noise=0.0,
        task_kept=value / float_value,
        low=share_low(value, count),
    )


def _refuse_guesses(labelled: LabelledSamples, float_run: Run, float_value: float) -> None:
    """Reject labels that the float model only guesses: the labels belong to other samples."""
    count = len(labelled.labels)
    classes = _scores(float_run(labelled.samples.read(0))).size
    if count < ONE_MISS_FROM or float_value > 1.0 / classes:
        return
    collapse = describe_collapse(labelled, float_run)
    raise BuildError(
        f"by these labels the float model is right in {round(float_value * count)} of {count} "
        f"samples, no more than by guessing among {classes} classes",
        found_in="\n    ".join(filter(None, (labelled.source, collapse))),
        remedy="one label a sample, in the order of the files (2 before 10); and the classes' "
        "numbers as the model was trained with, from 0 on",
    )


def _read(path: Path) -> tuple[int, ...]:
    try:
        if path.suffix != ".npy":
            return tuple(map(_label, path.read_text(encoding="utf-8").split()))
        values = np.load(path, allow_pickle=False)
    except OSError as error:
        raise BuildError(
            f"cannot read the labels: {error.strerror}",
            found_in=str(path),
            remedy="a file with the class of each evaluation sample, one integer a line",
        ) from error
    except ValueError as error:
        raise _no_labels(path, str(error)) from error
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise _no_labels(path, f"{values.dtype} {list(values.shape)}, not integers in a row")
    return tuple(values.tolist())


def _label(word: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise ValueError(f"'{word}' is not an integer") from error


def _no_labels(path: Path, reason: str) -> BuildError:
    return BuildError(
        f"{path.name} holds no labels: {reason}",
        found_in=str(path),
        remedy="one integer a line, or an integer .npy: the index of each sample's class",
    )


def _scores(outputs: Outputs) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    rows = [
        value
        for value in outputs.values()
        if value.dtype.kind == "f" and value.ndim and value.size == value.shape[-1] > 1
    ]
    if len(rows) != 1:
        raise BuildError(
            f"labels need one output with a row of scores, and {len(rows)} of "
            f"{', '.join(outputs)} are one",
            found_in="--labels",
            remedy="--metric module:function measures anything else",
        )
    return rows[0].ravel()
