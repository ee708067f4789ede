"""What held-out samples refuse, or are not sure of, sends the search on, and not for ever."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph.node_precision import node_precision
from edgepack.packager.pipeline import savings_summary as saving
from edgepack.packager.pipeline import variant_validation
from edgepack.packager.pipeline.holdout_verdict import HoldoutVerdict, judge_on_holdout
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.samples.coverage import measure_coverage
from edgepack.packager.source.model import load_source
from edgepack.packager.tensors.sequence import Samples, SampleSplit
from tests.unit.packager_passes.declaring import declare
from tests.unit.packager_passes.models import make_model
from tests.unit.packager_passes.preparing import prepare
from tests.unit.packager_passes.products import prepare_products

_NODES = 8


@pytest.fixture
def let_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[int]]:
    """Judges for real, then lets the first verdicts differ; returns the number of float nodes."""

    def install(times: int, **verdict: Any) -> list[int]:
        float_nodes: list[int] = []

        def differing(*args: Any) -> HoldoutVerdict:
            judged = judge_on_holdout(*args)
            (model,) = tmp_path.rglob("variant/model.onnx")
            precision = node_precision(onnx.load(model))
            float_nodes.append(_NODES - len(precision.quantized) if precision else 0)
            if len(float_nodes) > times:
                return judged
            return replace(judged, verdict=replace(judged.verdict, **verdict))

        monkeypatch.setattr(variant_validation, "judge_on_holdout", differing)
        return float_nodes

    return install


@pytest.mark.parametrize("refusals", [1, 2, 3])
def test_after_each_refusal_a_candidate_nearer_to_the_float_model_is_judged(
    refusals: int, let_differ: Callable[..., list[int]], tmp_path: Path
) -> None:
    float_nodes = let_differ(refusals, passed=False)
    variant = prepare_products(tmp_path, count=_NODES)
    told = [note for note in variant.notes if note.startswith("The held-out samples refuse")]
    assert len(told) == refusals
    assert len(float_nodes) == refusals + 1
    assert float_nodes == sorted(set(float_nodes)), "each keeps more nodes float"
    assert not variant.degraded


@pytest.mark.parametrize(
    ("spare", "asked"),
    [
        (-0.01, "makes 94% of its error, in proportion to the miss."),
        (-5.0, "makes 70% of its error."),
    ],
    ids=["small", "large"],
)
def test_a_small_miss_asks_for_less_than_a_large_one(
    spare: float, asked: str, let_differ: Callable[..., list[int]], tmp_path: Path
) -> None:
    float_nodes = let_differ(1, passed=False, spare=spare)
    variant = prepare_products(tmp_path, count=_NODES)
    told = next(note for note in variant.notes if note.startswith("The held-out samples refuse"))
    assert told.endswith(asked)
    assert float_nodes[0] < float_nodes[1] < _NODES


def test_the_fourth_refusal_is_the_last_word(
    let_differ: Callable[..., list[int]], tmp_path: Path
) -> None:
    float_nodes = let_differ(99, passed=False)
    with pytest.raises(BuildError, match="and the budget is"):
        prepare_products(tmp_path, count=_NODES)
    assert len(float_nodes) == 4


def test_what_passes_without_certainty_goes_on_twice_and_is_then_taken(
    let_differ: Callable[..., list[int]], tmp_path: Path
) -> None:
    float_nodes = let_differ(99, forgiven=True)
    variant = prepare_products(tmp_path, count=_NODES)
    told = [note for note in variant.notes if note.startswith("The held-out samples are not sure")]
    assert (len(told), len(float_nodes)) == (2, 3)
    assert not variant.degraded


def test_certainty_is_not_bought_with_all_that_lowering_saves(
    let_differ: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(saving, "_NOTHING_SAVED", 0.0)
    float_nodes = let_differ(99, forgiven=True)
    variant = prepare_products(tmp_path, count=_NODES)
    assert len(float_nodes) == 1, "the first is kept"
    surer = next(note for note in variant.notes if note.startswith("What may be surer"))
    assert "saves nothing (" in surer
    more = [attempt for attempt in variant.attempts if attempt.float_nodes]
    assert max(attempt.float_nodes or 0 for attempt in more) > float_nodes[0], "they are told of"
    assert [attempt.float_nodes for attempt in variant.attempts if attempt.is_best] == float_nodes


def test_what_is_refused_gives_way_to_what_saves_nothing(
    let_differ: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(saving, "_NOTHING_SAVED", 0.0)
    float_nodes = let_differ(1, passed=False)
    variant = prepare_products(tmp_path, count=_NODES)
    assert len(float_nodes) == 2
    assert not variant.degraded


def test_what_holds_the_budget_barely_goes_on_and_what_loses_nothing_does_not(
    let_differ: Callable[..., list[int]], tmp_path: Path
) -> None:
    float_nodes = let_differ(1, value=0.981, asked=0.98, low=0.977)
    variant = prepare_products(tmp_path, count=_NODES)
    (told,) = (note for note in variant.notes if note.startswith("The held-out samples are not"))
    assert "not sure of minmax" in told
    assert "0.9810, the budget is" in told
    assert len(float_nodes) == 2
    assert float_nodes[0] < float_nodes[1]


def test_what_others_are_expected_to_lose_sends_the_search_on(
    let_differ: Callable[..., list[int]], tmp_path: Path
) -> None:
    agreed = {"metric": "top1_agreement", "value": 1.0, "float_value": 1.0, "low": 0.9}
    float_nodes = let_differ(1, **agreed, expected_loss=0.016, may_lose=0.01)
    variant = prepare_products(tmp_path, count=_NODES)
    (told,) = (note for note in variant.notes if note.startswith("The held-out samples are not"))
    assert "1.0000, 1.60 % of right answers expected to be lost, 1.00 % allowed" in told
    assert len(float_nodes) == 2
    assert float_nodes[0] < float_nodes[1]


@pytest.mark.parametrize(
    ("value", "low"), [(0.99, 0.979), (1.0, 0.9)], ids=["by far", "nothing is lost"]
)
def test_what_gives_no_reason_for_doubt_is_taken_though_it_is_not_proven(
    value: float, low: float, let_differ: Callable[..., list[int]], tmp_path: Path
) -> None:
    float_nodes = let_differ(
        99,
        value=value,
        asked=0.98,
        low=low,
        low_as_seen=low,
        bounds=((value, low),),
        float_value=1.0,
    )
    variant = prepare_products(tmp_path, count=_NODES)
    assert len(float_nodes) == 1
    assert any("would prove the budget of 0.9800" in note for note in variant.notes)


@pytest.mark.parametrize(
    ("later", "told"),
    [
        ({"forgiven": False, "passed": False}, "They refuse what was to be surer"),
        ({"forgiven": True, "passed": True, "spare": 0.1}, "What was to be surer keeps less"),
    ],
    ids=["refused", "worse"],
)
def test_where_the_surer_candidate_is_refused_or_worse_the_one_before_is_kept(
    later: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[int] = []

    def judge(*args: Any) -> HoldoutVerdict:
        judged = judge_on_holdout(*args)
        (model,) = tmp_path.rglob("variant/model.onnx")
        precision = node_precision(onnx.load(model))
        seen.append(_NODES - len(precision.quantized) if precision else 0)
        first = {"forgiven": True, "passed": True, "spare": 0.6}
        changes = first if seen[-1] == seen[0] else later
        return replace(judged, verdict=replace(judged.verdict, **changes))

    monkeypatch.setattr(variant_validation, "judge_on_holdout", judge)
    variant = prepare_products(tmp_path, count=_NODES)
    assert len(seen) > 2
    assert seen[0] < seen[1]
    precision = node_precision(onnx.load(variant.folder / variant.model_file))
    kept = _NODES - len(precision.quantized) if precision else 0
    assert kept == seen[0], "the first one is written again"
    assert any(note.startswith(told) for note in variant.notes)
    assert not variant.degraded


@pytest.mark.parametrize("is_limited", [False, True])
def test_likely_extremes_that_a_variant_cuts_off_make_a_weak_verdict(
    is_limited: bool, tmp_path: Path
) -> None:
    """Forecasts of series with lognormal levels: held-out samples do not reach the extremes."""
    rng = np.random.default_rng(2)
    normal = statistics.NormalDist()
    levels = np.exp([0.9 * normal.inv_cdf((place + 0.5) / 240) for place in range(240)])
    if is_limited:
        levels = np.minimum(levels, 2.0)
    rows = [
        (level * rng.uniform(0.2, 1.0, (1, 16))).astype(np.float32)
        for level in (*levels[2::3], *levels[0::3], *levels[1::3])
    ]
    mix = rng.normal(1 / 16, 0.01, (16, 12))  # the level of a series is larger than its course
    series = Samples(
        count=len(rows),
        read=lambda index: {"x": rows[index]},
        source="series",
        description=declare(y="values"),
    )
    split = SampleSplit(
        calibration=series.pick(range(120)),
        search=series.pick(range(120, 160)),
        held_out=series.pick(range(160, 240)),
    )
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        {"x": [1, 16]},
        {"y": [1, 12]},
        [numpy_helper.from_array(mix.astype(np.float32), "w")],
    )
    onnx.save(model, tmp_path / "model.onnx")
    source = load_source(tmp_path / "model.onnx")
    extremes = measure_coverage(split, source.inputs, {}).extremes
    assert (extremes is None) == is_limited
    if extremes is not None:
        reached = max(float(feeds["x"].max()) for feeds in extremes)
        assert reached > 1.1 * max(float(row.max()) for row in rows)
    profile = resolve_profile("qnn-htp", {})
    prepared = prepare(source, profile, replace(split, extremes=extremes), tmp_path / "work")
    assert prepared.accuracy.value > 0.99
    assert ("likely extremes" in prepared.accuracy.weak) == (not is_limited)
