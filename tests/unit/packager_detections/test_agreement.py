"""F1 of a variant's boxes against the float model's: rejected and accepted variants."""

import numpy as np
import pytest

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.checks import check_accuracy
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.contract import Agreement
from edgepack.tasks.description import ModelDescription, TaskOutputs
from edgepack.tasks.details import BOX_BIAS, BOX_PLACES
from tests.unit.tasks.drawn_objects import (
    YOLO,
    Floats,
    as_yolo,
    draw_scenes,
    with_scores,
)

_SCORES = [0.95, 0.95, 0.95, 0.9, 0.9, 0.9, 0.85, 0.85, 0.8, 0.8, 0.8, 0.7, 0.6, 0.45, 0.3]
_SCENES = draw_scenes(40, _SCORES)


def _judge(
    got: list[Floats], expected: list[Floats] = _SCENES, part: TaskOutputs = YOLO.part
) -> Verdict:
    outputs = [as_yolo(scene) for scene in expected]
    reference = Reference(outputs, {}, ModelDescription(parts=(part,)))
    return reference.judge([as_yolo(scene) for scene in got])


def _agreement(verdict: Verdict) -> Agreement:
    (agreement,) = verdict.agreements
    return agreement


def _bias(verdict: Verdict, bound: str = "") -> float:
    return _agreement(verdict).details[BOX_BIAS + bound]


def _without_faint(scenes: list[Floats], share: float = 1.0) -> list[Floats]:
    """Remove objects with scores below .4: their scores fall next to nothing."""
    rng = np.random.default_rng(1)
    return [
        with_scores(scene, np.where((scene[:, 4] < 0.4) & (rng.random(len(scene)) < share), -1, 0))
        for scene in scenes
    ]


def test_the_float_model_keeps_all_of_its_own_boxes() -> None:
    verdict = _judge(_SCENES)
    assert (verdict.metric, verdict.value, verdict.budget) == ("detection_f1", 1.0, 0.99)
    assert _agreement(verdict).notes[0].endswith("of 600 boxes in the held-out samples.")
    assert _bias(verdict) == 0.0


def test_that_no_box_is_lost_is_not_sure_of_others_unless_the_model_is_the_same() -> None:
    kept = _judge([with_scores(scene, np.full(len(scene), 1e-5)) for scene in _SCENES])
    assert kept.value == 1.0
    assert kept.low is not None
    assert 0.98 < kept.low < 0.995, "none of 600 lost boxes may be one of a hundred"
    assert _judge(_SCENES).low == 1.0


def test_boxes_beside_the_float_models_make_a_weak_verdict() -> None:
    def moved(share: float) -> list[Floats]:
        scenes = [scene.copy() for scene in _SCENES]
        for scene in scenes:
            scene[:, 0] += share * scene[:, 2]
        return scenes

    far = _judge(moved(0.08))
    assert (far.value, far.passed) == (1.0, True), "an overlap of .85 is above .75"
    assert _agreement(far).details[BOX_PLACES] == pytest.approx(0.8)
    (doubt,) = far.weak
    assert "80.0% overlap enough" in doubt
    assert "--metric" in doubt
    assert not _judge(moved(0.02)).weak


def test_a_model_that_loses_only_its_faint_objects_is_refused_with_the_numbers() -> None:
    verdict = _judge(_without_faint(_SCENES))
    assert not verdict.passed
    assert _bias(verdict) == pytest.approx(-1 / 15)
    refusal = check_accuracy(load_profile("cpu"), verdict, 40, None)
    assert refusal is not None
    assert "keeps F1 0.9" in refusal.problem
    assert "of the float model's boxes (6.7 % fewer boxes at threshold .25" in refusal.problem


def test_the_variance_alone_lets_the_same_model_pass() -> None:
    values = TaskOutputs(task="values", outputs=YOLO.outputs)
    by_values = _judge(_without_faint(_SCENES), part=values)
    assert by_values.passed


