"""The rules of a rollout, as tables and as properties."""

from collections import Counter, defaultdict
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.errors import FleetError
from edgepack.fleet.documents.audit import Number
from edgepack.fleet.documents.rollouts import OnBreach
from edgepack.fleet.rollouts.counting import (
    DECIDED,
    FAILURES,
    UNDECIDED,
    AssignmentState,
    Wave,
    count,
)
from edgepack.fleet.rollouts.failures import Threshold
from edgepack.fleet.rollouts.rules import (
    TRANSITIONS,
    Breach,
    Decision,
    Finish,
    Offer,
    Rollout,
    RolloutEvent,
    RolloutState,
    decide,
    transition,
)
from edgepack.fleet.rollouts.statistics import ALPHA, lower_share
from edgepack.text import counted

STATES: tuple[RolloutState, ...] = get_args(RolloutState)
EVENTS: tuple[RolloutEvent, ...] = get_args(RolloutEvent)


def rollout(
    *,
    state: RolloutState = "RUNNING",
    wave: int = 0,
    wave_count: int = 2,
    share: float = 0.1,
    min_sample: int = 5,
    on_breach: OnBreach = "pause",
    accepted: int = 0,
) -> Rollout:
    return Rollout(
        state=state,
        wave=wave,
        wave_count=wave_count,
        threshold=Threshold(max_failed_share=share, min_sample=min_sample, on_breach=on_breach),
        accepted_failures=accepted,
    )


def waves_of(text: str) -> tuple[Wave, ...]:
    """Return `0:COMMITTED 1:WAITING` … as waves."""
    found: dict[int, Counter[AssignmentState]] = defaultdict(Counter)
    for word in text.split():
        wave, state = word.split(":")
        found[int(wave)][msgspec.convert(state, AssignmentState)] += 1
    return tuple(found[wave] for wave in range(max(found) + 1))


def breach(action: OnBreach, *, failed: int, decided: int, bound: float | None = None) -> Breach:
    """Return a breach of the first wave, above 10 %."""
    numbers: dict[str, Number] = {} if bound is None else {"bound": bound}
    return Breach(
        action=action,
        because=f"{failed} of {counted(decided, 'decided device')} of wave 1 failed or stayed "
        f"silent ({failed / decided:.0%}), more than 10%",
        gate="failures",
        hardware_class=None,
        numbers={
            "gate": "failures",
            "hardware_class": "",
            "wave": 1,
            "devices": decided,
            "value": failed / decided,
            "now": failed / decided,
            "threshold": 0.1,
            **numbers,
        },
    )


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_in_every_state_has_one_outcome_or_is_refused_with_a_way_out(
    state: RolloutState, event: RolloutEvent
) -> None:
    if (state, event) in TRANSITIONS:
        assert transition(state, event, "r1") == TRANSITIONS[state, event]
        return
    with pytest.raises(FleetError, match=f"rollout r1 is {state}, so it cannot {event}"):
        transition(state, event, "r1")


def test_nothing_leads_out_of_an_aborted_rollout() -> None:
    assert not [event for state, event in TRANSITIONS if state == "ABORTED"]


