"""Combinations of settings as one search: which is taken, what is told, what is remembered."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.config.build_file import read_config
from edgepack.packager.gates.checks import Advice
from edgepack.packager.graph.node_precision import node_precision
from edgepack.packager.pipeline import candidate_selection as choosing
from edgepack.packager.pipeline.savings_summary import describe_little
from edgepack.packager.pipeline.selection import SearchedCombination
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.profiles.schema import AccuracyBudget, Gates
from edgepack.packager.quantization.contract import NodeSensitivity
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.candidates import Candidate
from edgepack.packager.search.combinations import Combination, combine, read_searched
from edgepack.packager.search.journal import Journal
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.tensors.sequence import Samples
from tests.unit.packager_passes.declaring import declare
from tests.unit.packager_passes.models import samples_for, spread_model
from tests.unit.packager_search.searched import search_spread, spread_search


def _activations(*kinds: str, **quantize: object) -> tuple[Combination, ...]:
    """The profile qnn-htp with one method and no float nodes, for each activation type."""
    settings = {"name": "quantize", "ranges": ["minmax"], "max_float_share": 0.0, **quantize}
    return tuple(
        Combination(
            words=f"activations {kind}",
            profile=resolve_profile("qnn-htp", {"pass": [{**settings, "activations": kind}]}),
        )
        for kind in kinds
    )


def test_the_combination_that_holds_the_budget_is_taken_and_all_attempts_are_told(
    tmp_path: Path,
) -> None:
    taken = search_spread(tmp_path / "a", _activations("uint8", "uint16"))
    assert taken.combination.words == "activations uint16"
    assert taken.profile.quantize is not None
    assert taken.profile.quantize.activations == "uint16"
    assert taken.selection.found is not None
    assert [attempt.what for attempt in taken.selection.found.attempts] == [
        "activations uint8: minmax, 3 nodes quantized",
        "activations uint8: minmax, weights rounded by GPTQ, 3 nodes quantized",
        "activations uint16: minmax, 3 nodes quantized",
    ]
    assert taken.notes[-1] == (
        "Of 2 combinations, activations uint16 was taken: the cheapest that holds the budget."
    )
    assert not any("multiplied as floats" in note for note in taken.selection.notes), (
        "what ONNX Runtime does on the CPU says nothing of the device"
    )


def test_of_combinations_that_cost_the_same_the_one_named_first_is_taken(tmp_path: Path) -> None:
    assert search_spread(tmp_path / "a", _activations("uint16", "int16")).combination.words == (
        "activations uint16"
    )
    assert search_spread(tmp_path / "b", _activations("int16", "uint16")).combination.words == (
        "activations int16"
    )


def test_where_no_combination_holds_the_nearest_is_taken_and_that_is_said(tmp_path: Path) -> None:
    budgets = {"any": AccuracyBudget(keep=1.0)}
    for kinds in (("uint8", "uint16"), ("uint16", "uint8")):
        combinations = tuple(
            replace(each, profile=replace(each.profile, gates=Gates(accuracy=budgets)))
            for each in _activations(*kinds)
        )
        taken = search_spread(tmp_path / kinds[0], combinations, description=declare(y="values"))
        assert not taken.selection.holds
        assert taken.combination.words == "activations uint16", f"tried in this order: {kinds}"
        assert taken.notes[-1].endswith("was taken: none holds the budget.")


class _Clock:
    """Stands still unless a test sets it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_combination_that_no_time_is_left_for_is_told(tmp_path: Path) -> None:
    clock = _Clock()
    limit = TimeLimit(1.0, clock)
    clock.now_s = 5.0
    taken = search_spread(
        tmp_path / "a",
        _activations("uint8", "uint16"),
        limit=limit,
    )
    assert taken.combination.words == "activations uint8"
    assert "no time was left for activations uint16" in taken.notes[-1]


def test_a_combination_that_cannot_be_built_leaves_the_others(tmp_path: Path) -> None:
    unable = _activations("int16", exclude_ops=["MatMul"])
    taken = search_spread(tmp_path / "a", (*unable, *_activations("uint16")))
    assert taken.combination.words == "activations uint16"
    assert "activations int16 cannot be built (" in taken.notes[-1]
    with pytest.raises(BuildError, match="no node that it could"):
        search_spread(tmp_path / "b", unable)


