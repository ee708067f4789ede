"""Sizes and values tell maps, pictures and sound, or a note asks for them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgepack.packager.tasks.describe import find_maps
from tests.unit.tasks.drawn_maps import SIDE, Floats, draw_areas, scores_of


def _pictures(values: Sequence[npt.NDArray[np.generic]]) -> list[Floats]:
    rng = np.random.default_rng(9)
    return [rng.normal(0, 1, (1, 3, SIDE, SIDE)).astype(np.float32) for _ in values]


def _tell(
    inputs: Sequence[npt.NDArray[np.generic]], outputs: Sequence[npt.NDArray[np.generic]]
) -> tuple[str | None, str]:
    feeds = [{"x": value} for value in inputs]
    expected = [{"y": value} for value in outputs]
    found = find_maps(["y"], feeds, expected)
    return next((part.task for part in found.parts), None), " ".join(found.notes)


def test_sizes_and_values_tell_areas_and_the_note_says_by_what_they_are_judged() -> None:
    scores = scores_of(draw_areas(6))
    for outputs in (scores, [value.argmax(1) for value in scores]):
        task, note = _tell(_pictures(scores), outputs)
        assert task == "segmentation"
        assert "Output 'y' is a map of classes, judged by the mean IoU" in note
    masks = [(1 / (1 + np.exp(-value[:, 1:2]))).astype(np.float32) for value in scores]
    assert _tell(_pictures(masks), masks)[0] == "segmentation"


def test_a_larger_picture_and_one_that_is_hardly_another_are_pictures() -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.uniform(0, 1, (1, 3, SIDE, SIDE)).astype(np.float32) for _ in range(4)]
    larger = [np.repeat(np.repeat(value, 2, 2), 2, 3) for value in pictures]
    cleaner = [0.9 * value + 0.05 for value in pictures]
    assert _tell(pictures, larger)[0] == "picture"
    assert _tell(pictures, cleaner)[0] == "picture"


def test_what_values_do_not_tell_is_asked_for_by_name() -> None:
    rng = np.random.default_rng(0)
    depths = [rng.uniform(0, 8, (1, 1, SIDE, SIDE)).astype(np.float32) for _ in range(4)]
    task, note = _tell(_pictures(depths), depths)
    assert task is None
    assert "Output 'y' looks like a map of the picture" in note
    assert (
        "[outputs.y] with task = 'segmentation' (classes or a mask), 'depth' or 'picture'" in note
    )
    words = [np.array([[3, 4]]) for _ in range(4)]
    spoken = [rng.normal(0, 0.1, (1, 8000)).astype(np.float32) for _ in words]
    task, note = _tell(words, spoken)
    assert task is None
    assert "[outputs.y] with task = 'sound'" in note
    assert _tell(spoken, spoken[::-1])[0] == "sound"


def test_nothing_is_told_of_maps_of_several_pictures_at_once() -> None:
    scores = [np.concatenate([value, value]) for value in scores_of(draw_areas(4))]
    assert _tell([np.concatenate([p, p]) for p in _pictures(scores)], scores) == (None, "")


def test_features_and_noise_are_neither_told_nor_asked_for() -> None:
    rng = np.random.default_rng(0)
    features = [rng.normal(0, 1, (1, 64, SIDE, SIDE)).astype(np.float32) for _ in range(4)]
    assert _tell(_pictures(features), features) == (None, "")
