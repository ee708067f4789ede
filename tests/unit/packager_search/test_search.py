"""The search: methods, then float nodes, within its time, and what it says when nothing holds."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.packager.progress import BuildStep
from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.runtime.deadline import OutOfTimeError
from edgepack.packager.runtime.evaluator import open_plain
from edgepack.packager.search import candidate_measurer
from edgepack.packager.search.journal import Journal
from edgepack.packager.search.search_target import SearchTarget
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.tasks.arrays import Outputs
from tests.unit.packager_search.toys import ToyMaker, search_toy

_ERRORS = {"a": 0.02, "b": 0.3, "c": 0.02, "d": 0.4, "e": 0.02, "f": 0.02}


class _Clock:
    """Moves on by one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_first_method_that_holds_ends_the_search_at_once(tmp_path: Path) -> None:
    maker = ToyMaker(dict.fromkeys("abc", 0.01), {"plain": 1.0, "other": 0.5})
    found = search_toy(maker, tmp_path / "work")
    assert maker.built == [("plain", ())]
    assert maker.ranked == []
    assert found.best.words == "plain, 3 nodes quantized"
    assert [attempt.because for attempt in found.attempts] == ["the profile's first method"]


def test_methods_are_tried_before_any_node_returns_to_float(tmp_path: Path) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 1.0, "better": 0.1})
    found = search_toy(maker, tmp_path / "work")
    assert maker.built == [("plain", ()), ("better", ())]
    assert maker.ranked == []
    assert found.best.method.id == "better"
    assert found.best.verdict.passed


def test_a_hopeless_first_candidate_is_not_improved_and_not_asked_about_again(
    tmp_path: Path,
) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 1.0, "better": 0.1})
    asked: list[Outputs] = []

    def is_hopeless(path: Path) -> bool:
        asked.append(open_plain(path)({"x": np.ones((1, 2, 64), np.float32)}))
        return True

    journal = Journal(tmp_path / "journal")
    for folder in ("first", "again"):
        found = search_toy(maker, tmp_path / folder, journal=journal, is_hopeless=is_hopeless)
        assert [attempt.what for attempt in found.attempts] == ["plain, 6 nodes quantized"]
        assert not found.best.verdict.passed
    assert len(asked) == 1, "the journal knows it"
    assert not np.allclose(asked[0]["y"], 1.0, atol=0.1), "it was asked of the candidate"
    assert maker.ranked == []


def test_a_first_candidate_that_holds_is_not_asked_whether_it_is_hopeless(tmp_path: Path) -> None:
    maker = ToyMaker(dict.fromkeys("abc", 0.01), {"plain": 1.0})
    search_toy(maker, tmp_path / "work", is_hopeless=lambda run: pytest.fail("it holds"))


def test_only_the_costliest_nodes_return_to_float(tmp_path: Path) -> None:
    found = search_toy(ToyMaker(_ERRORS, {"plain": 1.0}), tmp_path / "work")
    assert set(found.best.float_nodes) == {"b", "d"}
    assert found.best.words == "plain, 2 of 6 nodes float"
    assert [cost.name for cost in found.sensitive_nodes][:2] == ["d", "b"]
    assert [attempt.float_nodes for attempt in found.attempts][:3] == [0, 1, 2]


_SIXTEEN = {"a": 0.1, "b": 0.1, "c": 0.0, "d": 0.1, "e": 0.0, "f": 0.0}
"""What of the errors is left with 16 bits, as a share."""


def test_nodes_get_16_bits_before_any_stays_float(tmp_path: Path) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 1.0}, sixteen=_SIXTEEN)
    found = search_toy(maker, tmp_path / "work")
    assert found.best.words == "plain, 2 of 6 nodes 16-bit"
    assert set(found.best.high_precision_nodes) == {"b", "d"}
    counts = [attempt.high_precision_nodes for attempt in found.attempts]
    assert counts[:4] == [0, 6, 1, 2], "whether it helps at all is asked first"
    assert {attempt.float_nodes for attempt in found.attempts} == {0}
    assert not any("float" in attempt.because for attempt in found.attempts)
    assert found.attempts[2].because == "the 1 costliest node 16-bit"


