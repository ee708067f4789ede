"""Bounds of gates agree with scipy and ville, and hold as often as stated."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgepack.fleet.database.changes import common_share
from edgepack.fleet.rollouts.statistics import (
    ALPHA,
    NO_RESIDUALS,
    Residuals,
    bet_evidence,
    beta_integral,
    find_least_change,
    lower_bet,
    lower_mean,
    lower_share,
    mean_and_residuals,
    share_evidence,
    t_quantile,
)
from tests.simulators.late_modules import late

special, stats, ville = map(late, ("scipy.special", "scipy.stats", "ville"))

OF_ONE = ALPHA / 21
LIMIT = math.log(1.10)


@given(st.floats(0.5, 200), st.floats(0.5, 200), st.floats(0, 1))
def test_incomplete_beta_agrees_with_scipy(a: float, b: float, x: float) -> None:
    assert beta_integral(a, b, x) == pytest.approx(special.betainc(a, b, x), abs=1e-9, rel=1e-7)


@given(st.floats(1e-7, 0.4), st.integers(2, 500))
def test_t_quantile_agrees_with_scipy(alpha: float, freedom: int) -> None:
    assert t_quantile(alpha, freedom) == pytest.approx(stats.t.isf(alpha, freedom), rel=1e-6)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.floats(0.02, 0.6))
def test_share_evidence_agrees_with_ville(told: list[bool], limit: float) -> None:
    """ville's mixture is over all shares; shares above the limit remain."""
    both_sides = (
        ville.BernoulliTest(limit, prior=(0.5, 0.5)).fit(np.array(told, float)).log_e_values_
    )
    hits, count = sum(told), len(told)
    above = stats.beta.logsf(limit, hits + 0.5, count - hits + 0.5)
    expected = both_sides[-1] + above - stats.beta.logsf(limit, 0.5, 0.5)
    assert share_evidence(hits, count, limit) == pytest.approx(expected, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize(("least", "devices"), [(4, 4), (5, 6), (7, 12), (16, 50)])
def test_least_failures_that_exceed_ten_percent(least: int, devices: int) -> None:
    assert lower_share(least, devices, OF_ONE) > 0.1 >= lower_share(least - 1, devices, OF_ONE)
    assert lower_share(0, devices, OF_ONE) == 0


@pytest.mark.parametrize(
    ("controls", "noise", "expected"),
    [
        (40, 0.055, (1.62, 1.38, 1.29, 1.24, 1.20, 1.18)),
        (10, 0.055, (1.64, 1.40, 1.32, 1.27, 1.23, 1.22)),
        (5, 0.055, (1.65, 1.42, 1.34, 1.30, 1.27, 1.25)),
        (40, 0.11, (2.08, 1.60, 1.44, 1.34, 1.28, 1.24)),
    ],
)
def test_least_change_that_nine_of_ten_rollouts_find(
    controls: int, noise: float, expected: tuple[float, ...]
) -> None:
    for devices, ratio in zip((1, 3, 6, 12, 25, 50), expected, strict=True):
        known = {"noise": noise, "effect": 0.05, "alpha": OF_ONE / 5}
        found = find_least_change(LIMIT, devices, controls=controls, **known)
        assert math.exp(found) == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize(("devices", "least"), [(1, 0.85), (3, 0.75), (6, 0.85), (50, 0.85)])
def test_mean_is_found_as_often_as_stated_and_holds_at_the_limit(
    devices: int, least: float
) -> None:
    rng = np.random.default_rng(devices)
    known = {"noise": 0.055, "effect": 0.05, "alpha": OF_ONE / 5}

    def share_of_breaches(change: float, rounds: int) -> float:
        spread = math.hypot(0.055, 0.05)
        drawn = change + rng.normal(0, spread, (rounds, devices))
        drawn -= rng.normal(0, 0.055 / math.sqrt(10), (rounds, 1))
        return float(
            np.mean(
                [_lower_mean(list(one), controls=10, alpha=OF_ONE / 5) > LIMIT for one in drawn]
            )
        )

    assert share_of_breaches(LIMIT, 400) <= 0.005
    assert share_of_breaches(find_least_change(LIMIT, devices, controls=10, **known), 200) >= least


def _lower_mean(
    numbers: list[float], controls: int, alpha: float = OF_ONE, others: Residuals = NO_RESIDUALS
) -> float:
    known = {"noise": 0.055, "effect": 0.05, "alpha": alpha}
    return lower_mean(numbers, LIMIT, controls=controls, others=others, common=1.0, **known)


def test_controls_widen_a_bound_by_the_variance_of_their_mean() -> None:
    bounds = [_lower_mean([0.3] * 50, controls) for controls in (2, 10, 40)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[2] - 0.05


def test_errors_of_controls_average_out_over_waves_far_apart() -> None:
    """The variance of the mean over devices agrees with drawn errors of the controls."""
    waves = np.repeat([0.0, 5.0, 9.5], [3, 3, 6])
    errors = np.random.default_rng(1).normal(0, 1, (4000, 3))[:, [0] * 3 + [1] * 3 + [2] * 6]
    assert common_share(list(waves), 4.0) == pytest.approx(errors.mean(axis=1).var(), rel=0.1)
    assert common_share([7.0] * 12, 4.0) == 1.0
    assert common_share([0.0, 1.0], 4.0) == pytest.approx((1 + 0.75) / 2)


def test_devices_of_other_classes_that_differ_more_widen_a_bound() -> None:
    alike = _lower_mean([0.3] * 6, 40)
    drawn = list(np.random.default_rng(2).normal(LIMIT, 0.15, 40))
    mean, residuals = mean_and_residuals(drawn, LIMIT, math.hypot(0.055, 0.05))
    assert residuals.freedom == 39
    assert residuals.squares > 2 * residuals.freedom
    assert _lower_mean([0.3] * 6, 40, others=residuals) < alike - 0.02
    clipped = np.clip(drawn, LIMIT - 3 * 0.0743303, LIMIT + 3 * 0.0743303)
    assert mean == pytest.approx(clipped.mean(), abs=1e-6)


@pytest.mark.parametrize("shape", [(2.0, 198.0), (0.05, 4.95)])
def test_betting_holds_at_the_limit_however_devices_differ(shape: tuple[float, float]) -> None:
    rng = np.random.default_rng(5)
    stopped = 0
    for _ in range(200):
        told = list(rng.binomial(600, rng.beta(*shape, 50)) / 600)
        grows = (bet_evidence(told[:n], 0.01) for n in range(1, 51))
        stopped += any(evidence >= -math.log(OF_ONE) for evidence in grows)
    assert stopped <= 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@example(told=[5e-324])
def test_lower_bet_is_the_greatest_limit_that_the_evidence_excludes(told: list[float]) -> None:
    bound = lower_bet(told, OF_ONE)
    assert 0 <= bound <= sum(told) / len(told)
    if bound > 1e-6:
        assert bet_evidence(told, bound * 0.99) >= -math.log(OF_ONE)
        assert bet_evidence(told, bound * 1.01) < -math.log(OF_ONE)


def test_three_devices_that_fail_a_fifth_of_inferences_are_evidence() -> None:
    assert lower_bet([0.22, 0.2, 0.21], OF_ONE) > 0.01
    assert lower_bet([0.2], OF_ONE) <= 0.01
