"""Gates: proven regressions stop a rollout, noise does not, and missing evidence is reported."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.fleet.database.changes import Changes
from edgepack.fleet.database.measurements import AWAITED, COMMITTED, ClassCounts, look_name
from edgepack.fleet.documents.gates import BY_NAME, Found, GateView
from edgepack.fleet.documents.wording import gate_numbers
from edgepack.fleet.rollouts.gates import (
    WAVE_END,
    Plan,
    awaited,
    evidence_key,
    find,
    hold_key,
    judge,
    key,
    missing_evidence,
)
from edgepack.fleet.rollouts.rules import Await, Breach, Finish, Offer, Stop, decide
from tests.unit.fleet.test_rules import rollout, waves_of

PLAN = Plan({}, waves=3)


def found_of(name: str, *numbers: float, plan: Plan = PLAN, controls: int = 40) -> Found:
    gate = BY_NAME[name]
    of = controls if gate.is_timed else None
    before = math.log(8.0) if gate.comparison == "ratio" else 0.0
    changes = Changes(numbers, (before,) * len(numbers), 0, of)
    return find(gate, changes, plan, gate.noise, plan.share([(1, WAVE_END)]))


def view_of(
    name: str, *numbers: float, plan: Plan = PLAN, is_settled: bool = True, controls: int = 40
) -> GateView:
    found = {"a": {name: found_of(name, *numbers, plan=plan, controls=controls)}}
    views = judge(plan, found, {"a"} if is_settled else set())
    return next(view for view in views if view.name == name)


SLOWER = [math.log(ratio) for ratio in (1.36, 1.40, 1.33, 1.42, 1.38, 1.35)]


def test_a_third_slower_on_six_devices_is_a_breach_with_its_numbers() -> None:
    view = view_of("p95", *SLOWER)
    assert view.verdict == "breach"
    assert (view.hardware_class, view.devices, view.controls, view.threshold) == ("a", 6, 40, 1.10)
    assert view.value is not None
    assert view.bound is not None
    assert view.value == pytest.approx(1.37, abs=0.01)
    assert 1.10 < view.bound < view.value
    assert view.before == pytest.approx(8.0)
    assert view.now == pytest.approx(8.0 * view.value)
    assert view.because.startswith("1.37 x over 6 devices against 40 controls, 1.2")
    assert "without controls" in view_of("p95", *SLOWER, controls=0).because


def test_a_breach_that_a_person_accepted_is_none_but_is_shown() -> None:
    plan = PLAN._replace(accepted=frozenset({"p95/a"}))
    assert view_of("p95", *SLOWER, plan=plan).verdict == "accepted"


def test_the_plan_says_what_is_let_pass() -> None:
    loose, off = PLAN._replace(thresholds={"p95": 1.5}), PLAN._replace(thresholds={"p95": None})
    assert view_of("p95", *SLOWER, plan=loose).verdict == "pass"
    assert view_of("p95", *SLOWER, plan=off).verdict == "off"
    assert view_of("drift", *[0.9] * 6).verdict == "off"
    drift = PLAN._replace(thresholds={"drift": 0.1})
    assert view_of("drift", *[0.9] * 6, plan=drift).verdict == "breach"


def test_the_error_probability_is_shared_by_gates_classes_and_looks() -> None:
    assert len(PLAN.gates) == 8
    spent = PLAN.alpha() + sum(PLAN.alpha(gate.weight) for gate in PLAN.gates)
    assert spent == pytest.approx(0.025)
    assert PLAN._replace(classes=3).alpha() == pytest.approx(PLAN.alpha() / 3)
    looks = [(wave, look) for wave in range(PLAN.waves) for look in range(WAVE_END + 1)]
    assert sum(PLAN.share([look]) for look in looks) == pytest.approx(PLAN.share(looks))
    assert PLAN.share(looks) == pytest.approx(1.0)
    assert PLAN._replace(waves=1).share(looks[: WAVE_END + 1]) == pytest.approx(1.0)


def test_shadow_agreement_is_judged_as_it_stands() -> None:
    """The measure compares with the previous release already, independent of the previous release's
    own measure.
    """
    view = view_of("shadow", *[0.4] * 6)
    assert (view.verdict, view.comparison, view.before) == ("breach", "share", None)
    assert view.now == pytest.approx(0.4)
    assert view.because.startswith("40.0% of inferences with other answers over 6 devices, ")
    assert view.because.endswith("5.0% is let pass")
    assert gate_numbers(view)[:3] == ("", "40.0%", "")


def test_golden_and_shadow_are_worded_by_the_answers_of_the_task() -> None:
    plan = PLAN._replace(items="boxes")
    found = {"a": {name: found_of(name, *[0.2] * 5) for name in ("golden", "shadow", "p95")}}
    because = {view.name: view.because for view in judge(plan, found, {"a"})}
    assert because["golden"].startswith("+20.0 points of boxes lost over 5 devices")
    assert because["shadow"].startswith("20.0% of inferences with other boxes over 5 devices")
    assert "boxes" not in because["p95"]


def test_what_is_not_known_is_said_and_never_passes_in_silence() -> None:
    none = {view.name: view.verdict for view in judge(PLAN, {}, ())}
    assert none == dict.fromkeys(BY_NAME, "no evidence") | dict.fromkeys(
        ("drift", "energy", "first_token"), "off"
    )
    (view,) = [
        view for view in judge(PLAN, {"a": {"p95": Found(unbased=3)}}, ()) if view.name == "p95"
    ]
    assert view.verdict == "no baseline"
    assert view.because == "3 devices measured it, and nothing is known of the release before"


def test_classes_are_judged_each_by_itself() -> None:
    found = {"a": {"p95": found_of("p95", *SLOWER)}, "b": {"p95": found_of("p95", 0.0, 0.1, -0.1)}}
    views = [view for view in judge(PLAN, found, {"a", "b"}) if view.name == "p95"]
    assert [(view.hardware_class, view.verdict) for view in views] == [
        ("a", "breach"),
        ("b", "pass"),
    ]


@pytest.mark.parametrize("heat", [1.0, 1.2])
@pytest.mark.parametrize(("slower", "found_least", "found_most"), [(1.1, 0, 1), (1.4, 90, 100)])
def test_heat_common_to_all_devices_stops_nothing_and_hides_nothing(
    heat: float, slower: float, found_least: int, found_most: int
) -> None:
    rng = np.random.default_rng(3)
    breaches = 0
    for _ in range(100):
        controls = math.log(heat) + rng.normal(0, 0.055, 10)
        devices = math.log(heat * slower) + rng.normal(0, math.hypot(0.055, 0.05), 12)
        numbers = [float(one) for one in devices - controls.mean()]
        breaches += view_of("p95", *numbers, controls=10).verdict == "breach"
    assert found_least <= breaches <= found_most


@given(
    st.lists(st.floats(-2, 2), min_size=3, max_size=20),
    st.floats(0.001, 0.9),
    st.sampled_from(sorted(BY_NAME)),
)
def test_a_breach_means_that_the_bound_is_beyond_what_is_let_pass(
    numbers: list[float], threshold: float, name: str
) -> None:
    gate = BY_NAME[name]
    if gate.method != "mean":
        numbers = [abs(one) / 2 for one in numbers]
    let_pass = 1.0 + threshold if gate.comparison == "ratio" else threshold
    view = view_of(name, *numbers, plan=PLAN._replace(thresholds={name: let_pass}))
    assert view.bound is not None
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
    ("gate", "numbers", "verdict"),
    [
        ("p95", [math.log(2.0)], "hold"),
        ("p95", [math.log(1.40)], "too few"),  # one device varies so much by itself
        ("p95", [math.log(1.7), math.log(1.7)], "hold"),
        ("p95", [math.log(2.0)] * 3, "breach"),
        ("p99", [math.log(2.8)], "too few"),  # bursts of slow inferences
        ("p99", [math.log(20.0)], "hold"),
        ("memory", [math.log(1.30)], "too few"),
        ("memory", [math.log(1.80)], "hold"),
        ("fallbacks", [1.0], "hold"),
        ("fallbacks", [0.0], "too few"),
        ("fallbacks", [1.0, 1.0, 0.0], "pass"),  # does not prove more than 10 % of devices
        ("fallbacks", [1.0] * 5, "breach"),
        ("golden", [0.2, 0.2], "hold"),
        ("golden", [0.2] * 3, "breach"),
        ("errors", [0.005], "too few"),
        ("errors", [0.2], "hold"),
        ("errors", [0.2] * 4, "breach"),
        ("shadow", [0.4], "hold"),
        ("temperature", [20.0], "too few"),  # a hot day
        ("temperature", [40.0], "hold"),
    ],
)
def test_one_or_two_devices_that_measured_a_breach_hold_a_rollout(
    gate: str, numbers: list[float], verdict: str
) -> None:
    view = view_of(gate, *numbers)
    assert view.verdict == verdict
    if len(numbers) < 3:
        assert view_of(gate, *numbers, is_settled=False).verdict == "too few"
    for accepted in (key(gate, "a"), hold_key(gate, "a")):
        plan = PLAN._replace(accepted=frozenset({accepted}))
        is_seen = verdict == "hold" and accepted == hold_key(gate, "a")
        is_seen |= verdict == "breach" and accepted == key(gate, "a")
        assert view_of(gate, *numbers, plan=plan).verdict == ("accepted" if is_seen else verdict)


@pytest.mark.parametrize("on_breach", ["pause", "abort", "rollback"])
def test_a_hold_pauses_whatever_a_breach_does_and_a_breach_comes_first(on_breach: Any) -> None:
    asked = rollout(on_breach=on_breach)
    classes = {"a": waves_of("0:COMMITTED 1:WAITING")}
    slow = {"p95": found_of("p95", 1.0)}
    hold = decide(asked, classes, judge(PLAN, {"a": slow}, {"a"}))
    assert isinstance(hold, Breach)
    assert (hold.action, hold.gate) == ("pause", "p95")
    both = slow | {"golden": found_of("golden", *[0.5] * 3)}
    breach = decide(asked, classes, judge(PLAN, {"a": both}, {"a"}))
    assert isinstance(breach, Breach)
    assert (breach.action, breach.gate) == (on_breach, "golden")


def told(measured: int, ran_before: int) -> dict[str, int]:
    return {look_name(0): measured, COMMITTED: ran_before}


@pytest.mark.parametrize(
    ("plan", "waves", "said"),
    [
        (PLAN, [told(1, 1)], ""),
        (PLAN, [told(0, 1)], "too few measured p95: 0 of 1 device of a"),
        (PLAN, [told(2, 12)], "too few measured p95: 2 of 12 devices of a"),
        (PLAN, [told(3, 12)], ""),
        (PLAN, [told(2, 2), told(1, 10)], ""),  # all waves so far count
        (PLAN, [told(0, 0)], ""),  # nothing ran before: there is nothing to compare with
        (PLAN._replace(needs_evidence=False), [told(0, 1)], ""),
        (PLAN._replace(accepted=frozenset({evidence_key(0)})), [told(0, 1)], ""),
        (PLAN._replace(accepted=frozenset({evidence_key(1)})), [told(0, 1)], "too few measured"),
        (Plan({"p95": None, "p99": None}), [told(0, 1)], "too few measured"),
        (Plan({"p95": None, "p99": None, "errors": None}), [told(0, 1)], ""),
    ],
)
def test_a_wave_needs_three_devices_that_measured_or_all_of_them(
    plan: Plan, waves: list[dict[str, int]], said: str
) -> None:
    lacks = missing_evidence(plan, {"a": tuple(waves)}, len(waves) - 1, 600.0)
    assert lacks.startswith(said)
    assert bool(lacks) == bool(said)


def test_devices_of_the_waves_so_far_are_awaited() -> None:
    counts: ClassCounts = {"a": ({AWAITED: 2}, {AWAITED: 1}), "b": ({},)}
    assert (awaited(counts, 0), awaited(counts, 1)) == (2, 3)


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


def test_gate_of_first_tokens_is_on_for_models_that_write_texts_alone() -> None:
    gate, plain = BY_NAME["first_token"], Plan({})
    of_texts = Plan({}, items="classes and tokens")
    assert (plain.threshold(gate), of_texts.threshold(gate)) == (None, gate.threshold)
    assert Plan({"first_token": 1.5}).threshold(gate) == 1.5
    assert plain.alpha() > of_texts.alpha(), "it takes nothing from the gates of other models"
