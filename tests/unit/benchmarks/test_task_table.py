"""The table of tasks: marks, goals, and reports that call a verdict weak."""

import json
from typing import Any

import msgspec
import pytest

from benchmarks.task_kinds.cells import Cell, find_weakness
from benchmarks.task_kinds.table import describe, missed, page, summary

_GOOD = Cell(
    kind="depth",
    half="developed",
    what="the distance of each place",
    task_metric="1 - error",
    profile="cpu",
    is_declared=False,
    version="source 1",
    outcome="quantized",
    metric="explained_variance",
    value=0.999,
    reported=0.998,
    float_metric=0.9,
    variant_metric=0.9,
    build_s=2.0,
)


def _like(**changes: Any) -> Cell:
    return msgspec.structs.replace(_GOOD, **changes)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (_GOOD, ".998→1.000"),
        (_like(variant_metric=0.81), ".998→.900!?"),
        (_like(variant_metric=0.81, weak=True), ".998→.900? w"),
        (_like(variant_metric=0.95), ".998→1.056"),
        (_like(outcome="rejected"), "R→1.000"),
        (_like(outcome="float"), "float"),
        (_like(outcome="failed", float_metric=None), "failed"),
        (_like(outcome="over the time limit", float_metric=None), "time"),
    ],
)
def test_cell_shows_reported_and_true_share_with_marks(cell: Cell, text: str) -> None:
    assert describe(cell) == text


def test_summary_counts_silent_losses_predictions_and_rejections() -> None:
    cells = [
        _GOOD,
        _like(kind="lost", variant_metric=0.81),
        _like(kind="weak", variant_metric=0.81, weak=True),
        _like(kind="refused", outcome="rejected"),
    ]
    _, developed, both = summary(cells)
    wanted = ["1", "1 of 3 (33 %)", "1 of 2 (50 %)", "1 of 2 (50 %)"]
    assert developed[-4:] == both[-4:] == wanted
    assert [line.split(",")[0] for line in missed(cells)] == ["lost", "weak", "refused"]
    assert "| depth | developed | the distance of each place | 1 - error |" in page(cells)


def test_page_shows_an_earlier_release_beside_this_one() -> None:
    text = page([_GOOD], [_like(variant_metric=0.81)])
    assert ".998→1.000 (.998→.900!?)" in text
    assert "| developed | no | before | 1 | 1 |" in text
    assert "| developed | no | after | 1 | 1 |" in text


@pytest.mark.parametrize(
    ("report", "is_weak", "because"),
    [
        ({"accuracy": {"value": 1.0}}, None, ""),
        ({"accuracy": {"weak": ""}}, False, ""),
        ({"accuracy": {"weak": "kind was guessed"}}, True, "kind was guessed"),
        ({"accuracy": {"details": {"weak": 1.0}}}, True, ""),
        ({"accuracy": {"is_weak": True, "weak_because": "no proof"}}, True, "no proof"),
        ({"attempts": [{"accuracy": {"weak": True}}], "accuracy": {"weak": False}}, False, ""),
    ],
)
def test_weakness_is_read_from_reports_of_several_forms(
    report: dict[str, Any], is_weak: bool | None, because: str
) -> None:
    assert find_weakness(json.loads(json.dumps(report)), {}) == (is_weak, because)
