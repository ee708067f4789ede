"""Gates: proven regressions stop a rollout, noise does not, and missing evidence is reported."""

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.fleet.database.measurements import AWAITED, AWAITED_DRIFT, ClassSums, WaveSums
from edgepack.fleet.documents.gates import BY_NAME, GateView
from edgepack.fleet.documents.wording import gate_numbers
from edgepack.fleet.rollouts.bounds import mean_of, quantile
from edgepack.fleet.rollouts.gates import (
    Plan,
    awaited,
    evidence_key,
    hold_key,
    judge,
    key,
    missing_evidence,
)
from edgepack.fleet.rollouts.rules import Await, Breach, Finish, Offer, Stop, decide
from tests.unit.fleet.test_rules import rollout, waves_of

PLAN = Plan({}, 5)
ALL = frozenset({"a", "b"})


def sums_of(changes: Sequence[float], before: float = 0.0, unbased: int = 0) -> WaveSums:
    return WaveSums(
        len(changes),
        unbased,
        sum(changes),
        sum(change * change for change in changes),
        before * len(changes),
    )


def view_of(name: str, *waves: WaveSums, plan: Plan = PLAN, is_over: bool = True) -> GateView:
    sums = {"a": tuple({name: one} for one in waves)}
    views = judge(plan, sums, len(waves) - 1, ALL if is_over else frozenset())
    return next(view for view in views if view.name == name)


SLOWER = [math.log(ratio) for ratio in (1.27, 1.33, 1.29, 1.36, 1.25)]


@pytest.mark.parametrize(
    ("devices", "expected"), [(2, 12.706), (5, 2.776), (31, 2.042), (61, 2.000), (1001, 1.962)]
)
def test_quantiles_are_those_of_the_tables(devices: int, expected: float) -> None:
    assert quantile(devices - 1) == pytest.approx(expected, abs=0.001)


def test_a_bound_holds_in_39_of_40_cases() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(5000):
        numbers = [rng.gauss(1.0, 0.3) for _ in range(5)]
        held += mean_of(5, sum(numbers), sum(x * x for x in numbers)).bound <= 1.0
    assert held / 5000 == pytest.approx(0.975, abs=0.006)


def test_thirty_percent_slower_on_five_devices_is_a_breach_with_its_numbers() -> None:
    view = view_of("p95", sums_of(SLOWER, math.log(8.0)))
    assert view.verdict == "breach"
    assert (view.hardware_class, view.devices, view.threshold) == ("a", 5, 1.10)
    assert view.value is not None
    assert view.bound is not None
    assert view.value == pytest.approx(1.30, abs=0.01)
    assert 1.10 < view.bound < view.value
    assert view.before == pytest.approx(8.0)
    assert view.now == pytest.approx(8.0 * view.value)
    assert view.because.startswith("1.30 x over 5 devices, 1.2")


def test_a_breach_that_a_person_accepted_is_none_but_is_shown() -> None:
    plan = Plan({}, 5, frozenset({"p95/a"}))
    assert view_of("p95", sums_of(SLOWER), plan=plan).verdict == "accepted"


def test_the_plan_says_what_is_let_pass() -> None:
    assert view_of("p95", sums_of(SLOWER), plan=Plan({"p95": 1.5}, 5)).verdict == "pass"
    assert view_of("p95", sums_of(SLOWER), plan=Plan({"p95": None}, 5)).verdict == "off"


def test_drift_is_judged_and_waited_for_where_the_plan_asks_for_it_and_is_shown_anyway() -> None:
    asked = Plan({"drift": 0.1}, 5)
    risen: ClassSums = {"class": ({"drift": WaveSums(5, 0, 2.5, 1.251, 0.5)},)}
    (breach,) = [view for view in judge(asked, risen, 0, ALL) if view.name == "drift"]
    (off,) = [view for view in judge(PLAN, risen, 0, ALL) if view.name == "drift"]
    assert (breach.verdict, off.verdict) == ("breach", "off")
    assert off.now == breach.now == pytest.approx(0.6)
    waiting: ClassSums = {"class": ({AWAITED_DRIFT: WaveSums(devices=2)},)}
    assert (awaited(asked, waiting, 0), awaited(PLAN, waiting, 0)) == (2, 0)
    late: ClassSums = {"class": ({AWAITED: WaveSums(devices=2)},)}
    assert (awaited(asked, late, 0), awaited(PLAN, late, 0)) == (2, 2)


