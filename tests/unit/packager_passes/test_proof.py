"""What few held-out samples prove, and which of their decisions may differ."""

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.checks import refuse_weak
from edgepack.packager.gates.proof import (
    is_proven,
    samples_to_prove,
    without_dear_forgiveness,
)
from edgepack.packager.gates.tolerances import Seen
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.pipeline.holdout_verdict import HoldoutVerdict
from edgepack.packager.pipeline.variant_facts import accuracy_of
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.profiles.schema import AccuracyBudget
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.classification.decisions import costs_of_changes, expected_cost
from edgepack.tasks.intervals import count_to_prove, kept_low, share_low


def _decided(count: int, classes: int = 5, *, margin: float = 9.0) -> list[Outputs]:
    """Scores by which each class wins in turn."""
    rows = np.zeros((count, 1, classes), np.float32)
    for index in range(count):
        rows[index, 0, index % classes] = margin
    return [{"y": row} for row in rows]


def _louder(outputs: list[Outputs]) -> list[Outputs]:
    return [{"y": np.multiply(entry["y"], np.float32(1.1))} for entry in outputs]


def _judge(expected: list[Outputs], got: list[Outputs]) -> Verdict:
    return without_dear_forgiveness(Reference(expected, {}).judge(got))


def _told(verdict: Verdict, count: int) -> str:
    samples = Samples(count=0, read=lambda _: {}, source="none")
    (note,) = (
        note
        for note in describe_verdict(verdict, count, samples, ())
        if "with 95 % confidence" in note
    )
    return note


def test_one_of_few_may_differ_where_the_float_model_hesitated() -> None:
    expected = _decided(30)
    expected[7] = {"y": np.array([[0.0, 3.0, 2.9, 0.0, 0.0]], np.float32)}
    got = [*expected]
    got[7] = {"y": np.array([[0.0, 2.9, 3.0, 0.0, 0.0]], np.float32)}
    verdict = _judge(expected, got)
    assert (verdict.passed, verdict.forgiven) == (True, True)
    assert verdict.task_kept == pytest.approx(1 - 0.044 / 30, abs=1e-3)
    assert _told(verdict, 30).endswith(
        ", where the budget is 0.9800: of so few one may differ, and the float model hesitated "
        "there: 0.154 % of right answers are expected to be lost."
    )


def test_one_of_few_may_not_differ_where_the_float_model_was_sure() -> None:
    expected = _decided(30)
    got = [*expected]
    got[7] = expected[8]
    verdict = _judge(expected, got)
    assert (verdict.passed, verdict.forgiven, verdict.budget) == (False, False, 0.98)
    assert verdict.spare < 0
    assert verdict.task_kept == pytest.approx(29 / 30, abs=1e-3)


def test_of_many_samples_the_budget_alone_decides_however_sure_the_float_model_was() -> None:
    expected = _decided(200)
    got = [*expected]
    got[7], got[11] = expected[8], expected[10]
    verdict = _judge(expected, got)
    assert (verdict.value, verdict.passed, verdict.forgiven) == (0.99, True, False)


def test_scores_that_do_not_say_how_sure_they_are_forgive_as_before() -> None:
    expected = _decided(30, margin=0.2)
    got = [*expected]
    got[7] = expected[8]
    assert (
        costs_of_changes([entry["y"] for entry in expected], [entry["y"] for entry in got]) is None
    )
    labels: list[Outputs] = [{"y": np.array([index % 5])} for index in range(30)]
    verdict = _judge(labels, [labels[1], *labels[1:]])
    assert (verdict.passed, verdict.forgiven, verdict.costs) == (True, True, 0.0)
    assert _told(verdict, 30).endswith("where the budget is 0.9800: of so few one may differ.")


def test_changed_decisions_cost_what_the_float_model_preferred_the_first_one_by() -> None:
    sure, unsure = np.array([[0.9, 0.1]]), np.array([[0.5, 0.4, 0.1]])
    assert _costs([sure], [np.array([[0.4, 0.6]])]) == pytest.approx([0.8])
    assert _costs([unsure], [np.array([[0.4, 0.5, 0.1]])]) == pytest.approx([0.1])
    assert _costs([sure, sure], [sure, np.array([[np.nan, 1.0]])]) == [0.0, 1.0]
    masked = np.array([[3.0, -np.inf, 0.0]])
    assert _costs([masked], [np.array([[3.0, -9.0, 0.0]])]) == [0.0]


