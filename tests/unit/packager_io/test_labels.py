"""Accuracy by labels: the file, its order, and the verdict."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import WantedInputs
from edgepack.packager.gates.labels import (
    LabelledSamples,
    describe_collapse,
    judge_by_labels,
    measure_accuracy,
    open_labelled,
)
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tensors.sequence import Feeds
from edgepack.packager.tensors.spec import TensorSpec

_INPUTS = (TensorSpec(name="x", dtype="float32", shape=(1, 3)),)


def _echo(feeds: Feeds) -> Feeds:
    return {"scores": feeds["x"]}


def _wrong_at(*numbers: int) -> Run:
    count = -1

    def run(feeds: Feeds) -> Feeds:
        nonlocal count
        count += 1
        scores = np.asarray(feeds["x"])
        return {"scores": np.roll(scores, 1, axis=-1) if count in numbers else scores}

    return run


def _write(folder: Path, classes: list[int], labels: str | None = None) -> LabelledSamples:
    for number, label in enumerate(classes):
        np.save(folder / f"{number}.npy", np.eye(3, dtype=np.float32)[label])
    path = folder.parent / "labels.txt"
    path.write_text("\n".join(map(str, classes)) if labels is None else labels)
    return open_labelled(path, str(folder), WantedInputs(specs=_INPUTS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "evaluation"
    made.mkdir()
    return made


def test_labels_follow_the_files_in_natural_order_and_equal_samples_count(folder: Path) -> None:
    labelled = _write(folder, [0, 1, 2] * 4)
    assert measure_accuracy(labelled, _echo) == 1.0
    assert measure_accuracy(labelled, _wrong_at(3, 11)) == pytest.approx(10 / 12)


def test_an_array_of_labels_is_as_good(folder: Path, tmp_path: Path) -> None:
    _write(folder, [0, 1])
    np.save(tmp_path / "labels.npy", np.array([0, 1]))
    wanted = WantedInputs(specs=_INPUTS)
    assert open_labelled(tmp_path / "labels.npy", str(folder), wanted).labels == (0, 1)


@pytest.mark.parametrize(("wrong", "passes"), [((), True), ((4,), True), ((4, 5), False)])
def test_one_answer_of_few_may_differ_and_no_more(
    folder: Path, wrong: tuple[int, ...], passes: bool
) -> None:
    verdict = judge_by_labels(_write(folder, [0, 1] * 10), _wrong_at(*wrong), _echo, {})
    assert (verdict.metric, verdict.float_value) == ("label_accuracy", 1.0)
    assert verdict.passed is passes
    assert verdict.budget == pytest.approx(0.95)
    assert verdict.low is not None
    assert verdict.low < verdict.value


def test_labels_by_which_the_float_model_only_guesses_are_refused(folder: Path) -> None:
    labelled = _write(folder, [0, 1] * 10)
    turned = replace(labelled, labels=tuple(1 - label for label in labelled.labels))
    with pytest.raises(BuildError, match="right in 0 of 20 samples, no more than by guessing"):
        judge_by_labels(turned, _echo, _echo, {})


def _constant(feeds: Feeds) -> Feeds:
    return {"scores": np.asarray(feeds["x"], np.float32) * 1e-3 + np.array([0, 0, 1], np.float32)}


def test_one_predicted_class_for_differing_labels_is_told(folder: Path) -> None:
    labelled = _write(folder, [0, 1, 2, 2] * 5)
    told = describe_collapse(labelled, _constant)
    assert "class 2 for 20 of 20" in told
    assert "10 of them have that label" in told
    assert "3 classes" in told
    assert "mean, std" in told
    assert describe_collapse(labelled, _echo) == ""
    turned = replace(labelled, labels=tuple((label + 1) % 2 for label in labelled.labels))
    with pytest.raises(BuildError) as caught:
        judge_by_labels(turned, _constant, _constant, {})
    assert "class 2 for 20 of 20" in str(caught.value.found_in)


def test_a_frequent_label_that_is_predicted_so_is_no_collapse(folder: Path) -> None:
    labelled = _write(folder, [2] * 19 + [0])
    assert describe_collapse(labelled, _constant) == ""


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ("0\n1\n2", "has 3 labels, and there are 2 evaluation samples"),
        ("cat\ndog", "holds no labels: 'cat' is not an integer"),
    ],
)
def test_a_wrong_file_is_refused(folder: Path, labels: str, problem: str) -> None:
    with pytest.raises(BuildError, match=problem):
        _write(folder, [0, 1], labels)


def test_a_label_beyond_the_classes_is_refused(folder: Path) -> None:
    labelled = _write(folder, [0, 1], "0\n7")
    with pytest.raises(BuildError, match="label 7 is beyond the model's 3 classes"):
        measure_accuracy(labelled, _echo)


def test_a_model_without_one_row_of_scores_needs_a_metric(folder: Path) -> None:
    labelled = _write(folder, [0, 1])
    with pytest.raises(BuildError, match="and 0 of scores are one") as refused:
        measure_accuracy(labelled, lambda feeds: {"scores": np.zeros((2, 3), dtype=np.float32)})
    assert refused.value.remedy == "--metric module:function measures anything else"