def test_what_16_bits_do_not_help_stays_float_and_no_more_is_high_precision_than_must_be(
    tmp_path: Path,
) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 1.0}, sixteen={**_SIXTEEN, "d": 1.0})
    found = search_toy(maker, tmp_path / "work", max_float_share=0.5)
    assert found.best.float_nodes == ("d",), "its weights are to blame"
    assert found.best.words == "plain, 1 of 6 nodes float, 1 16-bit"
    assert maker.ranked == ["plain", "plain in high precision"]
    assert found.sensitive_nodes[0].name == "d"
    counts = [(attempt.float_nodes, attempt.high_precision_nodes) for attempt in found.attempts]
    assert counts[:3] == [(0, 0), (0, 6), (1, 5)]


class _Misleading(ToyMaker):
    """Ranks two harmless nodes before one of the two that lose most."""

    def rank(self, spec, samples, progress, measured=None):  # type: ignore[no-untyped-def]
        costs = super().rank(spec, samples, progress, measured)
        by_name = {cost.name: cost for cost in costs}
        return tuple(by_name[name] for name in "bcadef")


def test_a_node_that_is_not_needed_among_the_16_bit_ones_is_lowered_again(tmp_path: Path) -> None:
    maker = _Misleading(_ERRORS, {"plain": 1.0}, sixteen=_SIXTEEN)
    found = search_toy(maker, tmp_path / "work")
    assert (found.best.float_nodes, set(found.best.high_precision_nodes)) == ((), {"b", "d"})
    assert any("without a among the 16-bit nodes" in entry.because for entry in found.attempts)


def test_a_node_that_is_not_needed_among_the_float_ones_is_lowered_again(tmp_path: Path) -> None:
    found = search_toy(_Misleading(_ERRORS, {"plain": 1.0}), tmp_path / "work")
    assert set(found.best.float_nodes) == {"b", "d"}
    assert any("without a among the float nodes" in entry.because for entry in found.attempts)


def test_no_more_nodes_return_to_float_than_the_profile_allows(tmp_path: Path) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 1.0})
    found = search_toy(maker, tmp_path / "work", max_float_share=0.2)
    assert max(len(nodes) for _, nodes in maker.built) == 1
    assert not found.best.verdict.passed
    assert [cost.name for cost in found.sensitive_nodes][:2] == ["d", "b"]


def test_what_its_maker_says_of_the_best_candidate_is_known_whether_measured_or_recalled(
    tmp_path: Path,
) -> None:
    class _Telling(ToyMaker):
        def build(self, spec):  # type: ignore[no-untyped-def]
            note = f"{spec.method.id} with {len(spec.float_nodes)} nodes float"
            return replace(super().build(spec), notes=(note,))

    journal = Journal(tmp_path / "journal")
    for folder in ("measured", "recalled"):
        maker = _Telling(_ERRORS, {"plain": 1.0})
        found = search_toy(maker, tmp_path / folder, journal=journal)
        assert found.best.notes == ("plain with 2 nodes float",)
    assert len(maker.built) == 1, "the best one is made again, and nothing else"


def test_of_large_candidates_only_the_best_stays_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate_measurer, "_KEPT_BYTES", 0)
    found = search_toy(ToyMaker(_ERRORS, {"plain": 1.0}), tmp_path / "work")
    folders = [path for path in (tmp_path / "work").iterdir() if path.is_dir()]
    assert folders == [found.best.path.parent]


def test_small_candidates_stay_on_the_disk_to_be_timed(tmp_path: Path) -> None:
    found = search_toy(ToyMaker(_ERRORS, {"plain": 1.0}), tmp_path / "work")
    assert len(found.candidates) == len(found.attempts) > 1
    assert all(candidate.path.exists() for candidate in found.candidates)


def test_when_the_time_is_used_up_the_best_until_then_is_taken_and_said(tmp_path: Path) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 1.0, "worse": 2.0, "better": 0.1})
    found = search_toy(maker, tmp_path / "work", limit=TimeLimit(3.0, _Clock()))
    assert ("better", ()) not in maker.built
    assert found.best.method.id == "plain"
    (note,) = found.notes
    assert "its share of 3 s was used up" in note
    assert "does not hold the budget" in note
    assert found.is_cut_short
    assert not search_toy(maker, tmp_path / "whole").is_cut_short


def test_time_that_is_used_up_in_the_middle_of_a_candidate_ends_it_there(tmp_path: Path) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 1.0, "better": 0.1})
    limit = TimeLimit(90.0, lambda: 100.0 if len(maker.built) > 1 else 0.0)
    found = search_toy(maker, tmp_path / "work", limit=limit)
    assert maker.built == [("plain", ()), ("better", ())]
    assert [attempt.what for attempt in found.attempts] == ["plain, 6 nodes quantized"]
    assert found.best.path.exists()
    (note,) = found.notes
    assert "its share of 90 s was used up" in note


