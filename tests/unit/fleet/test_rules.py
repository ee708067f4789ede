"""The rules of a rollout, as tables and as properties."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.errors import FleetError
from edgepack.fleet.documents.rollouts import OnBreach
from edgepack.fleet.rollouts.rules import (
    DECIDED,
    FAILURES,
    TRANSITIONS,
    UNDECIDED,
    Assignment,
    AssignmentState,
    Breach,
    Decision,
    Finish,
    Offer,
    Rollout,
    RolloutEvent,
    RolloutState,
    Threshold,
    TimeOut,
    decide,
    transition,
)

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
        deadline_s=60.0,
        threshold=Threshold(max_failed_share=share, min_sample=min_sample, on_breach=on_breach),
        accepted_failures=accepted,
    )


def parts(text: str) -> list[Assignment]:
    """`0:COMMITTED 1:WAITING` … as assignments, offered at 100 s when they were."""
    made = []
    for number, word in enumerate(text.split()):
        wave, state = word.split(":")
        made.append(
            Assignment(
                device=f"d{number}",
                wave=int(wave),
                state=msgspec.convert(state, AssignmentState),
                offered_at=None if state == "WAITING" else 100.0,
            )
        )
    return made


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_in_every_state_has_one_outcome_or_is_refused_with_a_way_out(
    state: RolloutState, event: RolloutEvent
) -> None:
    if (state, event) in TRANSITIONS:
        assert transition(state, event, "r1") == TRANSITIONS[state, event]
        return
    with pytest.raises(FleetError, match=f"rollout r1 is {state}, so it cannot be told to {event}"):
        transition(state, event, "r1")


def test_nothing_leads_out_of_an_aborted_rollout() -> None:
    assert not [event for state, event in TRANSITIONS if state == "ABORTED"]


@pytest.mark.parametrize(
    ("what", "now", "asked", "assignments", "expected"),
    [
        (
            "the first wave begins",
            100.0,
            rollout(wave=-1),
            "0:WAITING 1:WAITING",
            (Offer(wave=0, devices=("d0",)),),
        ),
        ("a wave under way is waited for", 110.0, rollout(), "0:OFFERED 1:WAITING", ()),
        ("downloading is not success", 110.0, rollout(), "0:WORKING 1:WAITING", ()),
        (
            "the next wave begins when all have committed",
            110.0,
            rollout(),
            "0:COMMITTED 1:WAITING",
            (Offer(wave=1, devices=("d1",)),),
        ),
        (
            "a device that joined the wave is offered the release",
            110.0,
            rollout(),
            "0:OFFERED 0:WAITING 1:WAITING",
            (Offer(wave=0, devices=("d1",)),),
        ),
        (
            "it ends when all of the last wave have decided",
            110.0,
            rollout(wave=1),
            "0:COMMITTED 1:COMMITTED",
            (Finish(because="2 of 2 devices committed, 0 failed or stayed silent"),),
        ),
        (
            "a canary that fails stops it, below the least sample, too",
            110.0,
            rollout(),
            "0:FAILED 1:WAITING",
            (
                Breach(
                    action="pause",
                    because="1 of 1 decided device of wave 1 failed or stayed silent (100%), "
                    "more than 10%",
                ),
            ),
        ),
        (
            "below the least sample a wave under way is not judged",
            110.0,
            rollout(),
            "0:FAILED 0:OFFERED",
            (),
        ),
        (
            "at the least sample it is, without waiting for the rest",
            110.0,
            rollout(min_sample=2, on_breach="abort"),
            "0:FAILED 0:COMMITTED 0:OFFERED",
            (
                Breach(
                    action="abort",
                    because="1 of 2 decided devices of wave 1 failed or stayed silent (50%), "
                    "more than 10%",
                ),
            ),
        ),
        (
            "failures within the threshold let the next wave begin",
            110.0,
            rollout(share=0.5),
            "0:FAILED 0:COMMITTED 1:WAITING",
            (Offer(wave=1, devices=("d2",)),),
        ),
        (
            "a silent device is timed out and stops its wave",
            161.0,
            rollout(),
            "0:OFFERED 1:WAITING",
            (
                TimeOut(devices=("d0",)),
                Breach(
                    action="pause",
                    because="1 of 1 decided device of wave 1 failed or stayed silent (100%), "
                    "more than 10%",
                ),
            ),
        ),
        ("at the deadline it has still time", 160.0, rollout(), "0:OFFERED 1:WAITING", ()),
        (
            "a paused rollout times out and does nothing else",
            161.0,
            rollout(state="PAUSED"),
            "0:OFFERED 1:WAITING",
            (TimeOut(devices=("d0",)),),
        ),
        (
            "a finished one does nothing",
            161.0,
            rollout(state="FINISHED", wave=1),
            "0:COMMITTED 1:OFFERED",
            (),
        ),
        (
            "an aborted one does nothing",
            161.0,
            rollout(state="ABORTED"),
            "0:OFFERED 1:WAITING",
            (),
        ),
        (
            "failures that were accepted do not stop it again",
            110.0,
            rollout(accepted=1),
            "0:FAILED 1:WAITING",
            (Offer(wave=1, devices=("d1",)),),
        ),
        (
            "one more does",
            110.0,
            rollout(accepted=1),
            "0:FAILED 0:SILENT 1:WAITING",
            (
                Breach(
                    action="pause",
                    because="2 of 2 decided devices of wave 1 failed or stayed silent (100%), "
                    "more than 10%",
                ),
            ),
        ),
    ],
    ids=lambda value: (
        value.replace(" ", "_") if isinstance(value, str) and ":" not in value else ""
    ),
)
def test_decisions(
    what: str, now: float, asked: Rollout, assignments: str, expected: tuple[Decision, ...]
) -> None:
    assert decide(asked, parts(assignments), now) == expected, what


OUTCOMES = st.sampled_from(["COMMITTED", "FAILED", "WORKING", "OFFERED"])


@settings(deadline=None)
@given(
    waves=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    share=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    min_sample=st.integers(1, 6),
    data=st.data(),
)
def test_a_whole_rollout_keeps_its_promises(
    waves: list[int], share: float, min_sample: int, data: st.DataObject
) -> None:
    """Plays a rollout with any outcomes and checks what must hold at every step."""
    state = [
        Assignment(device=f"w{wave}d{number}", wave=wave, state="WAITING")
        for wave, count in enumerate(waves)
        for number in range(count)
    ]
    it = rollout(wave=-1, wave_count=len(waves), share=share, min_sample=min_sample)
    now = 0.0
    offered: set[str] = set()
    for _ in range(200):
        now += 10.0
        for decision in decide(it, state, now):
            match decision:
                case Offer(wave=wave, devices=devices):
                    assert wave in (it.wave, it.wave + 1), "waves begin one by one"
                    assert not offered & set(devices), "a device is offered a release once"
                    by_device = {a.device: a for a in state}
                    assert all(by_device[d].wave <= wave for d in devices), "only the wave's"
                    if wave == it.wave + 1:
                        assert not [a for a in state if a.state in UNDECIDED]
                        _check_share(state, it.wave, share)
                    offered |= set(devices)
                    it = msgspec.structs.replace(it, wave=wave)
                    state = _put(state, devices, "OFFERED", now)
                case TimeOut(devices=devices):
                    state = _put(state, devices, "SILENT", now)
                case Breach():
                    decided = [a for a in state if a.wave == it.wave and a.state in DECIDED]
                    failed = [a for a in decided if a.state in FAILURES]
                    assert len(failed) / len(decided) > share
                    it = msgspec.structs.replace(it, state="PAUSED")
                case Finish():
                    _check_share(state, it.wave, share)
                    assert all(a.state in DECIDED for a in state), "nobody is left out"
                    it = msgspec.structs.replace(it, state="FINISHED")
        if it.state != "RUNNING":
            return
        state = [
            msgspec.structs.replace(a, state=data.draw(OUTCOMES)) if a.state in UNDECIDED else a
            for a in state
        ]
    pytest.fail("the rollout never ended, although devices time out")


def _check_share(state: list[Assignment], wave: int, share: float) -> None:
    decided = [a for a in state if a.wave == wave and a.state in DECIDED]
    failed = [a for a in decided if a.state in FAILURES]
    assert not decided or len(failed) / len(decided) <= share, "failures are never ignored"


def _put(
    state: list[Assignment], devices: tuple[str, ...], to: AssignmentState, now: float
) -> list[Assignment]:
    return [
        msgspec.structs.replace(a, state=to, offered_at=now if to == "OFFERED" else a.offered_at)
        if a.device in devices
        else a
        for a in state
    ]
