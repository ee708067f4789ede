"""Which model goes on to the gates by its time: a quantized one, or the float model."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgepack.packager.pipeline.savings_summary import saves_nothing
from edgepack.packager.pipeline.selection import SearchedCombination
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.runtime.timing import Turns
from edgepack.packager.search import race
from edgepack.packager.search.combinations import Combination
from edgepack.packager.search.speedup import Speedup, measure_speedup
from tests.unit.packager_passes.declaring import declare
from tests.unit.packager_search.searched import search_spread

FLOAT_MS = 1.0

Choose = Callable[..., SearchedCombination]


@pytest.fixture
def choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Prepares a model for `cpu`, where quantized ones take the times that are given.

    In this order: the first candidate, where it is asked whether it is hopeless, the best one with
    every operator against the best one without, the best one, and, all in one race, the best and
    the others.
    """

    def build(
        *times_ms: tuple[float, ...],
        float_instead: tuple[str, ...] = ("slower", "inaccurate"),
        least: float = 0.9,
        methods: Sequence[str] = ("minmax",),
        searched: Sequence[str] = ("",),
        prefer: str = "balanced",
        undecided: str = "quantized",
        raced_ops: str = "",
    ) -> SearchedCombination:
        told = iter(times_ms)

        def raced(
            race: Callable[[], Turns], asked: float | None, may_go_on: object = None
        ) -> Speedup:
            taken_ms, float_ms = next(told)
            turns = Turns(times_s=((taken_ms / 1e3,) * 7, (float_ms / 1e3,) * 7))
            return measure_speedup(lambda: turns, asked)

        def timed(self: race.Race, paths: Sequence[Path], rounds: int) -> Turns:
            times = next(told)
            assert len(paths) == len(times)
            return Turns(times_s=tuple((taken_ms / 1e3,) for taken_ms in times))

        monkeypatch.setattr(race, "measure_speedup", raced)
        monkeypatch.setattr(race.Race, "_take_turns", timed)
        changes = {
            "gates": {
                "float_instead": list(float_instead),
                "prefer": prefer,
                "undecided": undecided,
                "accuracy": {"values": {"keep": least}},
            },
            "pass": [
                {
                    "name": "quantize",
                    "ranges": list(methods),
                    "max_float_share": 0.0,
                    "raced_ops": raced_ops,
                }
            ],
        }
        combinations = tuple(
            Combination(words=words, profile=resolve_profile("cpu", changes)) for words in searched
        )
        found = search_spread(
            tmp_path / "build", combinations, spread=3.0, description=declare(y="values")
        )
        assert next(told, None) is None, "not so often was anything timed"
        return found

    return build


def test_a_quantized_model_that_is_slower_gives_way_to_the_float_one(choose: Choose) -> None:
    searched = choose((2.0, FLOAT_MS))
    chosen = searched.selection
    assert not chosen.is_lowered
    assert searched.size_bytes == searched.prepared.size_bytes
    assert chosen.path == searched.prepared.published
    assert chosen.precision == "fp32"
    assert chosen.notes[0].startswith(
        "The float model is published: on this host's CPUExecutionProvider the quantized one is no "
        "faster, at "
    )
    (note,) = chosen.timed_notes
    assert re.fullmatch(
        r"The quantized model takes 2\.00 ms and [\d.]+ KB, the float one 1\.00 ms and [\d.]+ K?B "
        r"\(1 thread\); preferred is a balance of both \(--prefer\)\.",
        note,
    )
    assert (chosen.latency_ms, chosen.float_latency_ms) == (FLOAT_MS, FLOAT_MS)
    assert list(chosen.latencies_ms.values()) == [2.0], "the report tells what it would have taken"


@pytest.mark.parametrize(("ms", "is_float"), [(2.0, True), (0.5, False)])
def test_the_float_model_saves_nothing_so_no_passing_candidate_gives_way_to_it(
    ms: float, is_float: bool, choose: Choose
) -> None:
    searched = choose((ms, FLOAT_MS))
    assert searched.selection.is_lowered != is_float
    assert saves_nothing(searched) == is_float


@pytest.mark.parametrize(("prefer", "is_lowered"), [("speed", True), ("balanced", False)])
def test_what_is_preferred_decides_of_a_model_that_is_a_little_faster_and_no_smaller(
    prefer: str, is_lowered: bool, choose: Choose
) -> None:
    chosen = choose((0.93, FLOAT_MS), prefer=prefer).selection
    assert chosen.is_lowered == is_lowered


@pytest.mark.parametrize(("undecided", "is_lowered"), [("quantized", True), ("float", False)])
def test_an_undecided_race_is_published_by_the_rule_and_reported_as_undecided(
    undecided: str, is_lowered: bool, choose: Choose
) -> None:
    chosen = choose((0.95, FLOAT_MS), prefer="speed", undecided=undecided).selection
    assert chosen.is_lowered == is_lowered
    assert chosen.speedup is not None
    assert chosen.speedup.outcome == "undecided"
    note = chosen.timed_notes[-1]
    assert note.startswith("Undecided: the quantized model is 1.0")
    assert f"gates.undecided = '{undecided}'" in note
    assert ("undecided" in chosen.float_because) != is_lowered


def test_what_is_not_five_percent_faster_is_told_with_the_trade(choose: Choose) -> None:
    chosen = choose((1.02, FLOAT_MS), prefer="speed").selection
    assert re.fullmatch(
        r"on this host's CPUExecutionProvider the quantized one is not 5% faster, at \d+% of its "
        r"bytes",
        chosen.float_because,
    )
    assert chosen.timed_notes[0].endswith("(1 thread); preferred is speed (--prefer).")


