"""The gate of failures: noise stops nothing, certain failures stop a wave at once."""

import random
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.fleet.documents.gates import GateView
from edgepack.fleet.rollouts.counting import AssignmentState
from edgepack.fleet.rollouts.failures import Threshold, judge_failures
from edgepack.fleet.rollouts.statistics import ALPHA

RULE = Threshold(max_failed_share=0.1, min_sample=5, on_breach="pause", alpha=ALPHA / 21)


def judge(committed: int, failed: int, under_way: int, *, rule: Threshold = RULE) -> GateView:
    wave: Counter[AssignmentState] = Counter(
        {"COMMITTED": committed, "FAILED": failed, "WORKING": under_way}
    )
    (view,) = judge_failures(rule, {"": [wave]}, 0, accepted_failures=0, accepted=frozenset())
    return view


@cache
def _is_breached(committed: int, failed: int, under_way: int) -> bool:
    return judge(committed, failed, under_way).verdict == "breach"


def stops_after(devices: int, failing: float, seed: int) -> int | None:
    """Return the number of decided devices at the stop of a wave evaluated after each device; None:
    never.

    Once there is a sample, only a failure can bring a breach: commits are not evaluated.

    Args:
        devices: Of the wave.
        failing: Share of failing devices.
        seed: Of the order of decisions.
    """
    fails = [n < round(devices * failing) for n in range(devices)]
    random.Random(seed).shuffle(fails)
    failed = 0
    for decided, one in enumerate(fails, 1):
        failed += one
        is_evaluated = one or decided <= RULE.min_sample
        if is_evaluated and _is_breached(decided - failed, failed, devices - decided):
            return decided
    return None


@given(committed=st.integers(0, 300), failed=st.integers(0, 60), under_way=st.integers(1, 600))
def test_a_commit_never_brings_a_breach_once_there_is_a_sample(
    committed: int, failed: int, under_way: int
) -> None:
    if committed + failed >= RULE.min_sample and not _is_breached(committed, failed, under_way):
        assert not _is_breached(committed + 1, failed, under_way - 1)


@pytest.mark.parametrize(
    ("devices", "failing"), [(300, 0.05), (100, 0.04), (40, 0.025), (1000, 0.07)]
)
def test_a_wave_of_noise_passes_100_of_100(devices: int, failing: float) -> None:
    stopped = [seed for seed in range(100) if stops_after(devices, failing, seed)]
    assert not stopped


@pytest.mark.parametrize("seed", range(20))
def test_a_wave_of_which_a_third_fails_is_stopped_early(seed: int) -> None:
    stopped = stops_after(1000, 0.33, seed)
    assert stopped is not None
    assert stopped <= 100


@given(
    devices=st.integers(1, 40),
    failed=st.integers(0, 40),
    share=st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0]),
)
def test_a_wave_that_is_over_is_judged_by_its_share_as_it_stands(
    devices: int, failed: int, share: float
) -> None:
    failed = min(failed, devices)
    rule = Threshold(max_failed_share=share, min_sample=5, on_breach="pause")
    view = judge(devices - failed, failed, 0, rule=rule)
    assert view.verdict == ("breach" if failed / devices > share else "pass")
    assert view.bound is None


@given(
    committed=st.integers(0, 60),
    failed=st.integers(0, 60),
    under_way=st.integers(1, 60),
    share=st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0]),
)
def test_what_can_only_end_in_a_breach_is_one_once_there_is_a_sample(
    committed: int, failed: int, under_way: int, share: float
) -> None:
    rule = Threshold(max_failed_share=share, min_sample=5, on_breach="pause")
    view = judge(committed, failed, under_way, rule=rule)
    best = failed / (committed + failed + under_way)
    if best > share:
        assert view.verdict == ("breach" if committed + failed >= 5 else "too few")
    elif view.verdict == "breach":
        assert view.bound is not None
        assert view.bound > share


def test_few_failures_of_a_large_wave_say_what_they_prove() -> None:
    view = judge(4, 1, 95)
    assert view.verdict == "pass"
    assert view.because == (
        "1 of 5 decided devices of wave 1 failed or stayed silent (20%); of so few that does not "
        "prove more than the 10% that is let pass"
    )
    assert judge(1, 5, 94).verdict == "breach"
    assert judge(1, 4, 95).verdict == "pass", "of so many looks it does not prove more than 10 %"
    assert judge(4, 1, 4).verdict == "breach", "more than one of nine may not fail"