def test_where_no_node_can_be_lowered_nothing_is_tried_first(tmp_path: Path) -> None:
    changes = {
        "pass": [{"name": "quantize", "exclude_ops": ["MatMul"]}],
        "gates": {"float_instead": ["slower"]},
    }
    combination = Combination(words="", profile=resolve_profile("qnn-htp", changes))
    search = spread_search(tmp_path / "a", (combination,))
    taken = search.run()
    assert taken.selection.notes == (
        "The float model is published: it has no node whose precision could be lowered.",
    )
    assert search.selector.try_first() is None


@pytest.mark.parametrize(("third", "judged_on"), [(15, 30), (40, 64), (70, 64)])
def test_candidates_are_judged_on_search_samples_then_on_some_of_the_calibrations(
    third: int, judged_on: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Samples] = []

    class Remembering(CandidateJudge):
        def __init__(self, float_run: Run, samples: Samples, *others: Any) -> None:
            judged.append(samples)
            super().__init__(float_run, samples, *others)

    monkeypatch.setattr(choosing, "CandidateJudge", Remembering)
    search_spread(tmp_path / "a", _activations("uint16"), sample_count=3 * third)
    (samples,) = judged
    assert samples.count == judged_on
    every = samples_for(spread_model(300.0), 3 * third)
    for index, number in ((0, third), (third - 1, 2 * third - 1), (third, 0)):
        if index < judged_on:
            assert np.array_equal(samples.read(index)["x"], every.read(number)["x"])


def test_an_explored_profile_is_remembered_and_comes_out_the_same(tmp_path: Path) -> None:
    path = tmp_path / "out.search" / "qnn-htp.jsonl"
    combinations = _activations("uint8", "uint16")
    first = search_spread(tmp_path / "a", combinations, journal=Journal(path))
    size = path.stat().st_size
    second = search_spread(tmp_path / "b", combinations, journal=Journal(path))
    assert path.stat().st_size == size, "nothing was measured again"
    assert second.selection.path.read_bytes() == first.selection.path.read_bytes()
    assert second.selection.notes == first.selection.notes


def test_edgepack_toml_names_what_is_searched(tmp_path: Path) -> None:
    config = tmp_path / "edgepack.toml"
    config.write_text('[build]\nbudget = "10m"\n[search]\nclean.opset = [17, 21]\n')
    settings = read_config(config)
    assert settings.build.budget == "10m"
    ((first, second),) = combine(["qnn-htp"], read_searched(settings.search, str(config)))
    assert (first.words, second.words) == ("clean.opset = 17", "clean.opset = 21")


def test_what_was_measured_with_other_settings_is_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "out.search" / "qnn-htp.jsonl"
    search_spread(tmp_path / "a", _activations("uint8"), journal=Journal(path))
    first = path.read_text().count("\n")
    search_spread(tmp_path / "b", _activations("int8"), journal=Journal(path))
    header, others = 1, path.read_text().count("\n") - first
    assert others == first - header, "all of it was measured anew"


def test_nodes_that_are_left_float_from_now_on_are_in_what_is_chosen_next(tmp_path: Path) -> None:
    search = spread_search(tmp_path / "a", _activations("uint16"), journal=Journal(tmp_path / "j"))
    taken = search.run()
    selector, found = search.selector, taken.selection.found
    assert found is not None
    assert list(selector.names) == ["easy_layer", "spread_layer", "pick_layer"]
    assert found.best.words.endswith("3 nodes quantized")

    again = onnx.load(selector.make_again(found.best, ("easy_layer",)))
    precision = node_precision(again)
    assert precision is not None
    assert precision.quantized == {"spread_layer (MatMul)", "pick_layer (MatMul)"}

    left = search.exclude_nodes(taken, ("easy_layer",))
    assert list(selector.names) == ["spread_layer", "pick_layer"]
    assert left is not None
    assert left.selection.found is not None
    assert left.selection.found.best.words.endswith("2 nodes quantized"), "measured, not remembered"
    words = [attempt.what for attempt in left.selection.found.attempts]
    assert words == [found.best.words, left.selection.found.best.words], "both are told of"


def test_where_nothing_is_lowered_no_node_can_be_left_float(tmp_path: Path) -> None:
    combination = Combination(words="", profile=resolve_profile("fp32", {}))
    search = spread_search(tmp_path / "a", (combination,))
    search.run()
    selector = search.selector
    assert selector.names == ()
    with pytest.raises(ValueError, match="nothing is lowered"):
        selector.exclude_nodes(("easy_layer",))