def test_the_first_candidate_is_finished_whatever_it_takes(tmp_path: Path) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 1.0, "better": 0.1})
    found = search_toy(maker, tmp_path / "work", limit=TimeLimit(0.5, _Clock()))
    assert maker.built == [("plain", ())]
    assert found.best.path.exists()


def test_a_further_search_without_time_makes_nothing(tmp_path: Path) -> None:
    limit = TimeLimit(0.5, _Clock())
    limit.enforce()
    maker = ToyMaker(_ERRORS, {"plain": 1.0})
    with pytest.raises(OutOfTimeError):
        search_toy(maker, tmp_path / "work", limit=limit)
    assert maker.built == []


def test_progress_tells_the_best_so_far_and_the_time_that_is_left(tmp_path: Path) -> None:
    told: list[BuildStep] = []
    search_toy(
        ToyMaker(_ERRORS, {"plain": 1.0, "worse": 2.0}),
        tmp_path / "work",
        limit=TimeLimit(600.0, lambda: 0.0),
        progress=told.append,
    )
    assert {step.left_s for step in told} == {600.0}
    begun, measured = (step for step in told if step.what == "candidate 2")
    assert (begun.outcome, begun.candidates) == ("", 1)
    assert measured.outcome.startswith("worse, 6 nodes quantized, explained_variance ")
    assert measured.candidates == 2
    assert begun.best == measured.best, "the first one is still the best"
    assert begun.best.endswith(" < 0.98")


_FAR_OFF = {"a": 0.02, "b": 3.0, "c": 0.02, "d": 4.0, "e": 0.02, "f": 0.02, "g": 0.02, "h": 0.02}


class _Deceiving(ToyMaker):
    """`flattering` makes the two worst nodes less bad, and all others far worse."""

    def build(self, spec):  # type: ignore[no-untyped-def]
        if spec.method.id == "flattering":
            errors = {name: 0.5 * e if e > 1.0 else 10.0 * e for name, e in _FAR_OFF.items()}
            self.built.append((spec.method.id, spec.float_nodes))
            inner = ToyMaker(errors, {"flattering": 1.0})
            return inner.build(replace(spec, high_precision_nodes=()))
        return super().build(spec)


def test_far_from_the_budget_methods_are_compared_with_the_worst_nodes_float(
    tmp_path: Path,
) -> None:
    maker = _Deceiving(_FAR_OFF, {"honest": 1.0, "flattering": 1.0})
    found = search_toy(maker, tmp_path / "work")
    whole = {entry.what: entry.accuracy for entry in found.attempts if not entry.float_nodes}
    assert whole["flattering, 8 nodes quantized"] > whole["honest, 8 nodes quantized"]
    assert maker.built[2:4] == [("honest", ("d", "b")), ("flattering", ("d", "b"))]
    assert found.best.words == "honest, 2 of 8 nodes float"
    assert found.best.verdict.passed


def test_more_bits_are_worth_a_try_where_one_of_two_methods_holds_with_them(
    tmp_path: Path,
) -> None:
    sixteen = dict.fromkeys(_FAR_OFF, 0.01)
    maker = _Deceiving(_FAR_OFF, {"honest": 1.0, "flattering": 1.0}, sixteen=sixteen)
    found = search_toy(maker, tmp_path / "work")
    asked = [entry.what for entry in found.attempts if "may be enough" in entry.because]
    assert asked == ["flattering, 8 of 8 nodes 16-bit", "honest, 8 of 8 nodes 16-bit"]
    assert (found.best.method.id, found.best.float_nodes) == ("honest", ())
    assert set(found.best.high_precision_nodes) == {"b", "d"}


def test_where_nothing_holds_the_most_accurate_of_all_is_the_best(tmp_path: Path) -> None:
    maker = ToyMaker(_ERRORS, {"plain": 2.0, "better": 1.5, "worse": 1.8})
    found = search_toy(maker, tmp_path / "work", max_float_share=0.0)
    assert not found.best.verdict.passed
    assert found.best.method.id == "better"


def test_costly_methods_wait_until_the_plain_ones_fail_with_float_nodes(tmp_path: Path) -> None:
    enough = ToyMaker(_FAR_OFF, {"plain": 1.0}, {"prepared": 0.5})
    search_toy(enough, tmp_path / "enough")
    assert {method for method, _ in enough.built} == {"plain"}
    short = ToyMaker(dict.fromkeys("abcdefgh", 0.6), {"plain": 1.0}, {"prepared": 0.1})
    found = search_toy(short, tmp_path / "short", max_float_share=0.5)
    tried = [method for method, _ in short.built]
    assert tried == sorted(tried), "the plain method first, with nodes float, then the prepared one"
    assert short.built[tried.index("prepared")] == ("prepared", ("a", "b", "c", "d"))
    assert found.best.method.id == "prepared"
    assert found.best.verdict.passed


