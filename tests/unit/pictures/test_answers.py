"""Outputs become what a person expects: names, scores, and pixels of the picture that was given."""

from typing import Any

import numpy as np
import pytest

from edgepack.pictures import answers
from edgepack.pictures.frame import Frame, place_picture
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import ModelDescription, TaskOutputs
from tests.unit.pictures.drawn import described


def _model(task: str, *outputs: str, names: tuple[str, ...] = (), **settings: Any) -> Any:
    part = TaskOutputs(task=task, outputs=outputs, class_names=names, settings=settings)
    return ModelDescription(parts=(part,), inputs=(described(),))


def _frame(resize: str, width: int, height: int) -> Frame:
    short = 48 if resize == "short_side" else 0
    return place_picture(described(resize=resize, short_side=short), width, height)


def test_classes_are_sorted_and_scores_are_probabilities() -> None:
    model = _model("classification", "y", names=("cat", "dog", ""))
    logits = np.log(np.array([[0.2, 0.7, 0.1]], np.float32)) + 5.0
    labels = answers.classify(model, {"y": logits})
    assert [(label.name, label.number) for label in labels] == [
        ("dog", 1),
        ("cat", 0),
        ("class 2", 2),
    ]
    assert [label.score for label in labels] == pytest.approx([0.7, 0.2, 0.1], abs=1e-6)
    assert len(answers.classify(model, {"y": logits}, top=2)) == 2
    shares = np.array([[0.2, 0.7, 0.1]], np.float32)
    (best,) = answers.classify(model, {"y": shares}, top=1)
    for top in (0, -1, 2.5):
        with pytest.raises(ValueError, match="top is the number of classes"):
            answers.classify(model, {"y": shares}, top=top)  # type: ignore[arg-type]
    assert best.score == float(np.float32(0.7)), "probabilities stay as they are"


def test_scores_with_thresholds_of_their_own_are_no_softmax() -> None:
    model = _model("threshold", "y", threshold=0.0)
    labels = answers.classify(model, {"y": np.array([[0.0, 2.0]], np.float32)})
    assert [label.score for label in labels] == pytest.approx([0.880797, 0.5])
    as_shares = _model("threshold", "y", threshold=0.5)
    labels = answers.classify(as_shares, {"y": np.array([[0.25, 1.0]], np.float32)})
    assert [label.score for label in labels] == [1.0, 0.25]


def test_a_chosen_class_has_a_name_and_scores_are_preferred_to_it() -> None:
    model = _model("classification", "y", names=("cat", "dog"))
    (label,) = answers.classify(model, {"y": np.array([1])})
    assert (label.name, label.score) == ("dog", 1.0)
    both = model.with_parts(TaskOutputs(task="probabilities", outputs=("p",)))
    outputs = {"y": np.array([1]), "p": np.array([[0.9, 0.1]], np.float32)}
    assert answers.classify(both, outputs)[0].name == "class 0"
    assert answers.classify(both, outputs, output="y")[0].name == "dog"


def test_several_outputs_of_classes_are_asked_about() -> None:
    model = _model("classification", "age").with_parts(
        TaskOutputs(task="classification", outputs=("mood",))
    )
    row = np.array([[0.1, 0.9]], np.float32)
    with pytest.raises(ValueError, match="several outputs give classes: age, mood"):
        answers.classify(model, {"age": row, "mood": row})
    assert answers.classify(model, {"age": row, "mood": row}, output="mood")[0].number == 1
    with pytest.raises(ValueError, match="does not answer by the output 'sex'"):
        answers.classify(model, {"age": row, "mood": row}, output="sex")
    with pytest.raises(ValueError, match="at several places"):
        answers.classify(_model("classification", "y"), {"y": np.zeros((2, 3), np.float32)})


def _yolo(*boxes: tuple[float, float, float, float, float, float]) -> np.ndarray:
    """Return [1, 6, 20] of centre, size and the scores of two classes."""
    rows = np.zeros((20, 6), np.float32)
    rows[: len(boxes)] = boxes
    return np.ascontiguousarray(rows.T[None])


_HEAD: dict[str, Any] = {"layout": "yolo", "order": "cxcywh", "activation": "none"}


@pytest.mark.parametrize(
    ("resize", "size", "corners"),
    [
        # A box from (8, 6) to (24, 18) of an input of 32 x 24.
        ("stretch", (64, 96), (16.0, 24.0, 48.0, 72.0)),
        ("letterbox", (64, 16), (16.0, 0.0, 48.0, 16.0)),  # Cut off at the picture's edges.
        ("crop", (64, 24), (24.0, 6.0, 40.0, 18.0)),
        ("short_side", (96, 48), (40.0, 18.0, 56.0, 30.0)),
    ],
)
def test_boxes_are_in_pixels_of_the_picture(
    resize: str, size: tuple[int, int], corners: tuple[float, ...]
) -> None:
    model = _model("detections", "o", names=("cup", "pen"), **_HEAD)
    outputs = {"o": _yolo((16, 12, 16, 12, 0.1, 0.9), (4, 4, 4, 4, 0.2, 0.0))}
    (box,) = answers.detect(model, outputs, _frame(resize, *size))
    assert (box.name, box.number) == ("pen", 1)
    assert (box.left, box.top, box.right, box.bottom) == pytest.approx(corners)
    assert len(answers.detect(model, outputs, _frame(resize, *size), least=0.15)) == 2
    for least in ("x", -0.1, 2, float("nan")):
        with pytest.raises(ValueError, match="least is the least score of an object"):
            answers.detect(model, outputs, least=least)  # type: ignore[arg-type]
    (plain,) = answers.detect(model, outputs)
    assert (plain.left, plain.top, plain.right, plain.bottom) == (8.0, 6.0, 24.0, 18.0)