@pytest.mark.parametrize(
    ("what", "asked", "assignments", "expected"),
    [
        (
            "the first wave begins",
            rollout(wave=-1),
            "0:WAITING 1:WAITING",
            Offer(wave=0, devices=1),
        ),
        ("a wave under way is waited for", rollout(), "0:OFFERED 1:WAITING", None),
        ("downloading is not success", rollout(), "0:WORKING 1:WAITING", None),
        (
            "the next wave begins when all have committed",
            rollout(),
            "0:COMMITTED 1:WAITING",
            Offer(wave=1, devices=1),
        ),
        (
            "a device that joined the wave is offered the release",
            rollout(),
            "0:OFFERED 0:WAITING 1:WAITING",
            Offer(wave=0, devices=1),
        ),
        (
            "it ends when all of the last wave have decided",
            rollout(wave=1),
            "0:COMMITTED 1:COMMITTED",
            Finish(because="2 of 2 devices committed, 0 failed or stayed silent"),
        ),
        (
            "a canary that fails stops it, below the least sample, too",
            rollout(),
            "0:FAILED 1:WAITING",
            breach("pause", failed=1, decided=1),
        ),
        (
            "below the least sample a wave under way is not judged",
            rollout(),
            "0:FAILED 0:OFFERED",
            None,
        ),
        (
            "at the least sample it is, without waiting for the rest",
            rollout(min_sample=2, on_breach="abort"),
            "0:FAILED 0:COMMITTED 0:OFFERED",
            breach("abort", failed=1, decided=2, bound=lower_share(1, 2, ALPHA)),
        ),
        (
            "failures within the threshold let the next wave begin",
            rollout(share=0.5),
            "0:FAILED 0:COMMITTED 1:WAITING",
            Offer(wave=1, devices=1),
        ),
        (
            "a silent device stops its wave",
            rollout(),
            "0:SILENT 1:WAITING",
            breach("pause", failed=1, decided=1),
        ),
        ("a paused rollout offers nothing", rollout(state="PAUSED"), "0:SILENT 1:WAITING", None),
        (
            "devices that were removed leave a wave without any",
            rollout(wave=-1),
            "1:WAITING",
            Offer(wave=0, devices=0),
        ),
        (
            "a paused one is finished when the late ones commit",
            rollout(state="PAUSED"),
            "0:COMMITTED 1:COMMITTED 1:WITHDRAWN",
            Finish(because="2 of 3 devices committed, 0 failed or stayed silent"),
        ),
        (
            "a finished one does nothing",
            rollout(state="FINISHED", wave=1),
            "0:COMMITTED 1:OFFERED",
            None,
        ),
        (
            "an aborted one does nothing",
            rollout(state="ABORTED"),
            "0:OFFERED 1:WAITING",
            None,
        ),
        (
            "failures that were accepted do not stop it again",
            rollout(accepted=1),
            "0:FAILED 1:WAITING",
            Offer(wave=1, devices=1),
        ),
        (
            "one more does",
            rollout(accepted=1),
            "0:FAILED 0:SILENT 1:WAITING",
            breach("pause", failed=2, decided=2),
        ),
    ],
    ids=lambda value: (
        value.replace(" ", "_") if isinstance(value, str) and ":" not in value else ""
    ),
)
def test_decisions(what: str, asked: Rollout, assignments: str, expected: Decision | None) -> None:
    assert decide(asked, {"": waves_of(assignments)}) == expected, what


OUTCOMES: st.SearchStrategy[AssignmentState] = st.sampled_from(
    ["COMMITTED", "FAILED", "SILENT", "WORKING", "OFFERED"]
)


@given(
    waves=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    share=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    min_sample=st.integers(1, 6),
    data=st.data(),
)
def test_a_whole_rollout_keeps_its_promises(
    waves: list[int], share: float, min_sample: int, data: st.DataObject
) -> None:
    """Play a rollout with any outcomes and check the invariants at every step."""
    state: list[Counter[AssignmentState]] = [Counter({"WAITING": devices}) for devices in waves]
    it = rollout(wave=-1, wave_count=len(waves), share=share, min_sample=min_sample)
    offered = 0
    for _ in range(200):
        decision = decide(it, {"": state})
        match decision:
            case Offer(wave=wave, devices=devices):
                assert wave in (it.wave, it.wave + 1), "waves begin one by one"
                assert devices == count(state[: wave + 1], {"WAITING"}), "only the wave's"
                if wave == it.wave + 1:
                    assert not count(state, UNDECIDED)
                    _check_share(state, it.wave, share)
                offered += devices
                it = msgspec.structs.replace(it, wave=wave)
                for one in state[: wave + 1]:
                    _move(one, "WAITING", "OFFERED", one["WAITING"])
            case Breach():
                decided = count(state[it.wave : it.wave + 1], DECIDED)
                failed = count(state[it.wave : it.wave + 1], FAILURES)
                assert failed / decided > share
                return
            case Finish():
                _check_share(state, it.wave, share)
                assert count(state, DECIDED) == sum(waves) == offered, "nobody is left out"
                return
        for one in state:
            for before in sorted(UNDECIDED):
                for _ in range(one[before]):
                    _move(one, before, data.draw(OUTCOMES), 1)
    assert count(state, UNDECIDED), "only devices that are waited for keep it from ending"


def _check_share(state: list[Counter[AssignmentState]], wave: int, share: float) -> None:
    decided = count(state[max(wave, 0) : wave + 1], DECIDED)
    failed = count(state[max(wave, 0) : wave + 1], FAILURES)
    assert not decided or failed / decided <= share, "failures are never ignored"


def _move(
    wave: Counter[AssignmentState], before: AssignmentState, after: AssignmentState, number: int
) -> None:
    wave[before] -= number
    wave[after] += number