def test_a_bias_that_is_sure_at_one_threshold_is_refused_though_all_others_are_well() -> None:
    scenes = draw_scenes(200, _SCORES)
    verdict = _judge(_without_faint(scenes, share=0.5), scenes)
    assert _bias(verdict, "_high") < -0.02
    assert verdict.value == pytest.approx(1 + _bias(verdict, "_high") / 2, abs=1e-3)
    assert not verdict.passed


def test_scores_that_all_fall_a_little_are_refused_and_those_that_fall_and_rise_are_not() -> None:
    """Bias loses objects everywhere; noise of the same size exchanges a few."""
    spread = draw_scenes(200, list(np.linspace(0.2, 0.95, 16)))
    rng = np.random.default_rng(2)
    by_noise = _judge([with_scores(s, rng.normal(0, 0.03, len(s))) for s in spread], spread)
    by_bias = _judge([with_scores(s, -0.03) for s in spread], spread)
    assert by_noise.value > 0.99
    assert by_bias.value < 0.985
    assert _bias(by_noise, "_low") < 0.0 < _bias(by_noise, "_high")
    assert _bias(by_bias, "_high") < 0.0


def test_a_score_that_falls_far_is_a_loss_whatever_rises_elsewhere() -> None:
    changed = [with_scores(scene, np.array([-0.8, *[0] * 13, 0.6])) for scene in _SCENES]
    assert _judge(changed).value < 0.95


def test_boxes_that_lie_elsewhere_or_of_another_class_are_not_the_same() -> None:
    moved = [scene + np.array([12, 0, 0, 0, 0, 0]) for scene in _SCENES]
    renamed = [np.column_stack([scene[:, :5], 2 - scene[:, 5]]) for scene in _SCENES]
    assert _judge(moved).value < 0.5
    assert _judge(renamed).value < 0.7
    assert _judge([scene + np.array([1, 0, 0, 0, 0, 0]) for scene in _SCENES]).passed


def test_boxes_that_the_float_model_does_not_find_count_too() -> None:
    rng = np.random.default_rng(3)
    more = [
        np.vstack([scene, [20.0 + 280 * rng.random(), 310, 16, 16, 0.6, 1]]) for scene in _SCENES
    ]
    verdict = _judge(more)
    assert not verdict.passed
    assert _bias(verdict) == pytest.approx(1 / 15)


def test_samples_without_objects_say_nothing() -> None:
    empty = draw_scenes(40, [])
    with_empty = _judge([*_without_faint(_SCENES, 0.2), *empty], [*_SCENES, *empty])
    assert with_empty.value == _judge(_without_faint(_SCENES, 0.2)).value


def test_where_the_float_model_finds_nothing_at_all_values_are_judged() -> None:
    faint = draw_scenes(10, [0.1])
    verdict = _judge(faint, faint)
    assert _agreement(verdict).task == "unknown"
    assert verdict.metric.startswith("explained_variance")


def test_of_few_boxes_one_may_be_missing() -> None:
    few = draw_scenes(6, [0.9, 0.8])
    lost = [few[0][1:], *few[1:]]
    verdict = _judge(lost, few)
    assert verdict.passed
    assert verdict.forgiven
    assert not _judge([few[0][1:], few[1][1:], *few[2:]], few).passed


def test_a_candidate_that_loses_much_is_given_up_after_some_samples() -> None:
    description = ModelDescription(parts=(YOLO.part,))
    reference = Reference([as_yolo(s) for s in _SCENES], {}, description)
    some = reference.of(range(0, 40, 4))
    lost = [as_yolo(scene) for scene in _without_faint(_SCENES)[::4]]
    assert some.judge(lost).task == "detections"
    assert not some.judge(lost).passed


def test_the_report_says_it_in_words() -> None:
    verdict = _judge(_without_faint(_SCENES, share=0.1))
    samples = Samples(count=40, read=lambda _: {}, source="drawn")
    words = describe_verdict(verdict, 40, samples, ())[0]
    assert words.startswith("It keeps F1 0.99")
    assert "of the float model's boxes, " in words
    assert " % fewer boxes at threshold .25 (95 %: " in words
    assert words.endswith("of 600 boxes in the held-out samples.")
