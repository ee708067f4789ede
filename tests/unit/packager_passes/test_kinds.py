"""The table of kinds, metrics and budgets fits what it speaks of, and what is declared leads."""

from typing import get_args

import msgspec
import numpy as np
import pytest

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.metrics.agreement import Agreement
from edgepack.packager.metrics.distance import OutputDistance
from edgepack.packager.metrics.kinds import ASKED, KINDS, METRICS, MetricName, OutputKind
from edgepack.packager.metrics.output_kinds import kinds_of_outputs
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.tensors.meanings import Meaning
from edgepack.tasks.arrays import Outputs


def test_every_kind_has_a_row_and_every_metric_a_value_and_a_budget() -> None:
    assert set(KINDS) == set(OutputKind)
    assert set(METRICS) == set(get_args(MetricName))
    of_outputs = set(OutputDistance.__struct_fields__)
    of_tasks = set.intersection(*(set(dir(each)) for each in get_args(Agreement)))
    outputs_only = {name for kind in KINDS.values() for name in kind.metrics}
    for name, metric in METRICS.items():
        measured = of_outputs if name in outputs_only | set(ASKED) else of_tasks
        assert {metric.value, metric.low} - {""} <= measured
        assert metric.budget in AccuracyGate.__struct_fields__


def test_every_metric_that_a_profile_may_ask_for_is_one_of_numbers() -> None:
    (asked,) = (f.type for f in msgspec.structs.fields(AccuracyGate) if f.name == "metric")
    assert set(ASKED) == set(get_args(asked)) - {"auto"}


def _scores(count: int) -> list[Outputs]:
    drawn = np.random.default_rng(0).normal(0, 9, (count, 1, 10)).astype(np.float32)
    return [{"y": row} for row in drawn]


@pytest.mark.parametrize(
    ("meaning", "kind", "metric"),
    [
        (Meaning.SCORES, OutputKind.DECISION, "top1_agreement"),
        (Meaning.VALUES, OutputKind.VALUES, "explained_variance"),
        (Meaning.EMBEDDING, OutputKind.EMBEDDING, "neighbourhood"),
        (Meaning.DEPTH, OutputKind.DEPTH, "relative_accuracy"),
        (Meaning.IMAGE, OutputKind.IMAGE, "psnr_db"),
        (Meaning.AUDIO, OutputKind.AUDIO, "si_sdr_db"),
    ],
)
def test_what_is_declared_leads_whatever_the_values_propose(
    meaning: Meaning, kind: OutputKind, metric: str
) -> None:
    reference = Reference(_scores(20), AccuracyGate(), {"y": meaning})
    assert reference.kinds == {"y": kind}
    assert reference.judge(_scores(20)).metric == metric


@pytest.mark.parametrize("asked", ["explained_variance", "neighbourhood", "cosine", "sqnr_db"])
def test_another_metric_of_a_profile_is_one_of_numbers_and_of_no_decisions(asked: str) -> None:
    gate = msgspec.convert({"metric": asked}, AccuracyGate)
    decisions = {"y": Meaning.SCORES}
    assert Reference(_scores(20), gate, {}).kinds == {"y": OutputKind.NUMBERS}
    assert Reference(_scores(20), gate, decisions).judge(_scores(20)).metric == "top1_agreement"
    embedding = Reference(_scores(20), gate, {"y": Meaning.EMBEDDING})
    assert embedding.judge(_scores(20)).metric == asked


def test_several_whole_numbers_are_rows_and_one_is_a_decision() -> None:
    sample: Outputs = {"label": np.array([3]), "points": np.zeros((1, 4), np.int64)}
    kinds = kinds_of_outputs([sample], AccuracyGate())
    assert kinds == {"label": OutputKind.EXACT, "points": OutputKind.INTEGERS}
    assert (KINDS[kinds["label"]].metrics, KINDS[kinds["points"]].metrics) == (
        ("top1_agreement",),
        ("sequence_agreement",),
    )
