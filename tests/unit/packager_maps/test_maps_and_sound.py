"""Maps, pictures and sound are judged by what the field measures of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.tasks.describe import find_maps
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.description import ModelDescription, TaskOutputs

Floats = npt.NDArray[np.float32]

_SIDE = 48


def _areas(count: int, classes: int = 3) -> list[npt.NDArray[np.int64]]:
    """Maps [1,48,48] with a background and a rectangle of each other class."""
    maps = []
    for number in range(count):
        rng = np.random.default_rng(number)
        area = np.zeros((1, _SIDE, _SIDE), np.int64)
        for kind in range(1, classes):
            top, left = rng.integers(0, _SIDE - 20, 2)
            area[0, top : top + 20, left : left + 20] = kind
        maps.append(area)
    return maps


def _scores(areas: Sequence[npt.NDArray[np.int64]], classes: int = 3) -> list[Floats]:
    """Logits [1, classes, 48, 48]."""
    rows = [np.moveaxis(np.eye(classes, dtype=np.float32)[area], -1, 1) for area in areas]
    return [row * 12 - 6 for row in rows]


def _pictures(values: Sequence[npt.NDArray[np.generic]]) -> list[Floats]:
    rng = np.random.default_rng(9)
    return [rng.normal(0, 1, (1, 3, _SIDE, _SIDE)).astype(np.float32) for _ in values]


def _judge(
    task: str,
    expected: Sequence[npt.NDArray[np.generic]],
    got: Sequence[npt.NDArray[np.generic]],
) -> Verdict:
    described = ModelDescription(parts=(TaskOutputs(task=task, outputs=("y",)),))
    reference = Reference([{"y": v} for v in expected], {}, described)
    return reference.judge([{"y": v} for v in got])


def _without_a_strip(areas: Sequence[npt.NDArray[np.int64]], kind: int) -> list[Floats]:
    """Scores that give one place in ten of a class to the background."""
    changed = []
    for area in areas:
        lost = area.copy()
        places = np.argwhere(area == kind)
        lost[tuple(places[::10].T)] = 0
        changed.append(lost)
    return _scores(changed)


def test_a_segmenter_that_loses_a_tenth_of_one_class_is_refused_and_the_class_is_told() -> None:
    areas = _areas(20)
    verdict = _judge("segmentation", _scores(areas), _without_a_strip(areas, 2))
    assert (verdict.metric, verdict.budget) == ("mean_iou", 0.99)
    assert 0.95 < verdict.value < 0.97
    assert verdict.low is not None
    assert verdict.low < verdict.value
    assert not verdict.passed
    samples = Samples(count=20, read=lambda index: {}, source="")
    notes = " ".join(describe_verdict(verdict, 20, samples, ()))
    assert "Output 'y': least at class 2, 0.90" in notes
    assert _judge("segmentation", _scores(areas), _scores(areas)).value == 1.0


def test_classes_are_the_same_whether_the_model_or_the_application_chooses_them() -> None:
    areas = _areas(12)
    lost = [scores.argmax(1) for scores in _without_a_strip(areas, 1)]
    chosen = _judge("segmentation", areas, lost)
    scored = _judge("segmentation", _scores(areas), _without_a_strip(areas, 1))
    turned = [np.moveaxis(value, 1, -1) for value in _scores(areas)]
    turned_got = [np.moveaxis(value, 1, -1) for value in _without_a_strip(areas, 1)]
    last = _judge("segmentation", turned, turned_got)
    assert chosen.value == pytest.approx(scored.value)
    assert last.value == pytest.approx(scored.value)


def test_a_class_of_a_few_places_decides_nothing() -> None:
    areas = _areas(10)
    speck = [area.copy() for area in areas]
    speck[0][0, 0, :3] = 9
    value = _judge("segmentation", speck, areas).value
    assert value > 0.999


@pytest.mark.parametrize("form", ["probability", "logit", "byte"])
def test_a_mask_is_judged_at_several_thresholds(form: str) -> None:
    def shaped(share: npt.NDArray[Any]) -> Floats:
        given = {
            "probability": share,
            "logit": np.log(share / (1 - share)),
            "byte": share * 255,
        }[form]
        return np.asarray(given[:, None], np.float32)

    masks = [0.02 + 0.96 * (area > 0) for area in _areas(10)]
    expected = [shaped(mask) for mask in masks]
    faint = [shaped(np.where(mask > 0.5, 0.55, mask)) for mask in masks]
    assert _judge("segmentation", expected, expected).passed
    verdict = _judge("segmentation", expected, faint)  # .6 and .7 are never reached
    assert verdict.value == pytest.approx(0.6)


def test_pictures_are_judged_by_their_noise_whatever_their_range() -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.uniform(0, 1, (1, 3, _SIDE, _SIDE)) for _ in range(10)]
    noise = [rng.normal(0, 10 ** (-40 / 20), picture.shape) for picture in pictures]
    for scale, shift in ((1.0, 0.0), (255.0, 0.0), (2.0, -1.0)):
        expected = [(scale * value + shift).astype(np.float32) for value in pictures]
        got = [
            (value + scale * n).astype(np.float32) for value, n in zip(expected, noise, strict=True)
        ]
        verdict = _judge("picture", expected, got)
        assert (verdict.metric, verdict.budget, verdict.float_value) == ("psnr_db", 43.0, 100.0)
        assert verdict.value == pytest.approx(40.0, abs=0.2)
        assert not verdict.passed


def test_sound_is_judged_whatever_its_loudness_and_silence_does_not_count() -> None:
    rng = np.random.default_rng(0)
    voices = [rng.normal(0, 0.1, (1, 8000)) for _ in range(10)]
    noise = [rng.normal(0, 0.1 * 10 ** (-35 / 20), (1, 8000)) for _ in voices]
    got = [0.9 * (voice + n) for voice, n in zip(voices, noise, strict=True)]
    verdict = _judge("sound", [*voices, np.zeros((1, 8000))], [*got, noise[0]])
    assert verdict.metric == "si_sdr_db"
    assert verdict.value == pytest.approx(35.0, abs=0.2)
    assert verdict.passed
    assert not _judge("sound", voices, [voice[:, ::-1] for voice in voices]).passed


def test_depth_is_judged_by_its_mean_error() -> None:
    rng = np.random.default_rng(0)
    depths = [rng.uniform(0, 8, (1, 1, _SIDE, _SIDE)) for _ in range(10)]
    verdict = _judge("depth", depths, [1.02 * depth for depth in depths])
    assert verdict.metric == "relative_accuracy"
    assert verdict.value == pytest.approx(0.98)
    assert not verdict.passed


def test_what_cannot_be_compared_keeps_nothing() -> None:
    areas = _areas(10)
    scores = _scores(areas)
    broken = [np.full_like(value, np.nan) for value in scores]
    smaller = [value[:, :, 1:] for value in scores]
    for got in (broken, smaller):
        assert _judge("segmentation", scores, got).value == 0.0
        assert not _judge("picture", scores, got).passed
        assert not _judge("depth", scores, got).passed


def _tell(
    inputs: Sequence[npt.NDArray[np.generic]], outputs: Sequence[npt.NDArray[np.generic]]
) -> tuple[str | None, str]:
    feeds = [{"x": value} for value in inputs]
    expected = [{"y": value} for value in outputs]
    found = find_maps(["y"], feeds, expected)
    return next((part.task for part in found.parts), None), " ".join(found.notes)


def test_sizes_and_values_tell_areas_and_the_note_says_by_what_they_are_judged() -> None:
    scores = _scores(_areas(6))
    for outputs in (scores, [value.argmax(1) for value in scores]):
        task, note = _tell(_pictures(scores), outputs)
        assert task == "segmentation"
        assert "Output 'y' is a map of classes, judged by the mean IoU" in note
    masks = [(1 / (1 + np.exp(-value[:, 1:2]))).astype(np.float32) for value in scores]
    assert _tell(_pictures(masks), masks)[0] == "segmentation"


def test_a_larger_picture_and_one_that_is_hardly_another_are_pictures() -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.uniform(0, 1, (1, 3, _SIDE, _SIDE)).astype(np.float32) for _ in range(4)]
    larger = [np.repeat(np.repeat(value, 2, 2), 2, 3) for value in pictures]
    cleaner = [0.9 * value + 0.05 for value in pictures]
    assert _tell(pictures, larger)[0] == "picture"
    assert _tell(pictures, cleaner)[0] == "picture"


def test_what_values_do_not_tell_is_asked_for_by_name() -> None:
    rng = np.random.default_rng(0)
    depths = [rng.uniform(0, 8, (1, 1, _SIDE, _SIDE)).astype(np.float32) for _ in range(4)]
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
    scores = [np.concatenate([value, value]) for value in _scores(_areas(4))]
    assert _tell([np.concatenate([p, p]) for p in _pictures(scores)], scores) == (None, "")


def test_features_and_noise_are_neither_told_nor_asked_for() -> None:
    rng = np.random.default_rng(0)
    features = [rng.normal(0, 1, (1, 64, _SIDE, _SIDE)).astype(np.float32) for _ in range(4)]
    assert _tell(_pictures(features), features) == (None, "")