def test_shadow_agreement_is_judged_as_it_stands() -> None:
    """The measure compares with the previous release already, independent of the previous release's
    own measure.
    """
    view = view_of("shadow", sums_of([0.11, 0.12, 0.13, 0.12, 0.12]))
    assert (view.verdict, view.comparison, view.before) == ("breach", "share", None)
    assert view.now == pytest.approx(0.12)
    assert view.because.startswith("12.0% of inferences with other answers over 5 devices, 11.")
    assert view.because.endswith("5.0% is let pass")
    assert gate_numbers(view)[:3] == ("", "12.0%", "")


def test_golden_and_shadow_are_worded_by_the_answers_of_the_task() -> None:
    plan = Plan({}, 5, items="boxes")
    sums: ClassSums = {"a": ({name: sums_of([0.2] * 5) for name in ("golden", "shadow", "p95")},)}
    because = {view.name: view.because for view in judge(plan, sums, 0, ALL)}
    assert because["golden"].startswith("+20.0 points of boxes lost over 5 devices")
    assert because["shadow"].startswith("20.0% of inferences with other boxes over 5 devices")
    assert "boxes" not in because["p95"]
    assert view_of("shadow", sums_of([0.01, 0.02, 0.03])).verdict == "pass"


def test_what_is_not_known_is_said_and_never_passes_in_silence() -> None:
    none = {view.name: view.verdict for view in judge(PLAN, {}, 0, ALL)}
    assert none == dict.fromkeys(BY_NAME, "no evidence") | {"drift": "off"}
    view = view_of("p95", sums_of([], unbased=3))
    assert view.verdict == "no baseline"
    assert view.because == "3 devices measured it, and nothing is known of the release before"
    one = view_of("p95", sums_of(SLOWER[:1]))
    assert one.verdict == "too few"
    assert one.because.startswith("1.27 x over 1 device")
    assert one.because.endswith("3 devices are needed")


def test_a_wave_under_way_needs_its_sample_one_that_is_over_does_not() -> None:
    four = sums_of(SLOWER[:4])
    assert view_of("p95", four, is_over=False).verdict == "too few"
    assert view_of("p95", four, is_over=True).verdict == "breach"


def test_waves_before_count_where_the_last_has_too_few_devices() -> None:
    canary, equal = sums_of(SLOWER[:1]), sums_of([0.0] * 5)
    assert view_of("p95", canary, sums_of(SLOWER[1:])).devices == 5
    assert view_of("p95", equal, sums_of(SLOWER)).verdict == "breach", "not thinned by the first"


def test_classes_are_judged_each_by_itself() -> None:
    sums: ClassSums = {
        "a": ({"p95": sums_of(SLOWER)},),
        "b": ({"p95": sums_of([0.0, 0.01, -0.01])},),
    }
    views = [view for view in judge(PLAN, sums, 0, ALL) if view.name == "p95"]
    assert [(view.hardware_class, view.verdict) for view in views] == [
        ("a", "breach"),
        ("b", "pass"),
    ]


def a_device(rng: random.Random, slower: float) -> float:
    """Return the logarithm of a device's p95 relative to before: 200 inferences each, its own
    noise.
    """

    def p95(median_ms: float) -> float:
        drawn = sorted(rng.lognormvariate(0.0, 0.25) * median_ms for _ in range(200))
        return drawn[189]

    own = rng.lognormvariate(0.0, 0.15)
    now = own * slower * rng.lognormvariate(0.0, 0.04)  # a warmer day, another load
    return math.log(p95(now) / p95(own * rng.lognormvariate(0.0, 0.04)))


