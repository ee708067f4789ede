"""Maps, pictures and sound are measured as the field measures them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgepack.tasks.contract import Agreement, Measure
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.table import TASKS
from tests.unit.tasks.drawn_maps import SIDE, Floats, draw_areas, scores_of


def _measure(
    task: str,
    expected: Sequence[npt.NDArray[np.generic]],
    got: Sequence[npt.NDArray[np.generic]],
) -> Agreement:
    opened = TASKS[task].open(TaskOutputs(task=task, outputs=("y",)), [{"y": v} for v in expected])
    return opened.measure([{"y": v} for v in got])


def _judge(
    task: str,
    expected: Sequence[npt.NDArray[np.generic]],
    got: Sequence[npt.NDArray[np.generic]],
) -> Measure:
    (measure,) = _measure(task, expected, got).measures
    return measure


def _without_a_strip(areas: Sequence[npt.NDArray[np.int64]], kind: int) -> list[Floats]:
    """Scores that give one place in ten of a class to the background."""
    changed = []
    for area in areas:
        lost = area.copy()
        places = np.argwhere(area == kind)
        lost[tuple(places[::10].T)] = 0
        changed.append(lost)
    return scores_of(changed)


def test_a_segmenter_that_loses_a_tenth_of_one_class_is_refused_and_the_class_is_told() -> None:
    areas = draw_areas(20)
    measure = _judge("segmentation", scores_of(areas), _without_a_strip(areas, 2))
    assert (measure.metric, measure.scale.least) == ("mean_iou", 0.99)
    assert 0.95 < measure.value < 0.97
    assert measure.low is not None
    assert measure.low < measure.value
    assert measure.kept < 0.99
    (note,) = _measure("segmentation", scores_of(areas), _without_a_strip(areas, 2)).notes
    assert "Output 'y': least at class 2, 0.90" in note
    assert _judge("segmentation", scores_of(areas), scores_of(areas)).value == 1.0


def test_classes_are_the_same_whether_the_model_or_the_application_chooses_them() -> None:
    areas = draw_areas(12)
    lost = [scores.argmax(1) for scores in _without_a_strip(areas, 1)]
    chosen = _judge("segmentation", areas, lost)
    scored = _judge("segmentation", scores_of(areas), _without_a_strip(areas, 1))
    turned = [np.moveaxis(value, 1, -1) for value in scores_of(areas)]
    turned_got = [np.moveaxis(value, 1, -1) for value in _without_a_strip(areas, 1)]
    last = _judge("segmentation", turned, turned_got)
    assert chosen.value == pytest.approx(scored.value)
    assert last.value == pytest.approx(scored.value)


def test_a_class_of_a_few_places_decides_nothing() -> None:
    areas = draw_areas(10)
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

    masks = [0.02 + 0.96 * (area > 0) for area in draw_areas(10)]
    expected = [shaped(mask) for mask in masks]
    faint = [shaped(np.where(mask > 0.5, 0.55, mask)) for mask in masks]
    assert _judge("segmentation", expected, expected).kept >= 0.99
    measure = _judge("segmentation", expected, faint)  # .6 and .7 are never reached
    assert measure.value == pytest.approx(0.6)


def test_pictures_are_judged_by_their_noise_whatever_their_range() -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.uniform(0, 1, (1, 3, SIDE, SIDE)) for _ in range(10)]
    noise = [rng.normal(0, 10 ** (-40 / 20), picture.shape) for picture in pictures]
    for scale, shift in ((1.0, 0.0), (255.0, 0.0), (2.0, -1.0)):
        expected = [(scale * value + shift).astype(np.float32) for value in pictures]
        got = [
            (value + scale * n).astype(np.float32) for value, n in zip(expected, noise, strict=True)
        ]
        measure = _judge("picture", expected, got)
        assert (measure.metric, measure.scale.least, measure.scale.best) == ("psnr_db", 43.0, 100.0)
        assert measure.value == pytest.approx(40.0, abs=0.2)
        assert measure.kept < 0.99


def test_sound_is_judged_whatever_its_loudness_and_silence_does_not_count() -> None:
    rng = np.random.default_rng(0)
    voices = [rng.normal(0, 0.1, (1, 8000)) for _ in range(10)]
    noise = [rng.normal(0, 0.1 * 10 ** (-35 / 20), (1, 8000)) for _ in voices]
    got = [0.9 * (voice + n) for voice, n in zip(voices, noise, strict=True)]
    measure = _judge("sound", [*voices, np.zeros((1, 8000))], [*got, noise[0]])
    assert measure.metric == "si_sdr_db"
    assert measure.value == pytest.approx(35.0, abs=0.2)
    assert measure.kept >= 0.99
    assert _judge("sound", voices, [voice[:, ::-1] for voice in voices]).kept < 0.99


def test_depth_is_judged_by_its_mean_error() -> None:
    rng = np.random.default_rng(0)
    depths = [rng.uniform(0, 8, (1, 1, SIDE, SIDE)) for _ in range(10)]
    measure = _judge("depth", depths, [1.02 * depth for depth in depths])
    assert measure.metric == "relative_accuracy"
    assert measure.value == pytest.approx(0.98)
    assert measure.kept < 0.99


def test_what_cannot_be_compared_keeps_nothing() -> None:
    areas = draw_areas(10)
    scores = scores_of(areas)
    broken = [np.full_like(value, np.nan) for value in scores]
    smaller = [value[:, :, 1:] for value in scores]
    for got in (broken, smaller):
        assert _judge("segmentation", scores, got).value == 0.0
        assert _judge("picture", scores, got).kept < 0.99
        assert _judge("depth", scores, got).kept < 0.99


@pytest.mark.parametrize("dead", [0.0, 0.25, np.nan, np.inf])
@pytest.mark.parametrize(("every", "most"), [(1, 0.0), (10, 0.91)])
def test_dead_sounds_are_lost(dead: float, every: int, most: float) -> None:
    draws = np.random.default_rng(5)
    voices = [draws.normal(size=(1, 4000)).astype(np.float32) for _ in range(30)]
    got = [
        np.full_like(voice, dead) if n % every == 0 else voice + np.float32(1e-3) * voice[:, ::-1]
        for n, voice in enumerate(voices)
    ]
    measure = _judge("sound", voices, got)
    assert measure.kept <= most
    assert measure.value < measure.scale.least