def test_a_search_that_was_not_limited_is_never_out_of_time(tmp_path: Path) -> None:
    combination = Combination(words="", profile=resolve_profile("fp32", {}))
    for name, limit, is_over in (("a", None, False), ("b", 0.0, True), ("c", 600.0, False)):
        search = spread_search(tmp_path / name, (combination,), limit=TimeLimit(limit))
        search.run()
        assert search.selector.is_out_of_time is is_over


def _with_float(candidate: Candidate, *names: str) -> Candidate:
    return replace(candidate, spec=replace(candidate.spec, float_nodes=names))


def _beside_float_of(taken: SearchedCombination, size_bytes: int) -> SearchedCombination:
    """The same, had the float model been of this size."""
    path = taken.prepared.published.with_name(f"{size_bytes}-bytes.onnx")
    path.write_bytes(bytes(size_bytes))
    return replace(taken, prepared=replace(taken.prepared, published=path))


def test_a_model_that_is_hardly_smaller_than_float_says_so_with_what_to_build_instead(
    tmp_path: Path,
) -> None:
    taken = search_spread(tmp_path / "a", _activations("uint16"))
    found = taken.selection.found
    assert found is not None
    assert describe_little(_beside_float_of(taken, taken.size_bytes), None) == (), (
        "no node is float"
    )
    partly = replace(found, best=_with_float(found.best, "easy_layer"))
    taken = replace(taken, selection=replace(taken.selection, found=partly))
    beside = _beside_float_of(taken, taken.size_bytes)
    (note,) = describe_little(beside, None)
    assert note.endswith("100% of the float model's bytes.")
    advice = Advice(instead="--profile other, which helps", learnt=("It was the scales.",))
    told, learnt = describe_little(beside, advice)
    assert (told, learnt) == (f"{note} Instead: --profile other, which helps.", *advice.learnt)
    assert describe_little(_beside_float_of(taken, 2 * taken.size_bytes), None) == ()
    mostly = _with_float(found.best, *"abcdefghi")
    mostly = replace(mostly, measured=replace(mostly.measured, lowered=1))
    taken = replace(taken, selection=replace(taken.selection, found=replace(found, best=mostly)))
    (note,) = describe_little(_beside_float_of(taken, 2 * taken.size_bytes), None)
    assert "90% of the nodes stay float, and it takes 50%" in note


def test_a_few_float_nodes_that_compute_nearly_everything_save_little(tmp_path: Path) -> None:
    taken = search_spread(tmp_path / "a", _activations("uint16"))
    found = taken.selection.found
    assert found is not None
    costs = (
        NodeSensitivity(name="easy_layer", noise=0.1, macs=97),
        NodeSensitivity(name="spread_layer", noise=0.1, macs=3),
    )

    def with_float(*names: str) -> SearchedCombination:
        best = _with_float(found.best, *names)
        best = replace(best, measured=replace(best.measured, lowered=9))
        chosen = replace(taken.selection, found=replace(found, best=best, sensitive_nodes=costs))
        return _beside_float_of(replace(taken, selection=chosen), 2 * taken.size_bytes)

    (note,) = describe_little(with_float("easy_layer"), None)
    assert note == (
        "Little is saved: 10% of the nodes with 97% of the multiply-accumulates stay float, and "
        "it takes 50% of the float model's bytes."
    )
    assert describe_little(with_float("spread_layer"), None) == ()


def test_what_a_recipe_leaves_float_is_named_where_it_holds_most_of_the_weights(
    tmp_path: Path,
) -> None:
    taken = search_spread(tmp_path / "a", _activations("uint16"))
    found = taken.selection.found
    assert found is not None
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "weights")
    node = helper.make_node("MatMul", ["x", "weights"], ["y"], name="left")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in "xy")
    path = tmp_path / "left.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "left", [x], [y], [weights])), path)
    left = replace(found, best=replace(found.best, path=path))
    taken = replace(taken, selection=replace(taken.selection, found=left, path=path))
    (note,) = describe_little(_beside_float_of(taken, taken.size_bytes), None)
    assert note.startswith("Little is saved: it takes 100% of the float model's bytes.")
    assert note.endswith("MatMul (100% of the bytes of all weights).")
    assert describe_little(_beside_float_of(taken, 2 * taken.size_bytes), None) == ()