@pytest.mark.parametrize("devices", [3, 5, 12])
def test_equal_speed_and_noise_passes_100_of_100_times(devices: int) -> None:
    rng = random.Random(devices)
    verdicts = [
        view_of("p95", sums_of([a_device(rng, 1.0) for _ in range(devices)])).verdict
        for _ in range(100)
    ]
    assert verdicts == ["pass"] * 100


@pytest.mark.parametrize(("devices", "least"), [(5, 85), (8, 99)])
def test_thirty_percent_slower_is_found_by_a_handful(devices: int, least: int) -> None:
    rng = random.Random(devices)
    found = sum(
        view_of("p95", sums_of([a_device(rng, 1.3) for _ in range(devices)])).verdict == "breach"
        for _ in range(100)
    )
    assert found >= least


@settings(deadline=None)
@given(
    st.lists(st.floats(-2, 2), min_size=3, max_size=20),
    st.floats(0, 2),
    st.sampled_from(sorted(BY_NAME)),
)
def test_a_breach_means_that_the_mean_is_beyond_what_is_let_pass(
    changes: list[float], threshold: float, name: str
) -> None:
    is_ratio = BY_NAME[name].comparison == "ratio"
    let_pass = 1.0 + threshold if is_ratio else threshold
    view = view_of(name, sums_of(changes), plan=Plan({name: let_pass}, 5))
    assert view.value is not None
    assert view.bound is not None
    assert view.bound <= view.value + 1e-8
    assert (view.verdict == "breach") == (view.bound > let_pass)


BREACH = GateView(
    name="p95",
    hardware_class="a",
    threshold=1.1,
    comparison="ratio",
    unit="ms",
    devices=5,
    value=1.3,
    bound=1.2,
    before=8.0,
    now=10.4,
    verdict="breach",
    because="1.30 x over 5 devices",
)
DONE, HALF = "0:COMMITTED 1:WAITING", "0:COMMITTED 1:COMMITTED"


@pytest.mark.parametrize(
    ("what", "asked", "of_a", "of_b", "expected"),
    [
        ("a breach stops all", {}, DONE, DONE, Breach),
        ("a breach comes before the end", {"wave": 1}, HALF, HALF, Breach),
        ("a paused one does not finish over it", {"state": "PAUSED"}, HALF, HALF, None),
        ("one class alone where it is split", {"is_split": True}, DONE, DONE, Breach),
        (
            "the others go on beside one that is held back",
            {"is_split": True, "held": frozenset("a")},
            DONE,
            DONE,
            Offer(wave=1, devices=1),
        ),
        (
            "when the others are done a person has to say what becomes of it",
            {"is_split": True, "held": frozenset("a"), "wave": 1},
            DONE,
            HALF,
            Stop(because="1 device of a held back, others are done"),
        ),
        (
            "it is done when those held back are taken out",
            {"is_split": True, "held": frozenset("a"), "wave": 1},
            "0:RECALLED 1:WITHDRAWN",
            HALF,
            Finish(because="2 of 4 devices committed, 0 failed or stayed silent; held back: a"),
        ),
    ],
)
def test_decisions_on_measurements(
    what: str, asked: dict[str, Any], of_a: str, of_b: str, expected: Any
) -> None:
    it = rollout(**{key: asked[key] for key in asked.keys() & {"wave", "state"}})
    rest = {key: value for key, value in asked.items() if key not in ("wave", "state")}
    it = type(it)(**{name: getattr(it, name) for name in it.__struct_fields__} | rest)
    decided = decide(it, {"a": waves_of(of_a), "b": waves_of(of_b)}, [BREACH])
    if expected is Breach:
        assert isinstance(decided, Breach), what
        assert decided.hardware_class == ("a" if it.is_split else None)
        assert decided.because == "p95 of a: 1.30 x over 5 devices"
    else:
        assert decided == expected, what


