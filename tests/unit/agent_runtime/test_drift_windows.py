"""Drift windows: the rule for a change, and the loss that a fallen confidence shows."""

from collections.abc import Iterable, Iterator
from statistics import NormalDist

import numpy as np
import pytest

from edgepack.agent.telemetry.drift import WINDOW_INFERENCES, DriftWatch
from edgepack.agent.telemetry.drift_windows import (
    DAY_WINDOWS,
    FALSE_CHANGES,
    IN_A_ROW,
    WINDOW_S,
    FeatureWindows,
    day_bound,
    estimate_loss,
    window_bound,
)
from edgepack.bundle.features import FeatureSum
from edgepack.bundle.metadata import Feature

LEVEL = Feature(tensor="x", name="level", words="level", mean=0.0, spread=1.0, samples=300)
CONFIDENCE = Feature(
    tensor="y",
    name="confidence",
    words="confidence",
    mean=0.9,
    spread=0.1,
    samples=300,
    loss_by_confidence=1.5,
)
FEATURES = 20
RELEASE = ("d" * 64, "cpu", "CPUExecutionProvider")


def run(
    values: Iterable[float], feature: Feature = LEVEL, windows: FeatureWindows | None = None
) -> Iterator[FeatureWindows]:
    windows = windows or FeatureWindows()
    for value in values:
        windows = windows.with_window(feature, value, FEATURES)
        yield windows


def days(rng: np.random.Generator, count: int, feature: Feature = LEVEL) -> list[float]:
    """Draw windows of days with a daily wave: more than chance between single inferences."""
    times = np.arange(count * DAY_WINDOWS)
    wave = 0.3 * np.sin(2 * np.pi * times / DAY_WINDOWS)
    noise = rng.normal(0.0, 0.12, times.size)
    return list(feature.mean + feature.spread * (wave + noise))


def learnt(feature: Feature = LEVEL) -> FeatureWindows:
    return list(run(days(np.random.default_rng(5), 1, feature), feature))[-1]


def test_months_without_a_shift_have_few_false_changes() -> None:
    rng = np.random.default_rng(0)
    features = 40
    changed = sum(any(one.is_changed for one in run(days(rng, 30))) for _ in range(features))
    # 1 % of months with 20 features are 0.05 % of a feature's: none of 40, or a single one.
    assert changed <= 1


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_gross_shift_is_a_change_after_three_windows(side: float) -> None:
    shifted = list(run([side * 1.5] * IN_A_ROW, windows=learnt()))
    assert [one.is_changed for one in shifted] == [False, False, True]
    assert not list(run([1.5, -1.5, 1.5, 0.0, 1.5, 1.5], windows=learnt()))[-1].is_changed
    back = list(run([0.0], windows=shifted[-1]))[-1]
    assert not back.is_changed


def test_a_small_shift_is_a_change_after_a_day() -> None:
    rng = np.random.default_rng(1)
    shifted = [value + 0.35 for value in days(rng, 2)]
    states = list(run(shifted, windows=learnt()))
    assert not states[DAY_WINDOWS - 2].is_changed
    assert states[DAY_WINDOWS - 1].is_changed


def test_in_the_first_day_windows_may_vary_like_single_inferences() -> None:
    assert not any(one.is_changed for one in run([2.0] * 10))
    assert list(run([5.0] * IN_A_ROW))[-1].is_changed
    later = list(run([*[0.0] * 20, *[5.0] * IN_A_ROW]))
    assert later[-1].is_changed


def test_the_bounds_follow_from_the_share_of_false_months() -> None:
    normal = NormalDist()
    share = 2 * FEATURES * normal.cdf(-window_bound(FEATURES))
    assert share**IN_A_ROW * 30 * DAY_WINDOWS == pytest.approx(FALSE_CHANGES)
    assert 2 * FEATURES * normal.cdf(-day_bound(FEATURES)) * 30 == pytest.approx(FALSE_CHANGES)


def test_a_fallen_confidence_is_a_loss_and_a_small_fall_is_none() -> None:
    before = learnt(CONFIDENCE)
    for fall, loss in ((0.1, 0.15), (0.01, None)):
        states = list(run([0.9 - fall] * 10, CONFIDENCE, before))
        found = estimate_loss([(CONFIDENCE, states[-1])])
        assert found is None if loss is None else found == pytest.approx(loss, rel=0.3)


@pytest.mark.parametrize(("fall", "loss"), [(0.04, (0.06 * 0.5) ** 0.5), (0.0, None)])
@pytest.mark.parametrize("total", [1.0, 3.0])
def test_a_mix_of_classes_that_moves_raises_the_loss_of_a_fallen_confidence(
    fall: float, loss: float | None, total: float
) -> None:
    """Numbers of boxes are not shares of a whole: their loss is that of the confidence."""
    classes = [
        Feature(
            tensor="y",
            name=name,
            kind="class",
            words=name,
            mean=total / 2,
            spread=0.5,
            samples=300,
        )
        for name in ("cat", "dog")
    ]
    states = [
        (one, list(run([value] * 20, one, list(run([total / 2] * DAY_WINDOWS, one))[-1]))[-1])
        for one, value in zip(classes, (total, 0.0), strict=True)
    ]
    fallen = list(run([0.9] * DAY_WINDOWS + [0.9 - fall] * 20, CONFIDENCE))[-1]
    found = estimate_loss([*states, (CONFIDENCE, fallen)])
    expected = loss if loss is None or total == 1.0 else 0.06
    assert found == (None if expected is None else pytest.approx(expected, rel=0.1))


def test_a_change_of_inputs_without_a_fall_of_confidence_does_no_harm() -> None:
    changed = list(run([3.0] * 10, LEVEL, learnt()))[-1]
    assert changed.is_changed
    assert estimate_loss([(LEVEL, changed), (CONFIDENCE, learnt(CONFIDENCE))]) is None


def test_a_watch_closes_windows_by_time_and_inferences_and_keeps_them_in_its_file() -> None:
    now = 0.0
    watch = DriftWatch(clock=lambda: now)
    rng = np.random.default_rng(3)

    def add(level: float, count: int) -> None:
        nonlocal now
        now += WINDOW_S / 2
        values = {LEVEL: level, CONFIDENCE: 0.9 + 0.1 * level}
        watch.add(
            RELEASE,
            [
                FeatureSum(feature=one, count=count, total=count * value)
                for one, value in values.items()
            ],
        )

    for _ in range(2 * DAY_WINDOWS + 2):
        add(float(rng.normal(0.0, 0.1)), WINDOW_INFERENCES // 2)
    (state,) = watch.states
    assert state.features[0].windows.learnt == DAY_WINDOWS
    restarted = DriftWatch(clock=lambda: now)
    restarted.load(watch.states)
    watch = restarted
    for _ in range(2 * IN_A_ROW + 2):
        add(-1.5, WINDOW_INFERENCES // 2)
    drift = watch.recent(RELEASE[0])
    assert drift is not None
    assert {one.words for one in drift.features if one.is_change} == {"level", "confidence"}
    assert drift.loss == pytest.approx(0.15 * 1.5, rel=0.5)


def test_a_new_release_knows_how_much_its_inputs_vary_here() -> None:
    now = 0.0
    watch = DriftWatch(clock=lambda: now)
    for release in (RELEASE, ("e" * 64, *RELEASE[1:])):
        for _ in range(3):
            now += WINDOW_S
            watch.add(release, [FeatureSum(feature=LEVEL, count=100, total=0.0)])
    first, second = (one.features[0].windows.learnt for one in watch.states)
    assert (first, second) == (2, 4)