def test_boxes_in_shares_and_in_cells_become_pixels() -> None:
    shares = _model("detections", "b", "s", layout="detr", order="cxcywh", activation="sigmoid")
    (part,) = shares.parts
    settings = {**part.settings, "is_of_shares": True}
    model = ModelDescription(
        parts=(TaskOutputs(task="detections", outputs=("b", "s"), settings=settings),)
    )
    outputs: Outputs = {
        "b": np.array([[[0.5, 0.5, 0.5, 0.25]]], np.float32),
        "s": np.array([[[-9.0, 3.0]]], np.float32),
    }
    (box,) = answers.detect(model, outputs, _frame("stretch", 640, 480))
    corners = (box.left, box.top, box.right, box.bottom)
    assert corners == pytest.approx((160.0, 180.0, 480.0, 300.0))
    cells = _model("detections", "m", layout="text-map", order="xyxy", activation="none")
    probabilities = np.zeros((1, 1, 12, 16), np.float32)  # Half of the input's size.
    probabilities[0, 0, 4:8, 4:12] = 1.0
    (line,) = answers.detect(cells, {"m": probabilities}, _frame("stretch", 320, 240))
    assert (line.left, line.right) == pytest.approx((40.0, 280.0))  # 4 and 12, widened by 2.
    assert (line.top, line.bottom) == pytest.approx((40.0, 200.0))


def test_text_is_read_by_the_characters_of_the_bundle() -> None:
    model = _model(
        "text", "t", names=("", "a", "b", " "), blank=0, spaces=(3,), ignores_spaces=True
    )
    steps = np.eye(4, dtype=np.float32)[[1, 1, 0, 2, 3, 1, 0, 0]][None]
    assert answers.read(model, {"t": steps}) == "ab a"
    unnamed = _model("text", "t", blank=0)
    with pytest.raises(ValueError, match="lists no characters of output 't'"):
        answers.read(unnamed, {"t": steps})
    assert answers.answer_to(unnamed, {"t": steps}).text is None


def test_areas_have_the_size_of_the_picture() -> None:
    model = _model("segmentation", "m")
    scores = np.zeros((1, 3, 12, 16), np.float32)  # Half of the input's size.
    scores[0, 2, :, 8:] = 1.0
    assert answers.segment(model, {"m": scores}).shape == (12, 16)
    areas = answers.segment(model, {"m": scores}, _frame("stretch", 64, 48))
    assert (areas.shape, areas.dtype.name) == ((48, 64), "int32")
    assert (areas[:, :32] == 0).all()
    assert (areas[:, 32:] == 2).all()
    cut = answers.segment(model, {"m": scores}, _frame("crop", 64, 24))
    assert (cut[:, :16] == answers.UNSEEN).all()
    assert (cut[:, 32:48] == 2).all()
    assert (cut[:, 48:] == answers.UNSEEN).all()
    padded = answers.segment(model, {"m": scores}, _frame("letterbox", 64, 16))
    assert (padded == answers.segment(model, {"m": scores}, _frame("stretch", 64, 16))).all()
    single = np.zeros((1, 1, 24, 32), np.float32)
    single[0, 0, :12] = 0.9
    mask = answers.segment(model, {"m": single}, _frame("stretch", 32, 24))
    assert (mask.sum(), mask.max()) == (12 * 32, 1)


def test_an_embedding_has_no_axis_of_the_batch() -> None:
    model = _model("embedding", "v")
    assert answers.embed(model, {"v": np.ones((1, 7), np.float32)}).shape == (7,)


def test_a_question_for_another_task_says_what_the_model_does() -> None:
    model = _model("detections", "o", **_HEAD)
    outputs = {"o": _yolo((16, 12, 16, 12, 0.1, 0.9))}
    for ability in set(answers.ABILITIES) - {"detect"}:
        with pytest.raises(ValueError, match=f"`{ability}` needs a model that .* finds objects"):
            getattr(answers, ability)(model, outputs)
    other = _model("values", "speed")
    with pytest.raises(ValueError, match="this one gives values of 'speed'; `run` gives its"):
        answers.detect(other, {"speed": np.zeros(1)})
    with pytest.raises(ValueError, match="not those of the description"):
        answers.detect(model, {"other": np.zeros(1)})


@pytest.mark.parametrize("task", ["detections", "text"])
def test_settings_of_a_newer_release_are_an_error_in_words(task: str) -> None:
    model = _model(task, "o", names=("a",), layout="newer", blank="x")
    ask = answers.detect if task == "detections" else answers.read
    with pytest.raises(ValueError, match=f"the {task} of 'o' are not known"):
        ask(model, {"o": np.zeros((1, 4, 4), np.float32)})


def test_all_answers_of_a_model_come_together() -> None:
    both = _model("detections", "o", **_HEAD).with_parts(
        TaskOutputs(task="embedding", outputs=("v",))
    )
    outputs = {"o": _yolo((16, 12, 16, 12, 0.1, 0.9)), "v": np.ones((1, 4), np.float32)}
    frame = _frame("stretch", 32, 24)
    answer = answers.answer_to(both, outputs, frame)
    assert len(answer.boxes) == 1
    assert answer.vector is not None
    assert (answer.labels, answer.text, answer.areas) == ((), None, None)
    assert (answer.outputs, answer.frame) == (outputs, frame)