@pytest.mark.parametrize("wave", [0, 1])
def test_measurements_are_waited_for_before_the_next_wave_and_before_the_end(wave: int) -> None:
    it = rollout(wave=wave)
    waiting = type(it)(**{n: getattr(it, n) for n in it.__struct_fields__} | {"waits": True})
    classes = {"a": waves_of(DONE if wave == 0 else HALF)}
    assert decide(waiting, classes) == Await(reason="measurements")
    assert isinstance(decide(it, classes), (Offer, Finish))


def test_failures_of_a_class_hold_it_back_alone_where_it_is_split() -> None:
    it = rollout()
    split = type(it)(**{n: getattr(it, n) for n in it.__struct_fields__} | {"is_split": True})
    classes = {"a": waves_of("0:COMMITTED 1:WAITING"), "b": waves_of("0:FAILED 1:WAITING")}
    decided = decide(split, classes)
    assert isinstance(decided, Breach)
    assert (decided.gate, decided.hardware_class) == ("failures", "b")
    assert decided.because.startswith("1 of 1 decided device of b of wave 1 failed")


@pytest.mark.parametrize(
    ("gate", "changes", "verdict"),
    [
        ("p95", [math.log(2.53)], "hold"),
        ("p95", [math.log(1.30)], "hold"),
        ("p95", [math.log(1.20)], "too few"),  # one device varies so much by itself
        ("p95", [math.log(1.25), math.log(1.25)], "hold"),
        ("p95", [math.log(2.53), math.log(0.9)], "hold"),
        ("p95", [math.log(2.5)] * 3, "breach"),
        ("memory", [math.log(1.30)], "too few"),
        ("memory", [math.log(1.50)], "hold"),
        ("fallbacks", [1.0], "hold"),
        ("fallbacks", [0.0], "too few"),
        ("golden", [0.2, 0.2], "hold"),
        ("errors", [0.005], "too few"),
        ("errors", [0.2], "hold"),
        ("shadow", [0.4], "hold"),
        ("shadow", [0.08], "too few"),  # 5 of 60, where 3 are let pass
        ("temperature", [15.0], "too few"),  # a warm day
        ("temperature", [25.0], "hold"),
    ],
)
def test_one_or_two_devices_that_measured_a_breach_hold_a_rollout(
    gate: str, changes: list[float], verdict: str
) -> None:
    view = view_of(gate, sums_of(changes))
    assert view.verdict == verdict
    assert view_of(gate, sums_of(changes), is_over=False).verdict == "too few"
    for accepted in (key(gate, "a"), hold_key(gate, "a")):
        plan = Plan({}, 5, frozenset({accepted}))
        is_seen = verdict == "hold" and accepted == hold_key(gate, "a")
        is_seen |= verdict == "breach" and accepted == key(gate, "a")
        assert view_of(gate, sums_of(changes), plan=plan).verdict == (
            "accepted" if is_seen else verdict
        )


@pytest.mark.parametrize("on_breach", ["pause", "abort", "rollback"])
def test_a_hold_pauses_whatever_a_breach_does_and_a_breach_comes_first(on_breach: Any) -> None:
    asked = rollout(on_breach=on_breach)
    classes = {"a": waves_of("0:COMMITTED 1:WAITING")}
    slow: ClassSums = {"a": ({"p95": sums_of([1.0])},)}
    hold = decide(asked, classes, judge(PLAN, slow, 0, ALL))
    assert isinstance(hold, Breach)
    assert (hold.action, hold.gate) == ("pause", "p95")
    both: ClassSums = {"a": ({"p95": sums_of([1.0]), "golden": sums_of([0.5] * 3)},)}
    breach = decide(asked, classes, judge(PLAN, both, 0, ALL))
    assert isinstance(breach, Breach)
    assert (breach.action, breach.gate) == (on_breach, "golden")


def told(measured: int, ran_before: int, gate: str = "p95") -> dict[str, WaveSums]:
    return {gate: WaveSums(devices=measured), "fallbacks": WaveSums(devices=ran_before)}