def test_near_the_budget_costly_methods_come_before_float_nodes(tmp_path: Path) -> None:
    maker = ToyMaker(dict.fromkeys("ab", 0.1), {"plain": 1.0}, {"prepared": 0.1})
    found = search_toy(maker, tmp_path / "work")
    assert maker.built == [("plain", ()), ("prepared", ())]
    assert maker.ranked == []
    assert found.best.words == "prepared, 2 nodes quantized"


class _Uneven(ToyMaker):
    """Of its two methods one is near the budget with all nodes, the other one with some float."""

    def _errors_of(self, spec: CandidateSpec) -> dict[str, float]:
        if spec.method.id == "uneven":
            return {"a": 0.5, "b": 0.01, "c": 0.01, "d": 0.01}
        return super()._errors_of(spec)


def test_where_the_near_method_fails_with_float_nodes_the_others_are_compared_there(
    tmp_path: Path,
) -> None:
    errors = {"a": 0.303, "b": 0.302, "c": 0.301, "d": 0.3}
    alone = ToyMaker(errors, {"near": 1.0})
    assert not search_toy(alone, tmp_path / "alone", max_float_share=0.5).best.verdict.passed
    maker = _Uneven(errors, {"near": 1.0, "uneven": 1.0})
    found = search_toy(maker, tmp_path / "both", max_float_share=0.5)
    assert found.attempts[0].accuracy > found.attempts[1].accuracy, "which is why it comes first"
    assert found.best.verdict.passed
    assert found.best.method.id == "uneven"
    assert found.best.float_nodes == ("a",)


def test_what_is_worse_than_a_near_candidate_is_not_run_to_the_end(tmp_path: Path) -> None:
    maker = ToyMaker(dict.fromkeys("ab", 0.08), {"plain": 1.0, "worse": 1.5})
    found = search_toy(maker, tmp_path / "work", sample_count=40)
    given_up = {entry.what: "given up after 16" in entry.because for entry in found.attempts}
    assert not given_up["plain, 2 nodes quantized"], "it is the first, and near"
    assert given_up["worse, 2 nodes quantized"]
    assert not given_up[found.best.words]
    assert found.best.verdict.passed


def test_a_larger_reserve_returns_more_nodes_to_float(tmp_path: Path) -> None:
    maker = ToyMaker({"a": 0.13, "b": 0.005, "c": 0.05}, {"plain": 1.0})
    content = search_toy(maker, tmp_path / "content", target=SearchTarget(reserve=0.0))
    strict = search_toy(maker, tmp_path / "strict", target=SearchTarget(reserve=0.9))
    assert content.best.float_nodes == ()
    assert "a" in strict.best.float_nodes
    assert strict.best.verdict.spare >= 0.9
    quiet = SearchTarget(reserve=0.0, noise_max=0.5 * strict.best.verdict.noise)
    assert search_toy(maker, tmp_path / "quiet", target=quiet).best.verdict.noise <= quiet.noise_max


def test_a_target_that_cannot_be_met_is_relaxed_to_half_of_what_can_be_gained(
    tmp_path: Path,
) -> None:
    errors = {name: 0.015 if name in "abef" else 0.0 for name in "abcdefgh"}
    maker, limited = ToyMaker(errors, {"plain": 1.0}), 0.375
    refused = search_toy(maker, tmp_path / "refused", target=SearchTarget(reserve=0.0)).best
    assert refused.float_nodes == ()
    target = SearchTarget(reserve=0.6, noise_max=0.1 * refused.verdict.noise)
    most = search_toy(maker, tmp_path / "most", target=target, max_float_share=limited).best
    assert not target.is_met(most.verdict)
    assert len(most.float_nodes) == 3
    relaxed = target.relaxed(refused.verdict, most.verdict)
    found = search_toy(maker, tmp_path / "relaxed", target=relaxed, max_float_share=limited).best
    assert relaxed.is_met(found.verdict)
    assert len(found.float_nodes) == 2
    modest = SearchTarget(reserve=0.1, noise_max=0.9 * refused.verdict.noise)
    assert modest.relaxed(refused.verdict, most.verdict) == modest
