"""Counts of recent inferences by outcome, and warnings."""

import pytest

from edgepack.agent.telemetry.outcomes import (
    FEWEST_INFERENCES,
    OLDEST_S,
    RECENT_S,
    OutcomeWatch,
    describe_failures,
)
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.reports import Outcomes
from edgepack.wire.telemetry import Telemetry


def window(finished: int, failures: int = 0, not_finite: int = 0, digest: str = "d") -> Telemetry:
    latency = LatencyRecorder()
    for _ in range(finished):
        latency.record(1.0)
    return Telemetry(
        digest=digest,
        variant="cpu",
        provider="CPUExecutionProvider",
        window_start=0.0,
        window_s=1.0,
        latency=latency.snapshot(),
        failures=failures,
        not_finite=not_finite,
    )


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (Outcomes(), ""),
        (Outcomes(inferences=1000), ""),
        (Outcomes(inferences=1000, failed=10, not_finite=10), ""),
        (Outcomes(inferences=1000, failed=11), "more than 1% of recent inferences failed"),
        (Outcomes(inferences=3, failed=1), "more than 10% of recent inferences failed"),
        (Outcomes(inferences=984, failed=984), "all recent inferences failed"),
        (Outcomes(inferences=1, not_finite=1), "all recent inferences gave NaN or infinity"),
        (
            Outcomes(inferences=10, failed=6, not_finite=2),
            "more than 50% of recent inferences failed, "
            "more than 10% of recent inferences gave NaN or infinity",
        ),
    ],
)
def test_device_warns_by_the_magnitude_of_failures(outcomes: Outcomes, words: str) -> None:
    assert describe_failures(outcomes) == words


def test_old_inferences_are_forgotten_once_there_are_enough_newer_ones() -> None:
    watch = OutcomeWatch()
    assert watch.recent("d", 0.0) is None
    watch.add(window(0, failures=5), 0.0)
    watch.add(window(FEWEST_INFERENCES - 1), 1.0)
    assert watch.recent("d", RECENT_S + 2) == Outcomes(inferences=FEWEST_INFERENCES + 4, failed=5)
    watch.add(window(1), RECENT_S + 2)
    assert watch.recent("d", RECENT_S + 3) == Outcomes(inferences=FEWEST_INFERENCES)
    assert watch.recent("d", OLDEST_S + RECENT_S + 3) is None


def test_each_release_has_its_own_outcomes_and_many_releases_are_forgotten() -> None:
    watch = OutcomeWatch()
    watch.add(window(1, not_finite=1), 0.0)
    for number in range(63):
        watch.add(window(2, digest=str(number)), 0.0)
    assert watch.recent("d", 1.0) == Outcomes(inferences=1, not_finite=1)
    watch.add(window(2, digest="one more"), 0.0)
    assert watch.recent("d", 1.0) is None