@pytest.mark.parametrize(
    ("plan", "waves", "said"),
    [
        (Plan({}, 5), [told(1, 1)], ""),
        (Plan({}, 5), [told(0, 1)], "too few measured p95: 0 of 1 device of a"),
        (Plan({}, 5), [told(2, 12)], "too few measured p95: 2 of 12 devices of a"),
        (Plan({}, 5), [told(3, 12)], ""),
        (Plan({}, 5), [told(2, 2), told(1, 10)], ""),  # all waves so far count
        (Plan({}, 5), [told(0, 0)], ""),  # nothing ran before: there is nothing to compare with
        (Plan({}, 5, needs_evidence=False), [told(0, 1)], ""),
        (Plan({}, 5, frozenset({evidence_key(0)})), [told(0, 1)], ""),
        (Plan({}, 5, frozenset({evidence_key(1)})), [told(0, 1)], "too few measured p95"),
        (Plan({"p95": None}, 5), [told(0, 1, "p99")], "too few measured p99"),
        (Plan({"p95": None, "p99": None}, 5), [told(0, 1, "errors")], "too few measured errors"),
        (Plan(dict.fromkeys(BY_NAME), 5), [told(0, 1)], ""),
    ],
)
def test_a_wave_needs_three_devices_that_measured_or_all_of_them(
    plan: Plan, waves: list[dict[str, WaveSums]], said: str
) -> None:
    lacks = missing_evidence(plan, {"a": tuple(waves)}, len(waves) - 1)
    assert lacks.startswith(said)
    assert bool(lacks) == bool(said)


def test_without_evidence_the_next_wave_waits_and_the_last_one_ends() -> None:
    lacks = "too few measured p95: 0 of 1 device of a"
    asked = msgspec.structs.replace(rollout(), lacks=lacks)
    waiting = {"a": waves_of("0:COMMITTED 1:WAITING")}
    assert decide(asked, waiting) == Await(reason="evidence", because=lacks)
    approves = msgspec.structs.replace(asked, approved=0)
    assert decide(approves, waiting) == Await(reason="approval", because=lacks)
    approved = msgspec.structs.replace(asked, approved=1)
    assert decide(approved, waiting) == Offer(wave=1, devices=1)
    last = msgspec.structs.replace(asked, wave=1)
    assert isinstance(decide(last, {"a": waves_of("0:COMMITTED 1:COMMITTED")}), Finish)


def _measured(draws: random.Random, count: int, share: float, length: int) -> list[float]:
    """Return latencies of one device, milliseconds, sorted: bursts of slow inferences."""
    latencies: list[float] = []
    slow = 0
    while len(latencies) < count:
        if not slow and draws.random() < share / length:
            slow = 1 + int(draws.expovariate(1 / length))
        latencies.append(draws.lognormvariate(0.0, 0.1) * (3.0 if slow else 1.0))
        slow = max(slow - 1, 0)
    return sorted(latencies)


def _p99_of_one(draws: random.Random, factor: float, share: float, length: int) -> GateView:
    before, now = (_measured(draws, 200, share, length) for _ in range(2))
    sums = sums_of([math.log(factor * now[198] / before[198])])
    views = judge(Plan({}, 1), {"a": ({"p99": sums},)}, 0, frozenset("a"), frozenset("a"))
    return next(view for view in views if view.name == "p99")


@pytest.mark.parametrize(("share", "length"), [(0.005, 5), (0.01, 5), (0.02, 5), (0.02, 20)])
def test_bursts_of_one_device_do_not_stop_an_equal_release_by_its_p99(
    share: float, length: int
) -> None:
    draws = random.Random(7)
    verdicts = [_p99_of_one(draws, 1.0, share, length).verdict for _ in range(500)]
    assert verdicts.count("hold") <= 5
    steady = [_p99_of_one(draws, 5.0, 0.0, 5).verdict for _ in range(20)]
    assert steady == ["hold"] * 20