def _costs(expected: list[np.ndarray], got: list[np.ndarray]) -> list[float]:
    costs = costs_of_changes(expected, got)
    assert costs is not None
    return [float(cost) for cost in costs]


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 3)), np.zeros((1, 0)), np.full((1, 3), np.nan), np.float64(0.3)],
    ids=["two rows", "nothing", "padding", "one number"],
)
def test_what_is_no_row_of_scores_costs_nothing_that_is_known(value: np.ndarray) -> None:
    assert costs_of_changes([np.asarray(value)], [np.asarray(value)]) is None


_CLASSES = 5


def _classified(
    count: int, seed: int, *, margins: tuple[float, float], error: float
) -> tuple[list[Outputs], list[Outputs]]:
    """A drawn classifier's scores and a noisy variant's; margins are drawn between two bounds."""
    random = np.random.default_rng(seed)
    expected: list[Outputs] = []
    got: list[Outputs] = []
    for _ in range(count):
        first, second = random.permutation(_CLASSES)[:2]
        row = np.full((1, _CLASSES), -9.0)
        row[0, first], row[0, second] = random.uniform(*margins), 0.0
        expected.append({"y": row.astype(np.float32)})
        noise = random.normal(0.0, error, row.shape)
        got.append({"y": (row + noise).astype(np.float32)})
    return expected, got


def _agreeing(
    count: int, seed: int, *, margins: tuple[float, float], error: float
) -> tuple[list[Outputs], list[Outputs]]:
    """As many of a drawn classifier's samples that agree."""
    drawn = zip(*_classified(10 * count, seed, margins=margins, error=error), strict=True)
    same = [(want, have) for want, have in drawn if want["y"].argmax() == have["y"].argmax()]
    expected, got = zip(*same[:count], strict=True)
    return list(expected), list(got)


def _cost(expected: list[Outputs], got: list[Outputs]) -> float:
    cost = expected_cost([entry["y"] for entry in expected], [entry["y"] for entry in got])
    assert cost is not None
    assert cost[1] <= cost[0]
    return cost[0]


@pytest.mark.parametrize("seed", range(8))
def test_samples_that_all_agree_tell_of_others_that_will_not(seed: int) -> None:
    expected, got = _agreeing(30, seed, margins=(0.4, 3.5), error=1.2)
    verdict = _judge(expected, got)
    assert verdict.value == 1.0
    assert verdict.is_costly
    assert not verdict.passed, "twice what may be lost is expected"
    assert verdict.task_kept == 1.0 - _cost(expected, got) < 0.98
    assert "of right answers expected to be lost, 1.00 % allowed" in verdict.found


@pytest.mark.parametrize("seed", range(8))
def test_wide_margins_beside_the_same_errors_lose_nothing(seed: int) -> None:
    expected, got = _agreeing(30, seed, margins=(5.5, 8.0), error=1.2)
    verdict = _judge(expected, got)
    assert (verdict.value, verdict.passed, verdict.is_costly) == (1.0, True, False)
    assert verdict.task_kept is not None
    assert verdict.task_kept > 0.998
    assert verdict.found == "top1_agreement 1.0000"


@pytest.mark.parametrize(("error", "most_apart"), [(0.05, 0.002), (0.3, 0.004), (0.8, 0.01)])
def test_what_is_expected_is_what_other_samples_lose(error: float, most_apart: float) -> None:
    margins = (0.0, 6.0)
    expected, got = _classified(4000, 99, margins=margins, error=error)
    true = np.mean(_costs([entry["y"] for entry in expected], [entry["y"] for entry in got]))
    told = [_cost(*_classified(30, seed, margins=margins, error=error)) for seed in range(40)]
    assert np.mean(told) == pytest.approx(true, abs=most_apart)


