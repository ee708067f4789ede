"""Boxes out of the outputs of each layout."""

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.tasks.arrays import Outputs
from edgepack.tasks.detections.boxes import Boxes
from edgepack.tasks.detections.decoding import find_boxes, settle
from edgepack.tasks.detections.layouts import LAYOUTS, DetectionHead, LayoutName
from edgepack.tasks.detections.regions import find_regions
from tests.unit.tasks.drawn_objects import SIDE, YOLO, as_yolo, draw_scenes

_BOX = np.array([40.0, 60.0, 104.0, 108.0])
"""Corners of the one object, of class 1, that each layout is to tell."""
_CENTRE = np.array([72.0, 84.0, 64.0, 48.0])
_PLACES = 200


def _logit(score: float) -> float:
    return float(np.log(score / (1.0 - score)))


def _places(channels: int, *, nothing: float = 0.0) -> np.ndarray:
    rows = np.full((_PLACES, channels), nothing, np.float32)
    rows[:, :4] = [10.0, 10.0, 18.0, 18.0]
    return rows


def _yolo() -> Outputs:
    rows = _places(7)
    rows[5, :4], rows[5, 5] = _CENTRE, 0.8
    rows[6, :4], rows[6, 5] = _CENTRE + 1.0, 0.6  # the same object once more
    return {"a": rows.T[None]}


def _yolo_objectness() -> Outputs:
    rows = _places(8)
    rows[5, :5], rows[5, 6] = (*_CENTRE, 0.9), 0.8 / 0.9
    return {"a": rows[None]}


def _yolox() -> Outputs:
    """One place of the grid of 16 pixels: column 4, row 5, behind 40 x 40 cells of 8 pixels."""
    rows = np.zeros((2100, 8), np.float32)
    place = 40 * 40 + 5 * 20 + 4
    rows[place, :2] = _CENTRE[:2] / 16 - (4, 5)
    rows[place, 2:4] = np.log(_CENTRE[2:] / 16)
    rows[place, 4], rows[place, 6] = 0.9, 0.8 / 0.9
    return {"a": rows[None]}


