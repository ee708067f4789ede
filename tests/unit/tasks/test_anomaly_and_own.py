"""Anomaly scores keep their order and their alarms; a user's metric does not run on a device."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgepack.bundle.golden import compare_outputs
from edgepack.bundle.metadata import GoldenAgreement
from edgepack.packager.tasks.recognizers import recognize
from edgepack.tasks.arrays import Floats, Outputs
from edgepack.tasks.contract import Agreement
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.table import TASKS, task_of

ANOMALY = TaskOutputs(task="anomaly", outputs=("score",), source="declared")


def scores(values: Sequence[float] | Floats) -> list[Outputs]:
    return [{"score": np.array([[value]], np.float32)} for value in values]


def drawn() -> Floats:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(0.1, 0.03, 90), rng.normal(0.8, 0.05, 10)])


def measure(part: TaskOutputs, want: Floats, have: Floats) -> Agreement:
    return task_of(part).open(part, scores(want)).measure(scores(have))


def test_equal_order_and_alarms_keep_all_of_it() -> None:
    want = drawn()
    same = measure(ANOMALY, want, want + 1e-4)
    assert same.value == pytest.approx(1.0, abs=1e-6)
    assert [one.scale.metric for one in same.measures] == ["alarm_f1", "order"]


def test_lost_alarms_and_another_order_are_lost_parts_of_the_task() -> None:
    want = drawn()
    part = TaskOutputs(task="anomaly", outputs=("score",), settings={"threshold": 0.5})
    missed = want.copy()
    missed[-5:] = 0.3
    lost = measure(part, want, missed)
    assert lost.value < 0.75
    assert "0.5" in lost.measures[0].words
    assert sum(lost.losses) == pytest.approx(5.0, abs=0.5)
    shuffled = measure(part, want, np.random.default_rng(1).permutation(want))
    assert shuffled.measures[1].value == pytest.approx(0.5, abs=0.1)


def test_a_settled_threshold_holds_for_a_single_inference() -> None:
    settled = TASKS["anomaly"].settle(ANOMALY, scores(drawn()))
    level = settled.settings["threshold"]
    assert 0.5 < level < 0.9
    one = task_of(settled).open(settled, scores([0.9]))
    assert one.measure(scores([0.89])).losses == (0.0,)
    assert one.measure(scores([0.2])).losses == (1.0,)
    above = task_of(settled).sketch(settled, scores([0.9])[0])
    assert above.shares == {"": 1.0}
    assert above.share_words.format("") == "share above the threshold"


def test_a_declared_threshold_of_labels_is_counted_label_by_label() -> None:
    part = TaskOutputs(
        task="threshold", outputs=("y",), settings={"threshold": 0.3}, class_names=("cat", "dog")
    )
    found = TASKS["threshold"].sketch(part, {"y": np.array([[0.4, 0.1]], np.float32)})
    assert found.shares == {" of 'cat'": 1.0, " of 'dog'": 0.0}
    rng = np.random.default_rng(0)
    drawn_labels = [rng.uniform(0, 1, (1, 8)) for _ in range(30)]
    want: list[Outputs] = [{"y": one} for one in drawn_labels]
    moved: list[Outputs] = [{"y": np.where(one < 0.4, 0.0, one)} for one in drawn_labels]
    assert TASKS["threshold"].open(part, want).measure(moved).value < 0.999
    usual = TaskOutputs(task="threshold", outputs=("y",))
    assert TASKS["threshold"].open(usual, want).measure(moved).value == 1.0


def test_scores_of_anomalib_are_recognized_by_their_names() -> None:
    one: Outputs = {"pred_score": np.ones(1, np.float32), "other": np.ones(1, np.float32)}
    expected = [one] * 3
    (found,) = recognize(expected, ["pred_score", "other"])
    assert (found.task, found.outputs) == ("anomaly", ("pred_score",))


def test_the_devices_verdict_says_that_the_users_metric_does_not_run_there() -> None:
    part = TaskOutputs(task="own", outputs=("score",), source="declared")
    want = drawn()
    agreement = GoldenAgreement(part=part, keep=0.8)
    seen = compare_outputs(scores(want), scores(want), {}, (agreement,))
    assert seen.right
    assert "own: " in seen.because
    assert "the user's metric does not run on a device" in seen.because
    assert not compare_outputs(scores(want), scores(-want), {}, (agreement,)).right