def test_an_error_of_a_sure_decision_says_nothing_of_an_unsure_one() -> None:
    expected = _decided(15, margin=1.0) + _decided(15, margin=7.0)
    got: list[Outputs] = [{"y": np.multiply(e["y"], np.float32(0.6))} for e in expected[15:]]
    assert _cost(expected, expected[:15] + got) == 0.0


def test_an_output_that_rounds_small_probabilities_away_moves_no_sure_margin() -> None:
    expected, _ = _classified(30, 1, margins=(5.0, 9.0), error=0.0)
    shares: list[Outputs] = []
    for entry in expected:
        grown = np.exp(entry["y"])
        shares.append({"y": grown / grown.sum()})
    rounded: list[Outputs] = [{"y": np.rint(np.multiply(e["y"], 256)) / 256} for e in shares]
    assert _cost(shares, rounded) == 0.0


def test_what_cannot_be_compared_is_expected_to_be_lost_and_few_samples_tell_nothing() -> None:
    expected = _decided(30)
    broken: list[Outputs] = [{"y": np.full_like(entry["y"], np.nan)} for entry in expected]
    assert _cost(expected, broken) > 0.4
    rows = [entry["y"] for entry in expected[:10]]
    assert expected_cost(rows, rows) is None


def test_a_lower_budget_allows_more_to_be_lost() -> None:
    expected, got = _agreeing(30, 0, margins=(0.4, 3.5), error=1.2)
    budgets = {"classification": AccuracyBudget(keep=0.9)}
    verdict = without_dear_forgiveness(Reference(expected, budgets).judge(got))
    assert verdict.may_lose == pytest.approx(0.1)
    assert (verdict.passed, verdict.is_costly) == (True, False)


def test_the_report_says_what_is_expected_of_other_samples() -> None:
    expected, got = _agreeing(30, 0, margins=(0.4, 3.5), error=1.2)
    samples = Samples(count=0, read=lambda _: {}, source="none")
    (note,) = (
        note
        for note in describe_verdict(_judge(expected, got), 30, samples, ())
        if "expected to be lost" in note
    )
    assert note.startswith("How sure its decisions are, and by how much they moved, says what")


def test_what_is_not_proven_is_said_with_the_number_of_samples_that_would_do() -> None:
    expected = _decided(30)
    verdict = _judge(expected, _louder(expected))
    assert verdict.passed
    assert not is_proven(verdict)
    needed = samples_to_prove(verdict, 30)
    assert needed == 133
    assert share_low(1.0, needed) >= 0.98 > share_low(1.0, needed - 1)
    assert "; 133 that agree as well would prove the budget of 0.9800." in _told(verdict, 30)
    many = _decided(needed)
    proven = _judge(many, _louder(many))
    assert is_proven(proven)
    assert _told(proven, needed).endswith("on samples like these.")


def test_how_many_would_prove_a_value_follows_its_spread() -> None:
    lost = [0.0, 0.01, 0.0, 0.015] * 5
    value, low = 1 - sum(lost) / 20, kept_low(lost, [1.0] * 20)
    assert low < 0.992 < value
    needed = count_to_prove(value, low, 0.992, 20)
    assert needed is not None
    assert needed > 20
    repeated = lost * (needed // 20 + 1)
    assert kept_low(repeated, [1.0] * len(repeated)) >= 0.992
    assert count_to_prove(0.97, 0.95, 0.98, 20) is None, "no number proves what is not so"
    assert count_to_prove(1.0, 0.99, 0.98, 20) is None, "it is proven"


def test_reasons_of_a_weak_verdict_are_sentences() -> None:
    expected = _decided(20)
    verdict = replace(_judge(expected, expected), weak=("the first. Mend it", "the second"))
    held_out = HoldoutVerdict(
        verdict=verdict, count=20, seen=Seen(errors=(), expected=(), got=()), single=()
    )
    accuracy = accuracy_of(held_out, verdict, "CPU")
    assert accuracy.weak == "the first. Mend it. The second"
    assert accuracy.weak in refuse_weak(load_profile("cpu"), accuracy).problem
