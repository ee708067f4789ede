"""Check that every task measures, with a scale on which its budget stands for 1 % of the task."""

import numpy as np
import pytest

from edgepack.tasks.arrays import Outputs
from edgepack.tasks.classification.measure import ROWS, TOP1
from edgepack.tasks.contract import Scale
from edgepack.tasks.depth.measure import RELATIVE
from edgepack.tasks.description import ModelDescription, TaskOutputs
from edgepack.tasks.detections.measure import F1
from edgepack.tasks.embedding.measure import NEIGHBOURHOOD
from edgepack.tasks.picture.measure import PSNR
from edgepack.tasks.segmentation.measure import IOU
from edgepack.tasks.selection.measure import OVERLAP
from edgepack.tasks.sound.measure import SI_SDR
from edgepack.tasks.table import TASKS, items_of, task_of
from edgepack.tasks.text.measure import STRINGS
from edgepack.tasks.tokens.measure import TOKENS_KEPT
from edgepack.tasks.transcript.measure import SCALES
from edgepack.tasks.values.measure import EXPLAINED

_SCALES = (
    TOP1,
    ROWS,
    RELATIVE,
    F1,
    NEIGHBOURHOOD,
    PSNR,
    IOU,
    OVERLAP,
    SI_SDR,
    STRINGS,
    TOKENS_KEPT,
    EXPLAINED,
    *SCALES.values(),
)


@pytest.mark.parametrize("scale", _SCALES, ids=lambda scale: scale.metric)
def test_each_default_budget_stands_for_one_percent_of_the_task(scale: Scale) -> None:
    assert scale.kept(scale.least) == pytest.approx(0.99)
    assert scale.kept(scale.best) == pytest.approx(1.0, abs=1e-6)
    assert scale.kept(scale.least) < scale.kept((scale.least + scale.best) / 2) < 1.0 + 1e-9
    assert scale.kept(-1e9) == 0.0


@pytest.mark.parametrize("keep", [0.5, 0.975, 0.99, 0.999])
@pytest.mark.parametrize("scale", _SCALES, ids=lambda scale: scale.metric)
def test_the_least_value_for_a_share_keeps_that_share(scale: Scale, keep: float) -> None:
    assert scale.kept(scale.least_for(keep)) == pytest.approx(keep)


@pytest.mark.parametrize("scale", _SCALES, ids=lambda scale: scale.metric)
def test_everything_and_nothing_may_be_kept(scale: Scale) -> None:
    assert scale.least_for(1.0) == scale.best
    assert scale.kept(scale.least_for(0.0)) == pytest.approx(0.0, abs=1e-9)


def test_a_task_is_found_by_its_name_and_an_unknown_one_counts_as_unknown() -> None:
    assert all(task.name == name for name, task in TASKS.items())
    assert task_of(TaskOutputs(task="of a later release", outputs=("y",))) is TASKS["unknown"]


def test_a_models_tasks_name_their_answers() -> None:
    parts = [
        TaskOutputs(task=task, outputs=(task,))
        for task in ("detections", "text", "text", "ignored")
    ]
    assert items_of(ModelDescription(parts=tuple(parts))) == "boxes and texts"
    assert items_of(ModelDescription()) == "answers"
    assert all(task.items for task in TASKS.values())


def _scores(count: int) -> list[Outputs]:
    drawn = np.random.default_rng(0).normal(0, 9, (count, 1, 10)).astype(np.float32)
    return [{"y": row} for row in drawn]


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("classification", "top1_agreement"),
        ("probabilities", "explained_variance"),
        ("values", "explained_variance"),
        ("embedding", "neighbourhood"),
        ("depth", "relative_accuracy"),
        ("picture", "psnr_db"),
        ("sound", "si_sdr_db"),
    ],
)
def test_a_description_leads_whatever_the_values_are(task: str, metric: str) -> None:
    part = TaskOutputs(task=task, outputs=("y",), source="declared")
    agreement = TASKS[task].open(part, _scores(20)).measure(_scores(20))
    assert agreement.measures[0].scale.metric == metric
    assert agreement.value == pytest.approx(1.0)
    assert len(agreement.losses) == 20


def test_a_task_of_a_later_release_is_measured_as_unknown_whatever_its_settings() -> None:
    part = TaskOutputs(
        task="later", outputs=("y",), source="declared", settings={"rank": 3, "winners": "all"}
    )
    agreement = task_of(part).open(part, _scores(20)).measure(_scores(20))
    assert agreement.task == "unknown"
    assert agreement.value == pytest.approx(1.0)