def _gfl(*, as_maps: bool = False) -> Outputs:
    """One place of the second level, of 16 pixels: column 4, row 5, its centre at (72, 88)."""
    bins, scores, sides = 8, [], []
    for stride in (8, 16):
        places = (SIDE // stride) ** 2
        scores.append(np.full((1, places, 2), 0.01, np.float32))
        sides.append(np.zeros((1, places, 4 * bins), np.float32))
    place = 5 * (SIDE // 16) + 4
    scores[1][0, place, 1] = 0.8
    lengths = np.array([72 - 40, 88 - 60, 104 - 72, 108 - 88]) / 16
    for side, length in enumerate(lengths):  # two neighbouring bins have the mean
        low = int(length)
        row = np.full(bins, -60.0)
        row[low], row[low + 1] = np.log((1 - length + low) or 1e-9), np.log((length - low) or 1e-9)
        sides[1][0, place, side * bins : (side + 1) * bins] = row
    arrays = [*scores, *sides]
    if as_maps:
        arrays = [
            array[0].T.reshape(1, -1, SIDE // stride, SIDE // stride)
            for array, stride in zip(arrays, (8, 16, 8, 16), strict=True)
        ]
    return dict(zip("abcd", arrays, strict=True))


def _suppressed() -> Outputs:
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, 0] = *_BOX, 0.8, 1
    return {"a": rows}


def _suppressed_with_picture() -> Outputs:
    return {"a": np.array([[0, *_BOX, 1, 0.8]], np.float32)}


def _ssd() -> Outputs:
    boxes, scores = _places(4), np.zeros((_PLACES, 3), np.float32)
    scores[:, 0] = 1.0  # the first class is the background
    boxes[5], scores[5] = _BOX, (0.15, 0.05, 0.8)
    return {"a": boxes[None], "b": scores[None]}


def _ssd_scores_first() -> Outputs:
    boxes, scores = _places(4), np.zeros((2, _PLACES), np.float32)
    boxes[5], scores[1, 5] = _BOX, 0.8
    return {"a": boxes[None], "b": scores[None]}


def _detr() -> Outputs:
    boxes, logits = np.full((1, 100, 4), 0.1, np.float32), np.full((1, 100, 3), -6.0, np.float32)
    boxes[0, 5], logits[0, 5, 1] = _CENTRE / SIDE, _logit(0.8)
    return {"a": boxes, "b": logits}


def _labelled() -> Outputs:
    return {
        "a": _BOX[None].astype(np.float32),
        "b": np.array([0.8], np.float32),
        "c": np.array([1]),
    }


def _centernet() -> Outputs:
    centres = np.full((1, 2, 80, 80), -8.0, np.float32)
    centres[0, 1, 20:23, 17:20] = _logit(0.5)
    centres[0, 1, 21, 18] = _logit(0.8)
    sizes = np.full((1, 2, 80, 80), 12.0, np.float32)
    sizes[0, 0] = 16.0
    return {"a": centres, "b": sizes, "c": np.zeros_like(sizes)}


def _text_map() -> Outputs:
    probabilities = np.zeros((1, 1, SIDE, SIDE), np.float32)
    probabilities[0, 0, 60:108, 40:104] = 0.8
    return {"a": probabilities}


@pytest.mark.parametrize(
    ("layout", "outputs", "unit"),
    [
        ("yolo", _yolo(), 1),
        ("yolo-objectness", _yolo_objectness(), 1),
        ("yolox", _yolox(), 1),
        ("gfl", _gfl(), 1),
        ("gfl", _gfl(as_maps=True), 1),
        ("suppressed", _suppressed(), 1),
        ("suppressed", _suppressed_with_picture(), 1),
        ("ssd", _ssd(), 1),
        ("ssd", _ssd_scores_first(), 1),
        ("detr", _detr(), 1 / SIDE),
        ("labelled", _labelled(), 1),
        ("centernet", _centernet(), 1 / 4),
    ],
)
def test_each_layout_tells_the_same_object(
    layout: LayoutName, outputs: Outputs, unit: float
) -> None:
    head = settle(
        DetectionHead(layout=layout, outputs=tuple(outputs), size=(SIDE, SIDE)), [outputs]
    )
    assert head is not None
    found = find_boxes(head, outputs)
    assert len(found) == 1
    np.testing.assert_allclose(found.corners[0], _BOX * unit, rtol=1e-3)
    assert found.scores[0] == pytest.approx(0.8, abs=1e-3)
    assert found.classes[0] == 1


def test_a_declared_activation_leaves_the_background_class_to_the_values() -> None:
    outputs = _ssd()
    bare = DetectionHead(layout="ssd", outputs=tuple(outputs), size=(SIDE, SIDE))
    head = settle(bare, [outputs])
    assert head is not None
    assert (head.activation, head.background) == ("none", 0)
    assert settle(replace(bare, activation="none"), [outputs]) == head


def test_every_layout_is_tried_above() -> None:
    assert len(LAYOUTS) == 10  # and the text map below


def test_a_region_of_a_map_is_a_box_that_is_wider_than_it() -> None:
    outputs = _text_map()
    head = settle(DetectionHead(layout="text-map", outputs=("a",)), [outputs])
    assert head is not None
    found = find_boxes(head, outputs)
    by = 48 * 64 * 1.5 / (2 * (48 + 64))
    np.testing.assert_allclose(found.corners, [_BOX + np.array([-by, -by, by, by])])
    np.testing.assert_allclose(found.scores, [0.8])


def test_pixels_that_touch_by_a_corner_are_one_region_whatever_way_it_winds() -> None:
    spiral = np.zeros((40, 40))
    spiral[5:35, 5] = spiral[34, 5:30] = spiral[10:35, 29] = spiral[10, 12:30] = 1.0
    spiral[[11, 12, 13], [11, 10, 9]] = 1.0  # goes on by corners
    spiral[20:24, 15:20] = 1.0  # an island
    found = find_regions(spiral)
    assert len(found) == 2
    assert sorted(found.corners[:, 2] - found.corners[:, 0])[0] < 12


def test_specks_and_faint_pixels_are_no_regions() -> None:
    faint = np.full((20, 20), 0.29)
    faint[3:5, 3:5] = 1.0
    assert len(find_regions(faint)) == 0


def test_logits_and_probabilities_give_the_same_boxes() -> None:
    scenes = draw_scenes(4, [0.9, 0.5, 0.3])
    probable = [as_yolo(scene) for scene in scenes]
    logits: list[Outputs] = []
    for outputs in probable:
        values = outputs["output0"].astype(np.float64)
        scores = np.clip(values[:, 4:], 1e-6, 1.0)
        values[:, 4:] = np.log(scores / (1.0 - scores))
        logits.append({"output0": values})
    bare = DetectionHead(layout="yolo", outputs=("output0",))
    heads = settle(bare, probable), settle(bare, logits)
    assert [head.activation for head in heads if head] == ["none", "sigmoid"]
    for head, given in ((heads[0], probable), (heads[1], logits)):
        assert head is not None
        for scene, outputs in zip(scenes, given, strict=True):
            found = find_boxes(head, outputs)
            assert sorted(found.scores) == pytest.approx(sorted(scene[:, 4]), abs=1e-5)


def test_boxes_that_are_steps_from_anchors_are_no_boxes() -> None:
    outputs = _ssd()
    outputs["a"] = np.random.default_rng(0).normal(0, 1, outputs["a"].shape)
    outputs["b"][..., 2], outputs["b"][..., 0] = 0.0, 1.0
    outputs["b"][0, :40] = (0.1, 0.0, 0.9)
    assert settle(DetectionHead(layout="ssd", outputs=("a", "b")), [outputs]) is None


def test_a_tensor_that_would_find_something_nearly_everywhere_is_no_head() -> None:
    features = np.random.default_rng(0).normal(0, 1, (1, 2100, 64)).astype(np.float32)
    head = DetectionHead(layout="yolo-objectness", outputs=("a",), size=(SIDE, SIDE))
    assert settle(head, [{"a": features}]) is None


def test_what_a_broken_candidate_gives_finds_nothing() -> None:
    broken: Outputs = {"output0": np.full((1, 7, 100), np.nan, np.float32)}
    assert len(find_boxes(YOLO, broken)) == 0


def test_pictures_of_a_batch_are_told_apart() -> None:
    one, other = (as_yolo(scene)["output0"] for scene in draw_scenes(2, [0.9]))
    found: Boxes = find_boxes(YOLO, {"output0": np.concatenate([one, one, other])})
    assert len(found) == 3
    assert len(set(found.classes.tolist())) == 3