def test_what_is_slower_and_misses_the_budget_is_told_of_for_both(choose: Choose) -> None:
    selection = choose((1.4, FLOAT_MS), (1.4, FLOAT_MS), least=0.9999).selection
    assert re.fullmatch(
        r"the one candidate does not keep the budget of 0\.9999 \(minmax, 3 nodes quantized: "
        r"explained_by_column 0\.\d+\); and on this host's CPUExecutionProvider the quantized one "
        r"is no faster, at \d+% of its bytes",
        selection.float_because,
    )
    assert selection.notes[0] == f"The float model is published: {selection.float_because}."


def test_a_quantized_model_that_is_faster_is_taken_with_both_times(choose: Choose) -> None:
    chosen = choose((0.5, FLOAT_MS)).selection
    assert chosen.is_lowered
    assert (chosen.latency_ms, chosen.float_latency_ms) == (0.5, FLOAT_MS)
    assert chosen.timed_notes == ()
    assert list(chosen.latencies_ms.values()) == [0.5]


def test_where_the_profile_wants_no_float_model_a_slower_one_is_told_of(choose: Choose) -> None:
    chosen = choose((2.0, FLOAT_MS), float_instead=()).selection
    assert chosen.is_lowered
    assert chosen.timed_notes == (
        "It is not faster than the float model on this host's CPUExecutionProvider (2.00 ms "
        "against 1.00 ms, 1 thread), but smaller.",
    )


def test_a_first_candidate_that_misses_the_budget_and_is_far_slower_is_not_improved(
    choose: Choose,
) -> None:
    hopeless = choose((1.6, FLOAT_MS), (1.6, FLOAT_MS), least=0.9999, methods=("minmax", "mse"))
    assert hopeless.selection.found is not None
    assert len(hopeless.selection.found.attempts) == 1


def test_one_that_is_hardly_slower_is_improved_and_the_others_are_timed_beside_the_best(
    choose: Choose,
) -> None:
    times = ((1.4, FLOAT_MS), (0.5, FLOAT_MS), (1.0, 3.0))
    chosen = choose(
        *times, least=0.9999, methods=("minmax", "mse"), float_instead=("slower",)
    ).selection
    assert chosen.found is not None
    assert len(chosen.found.attempts) > 1
    assert sorted(chosen.latencies_ms.values()) == [0.5, 1.5], "by the best one's own time"


def test_what_misses_the_budget_gives_way_to_the_float_model_where_the_profile_says_so(
    choose: Choose,
) -> None:
    searched = choose((0.5, FLOAT_MS), least=0.9999, float_instead=("inaccurate",))
    assert searched.selection.path == searched.prepared.published
    assert searched.selection.notes[0].startswith(
        "The float model is published: the one candidate does not keep the budget of 0.9999 "
        "(minmax, 3 nodes quantized: explained_by_column 0."
    )


@pytest.mark.parametrize(
    ("first_ms", "second_ms", "taken"),
    [(0.8, 0.5, "second"), (0.5, 0.8, "first"), (0.54, 0.5, "first")],
)
def test_of_combinations_the_fastest_is_taken_or_of_equally_fast_ones_the_first(
    first_ms: float, second_ms: float, taken: str, choose: Choose
) -> None:
    times = ((first_ms, FLOAT_MS), (second_ms, FLOAT_MS))
    searched = choose(*times, searched=("first", "second"))
    assert searched.combination.words == taken
    assert searched.notes[-1].startswith(f"Of 2 combinations, {taken} was taken: the cheapest")


@pytest.mark.parametrize(
    ("own_ms", "every_ms", "taken", "told"),
    [
        (0.6, 0.5, "every operator: ", "it goes on"),
        (0.5, 0.6, "", "not 5% faster"),
        (0.5, 0.475, "", "undecided"),
    ],
)
def test_the_faster_of_both_scopes_goes_on_and_an_undecided_race_keeps_the_profiles_own(
    own_ms: float, every_ms: float, taken: str, told: str, choose: Choose
) -> None:
    best_ms = every_ms if taken else own_ms
    times = ((every_ms, own_ms), (best_ms, FLOAT_MS), (best_ms, own_ms))
    chosen = choose(*times, raced_ops="all").selection
    assert chosen.found is not None
    assert chosen.is_lowered
    assert chosen.found.best.words.startswith(f"{taken}minmax")
    scopes = [attempt.what.startswith("every operator") for attempt in chosen.found.attempts]
    assert scopes == [False, True], "both are reported"
    assert "every operator" in chosen.timed_notes[0]
    assert "3 nodes" in chosen.timed_notes[0]
    assert told in chosen.timed_notes[0]


def test_a_scope_that_misses_the_budget_is_searched_on_only_if_it_is_faster(choose: Choose) -> None:
    times = ((0.6, 0.5), (0.5, FLOAT_MS), (0.5, 0.6))
    chosen = choose(*times, raced_ops="all", least=0.996, methods=("minmax", "mse")).selection
    assert chosen.found is not None
    whats = [attempt.what for attempt in chosen.found.attempts]
    assert len(whats) == 2, "the other scope's next method was not tried"
    assert not chosen.found.best.words.startswith("every operator")
    assert "misses the accuracy target" in chosen.timed_notes[0]
