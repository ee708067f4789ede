"""Sketches of tasks: the features of one inference."""

import numpy as np
import pytest

from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.sketch import sketch_input, thin_input
from edgepack.tasks.table import TASKS, task_of
from edgepack.tasks.text.head import TextHead
from tests.unit.tasks.drawn_objects import YOLO, as_yolo, draw_scenes

NAMES = ("cat", "dog")


def part(task: str, **more: object) -> TaskOutputs:
    return TaskOutputs(task=task, outputs=("y",), class_names=NAMES, **more)  # type: ignore[arg-type]


def outputs(values: object, dtype: type[np.generic] = np.float32) -> Outputs:
    return {"y": np.array(values, dtype)}


def test_a_decision_is_a_share_of_its_class_with_a_confidence() -> None:
    task = TASKS["classification"]
    found = task.sketch(part("classification"), outputs([[0.1, 0.9]]))
    assert found.shares == {"'dog'": 1.0}
    assert found.confidence == pytest.approx(0.9)
    logits = task.sketch(part("classification"), outputs([[9.0, 0.0, 1.0]]))
    assert logits.shares == {"'cat'": 1.0}
    assert logits.confidence is not None
    assert logits.confidence > 0.99
    rows = task.sketch(part("classification"), outputs([0, 1, 1, 7], np.int64))
    assert rows.shares == {"'cat'": 0.25, "'dog'": 0.5, "class 7": 0.25}


def test_boxes_are_counted_by_class_and_picture() -> None:
    scene = draw_scenes(1, [0.9, 0.8])[0]
    found = task_of(YOLO.part).sketch(YOLO.part, as_yolo(scene))
    assert sum(found.shares.values()) == 2
    assert found.confidence == pytest.approx(0.85, abs=0.01)
    assert found.share_words.format("'cat'") == "boxes of 'cat' in a picture"


def test_a_text_has_a_length_and_a_confidence() -> None:
    steps = np.full((1, 4, 3), -9.0, np.float32)
    for place, kind in enumerate((1, 0, 2, 0)):
        steps[0, place, kind] = 9.0
    text = TextHead(output="y", blank=0, source="declared").part
    found = task_of(text).sketch(text, {"y": steps})
    assert found.numbers == {"length of the text": 2.0}
    assert found.confidence == pytest.approx(1.0)


def test_areas_are_shares_of_a_map() -> None:
    scores = np.zeros((1, 3, 10, 10), np.float32)
    scores[0, 1] = 1.0
    scores[0, 2, :5] = 2.0
    found = TASKS["segmentation"].sketch(part("segmentation"), {"y": scores})
    assert found.shares == {"'dog'": 0.5, "class 2": 0.5}
    mask = np.zeros((1, 1, 10, 10), np.float32)
    mask[..., :2] = 0.9
    single = TASKS["segmentation"].sketch(part("segmentation"), {"y": mask})
    assert single.shares == {"'dog'": pytest.approx(0.2)}


def test_values_have_a_level_and_a_spread_and_a_short_row_its_columns() -> None:
    row = TASKS["values"].sketch(part("values"), outputs([[1.0, 2.0, 3.0]]))
    assert row.columns == {"'cat'": 1.0, "'dog'": 2.0, "column 2": 3.0}
    many = TASKS["values"].sketch(part("values"), outputs(np.arange(100.0)))
    assert many.numbers["level"] == pytest.approx(49.5)
    assert TASKS["sums"].sketch(part("sums"), outputs(np.ones(9))).columns == {"sum": 9.0}
    sound = TASKS["sound"].sketch(part("sound"), outputs(np.full(99, 0.1)))
    assert sound.columns["loudness"] == pytest.approx(-20.0)


def test_probabilities_are_features_of_their_classes() -> None:
    found = TASKS["probabilities"].sketch(part("probabilities"), outputs([[0.3, 0.7]]))
    assert found.shares == {"'cat'": pytest.approx(0.3), "'dog'": pytest.approx(0.7)}


def test_a_selection_counts_its_rows_and_names_its_first_class() -> None:
    task = TASKS["selection"]
    best = task.sketch(part("selection"), outputs([1, 0, 3], np.int64))
    assert best.shares == {"'dog'": 1.0}
    boxes = task.sketch(part("selection"), outputs(np.zeros((5, 3)), np.int64))
    assert (boxes.shares, boxes.numbers) == ({}, {"rows": 5.0})


@pytest.mark.parametrize("is_channels_last", [False, True])
def test_shifts_of_a_picture_move_the_features_that_are_made_for_them(
    is_channels_last: bool,
) -> None:
    rng = np.random.default_rng(0)
    rows = np.linspace(0.0, 1.0, 60)
    picture = np.stack([rows[:, None] * np.ones(48) * share for share in (0.9, 0.5, 0.3)])

    def numbers(changed: np.ndarray) -> dict[str, float]:
        batch = changed.transpose(1, 2, 0)[None] if is_channels_last else changed[None]
        return dict(sketch_input(thin_input(batch)).numbers)

    before = numbers(picture)
    assert before["channel 0 less channel 1"] == pytest.approx(0.2, abs=0.02)
    assert numbers(picture[::-1])["channel 0 less channel 1"] < 0
    assert before["level at top left"] < before["level at the middle"]
    moved = numbers(np.roll(picture, 20, axis=1))
    assert moved["level"] == pytest.approx(before["level"], abs=0.03)
    assert moved["level at top left"] > before["level at top left"] + 0.3
    noisy = numbers(picture + rng.normal(0.0, 0.05, picture.shape))
    assert noisy["edges"] > 2 * before["edges"]


def test_inputs_that_are_no_pictures_have_no_places() -> None:
    for shape in ((1, 80, 100), (1, 3, 900), (4, 4, 1, 30)):
        assert "edges" not in sketch_input(thin_input(np.ones(shape, np.float32))).numbers


@pytest.mark.parametrize("name", [n for n in TASKS if n not in ("detections", "text")])
@pytest.mark.parametrize("broken", [np.full((1, 4), np.nan), np.zeros((1, 0)), np.zeros(())])
def test_broken_outputs_give_finite_features_or_none(name: str, broken: np.ndarray) -> None:
    found = TASKS[name].sketch(part(name), {"y": broken.astype(np.float32)})
    numbers = [*found.shares.values(), *found.numbers.values(), *found.columns.values()]
    assert np.isfinite(numbers).all()
