"""The rules of a rollout: the next step, from values alone.

A rollout sends a release to its devices wave by wave. Each device has an assignment. The next wave
begins when every device of the current wave has decided: committed after its soak, failed, or
silent past the deadline. Failures above the threshold stop the rollout. Nothing here reads a clock,
a database or a network.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.documents.audit import Number
from edgepack.fleet.documents.gates import GateView
from edgepack.fleet.documents.rollouts import OnBreach
from edgepack.fleet.rollouts.counting import (
    UNDECIDED,
    AssignmentState,
    Classes,
    Wave,
    count,
    tell_outcome,
    total,
)
from edgepack.fleet.rollouts.failures import FAILURES_GATE, Threshold, judge_failures
from edgepack.text import counted

RolloutState = Literal["PREPARING", "RUNNING", "PAUSED", "FINISHED", "ABORTED"]
RolloutEvent = Literal[
    "begin", "resume", "pause", "breach", "stop", "finish", "abort", "retry", "supersede"
]
OPEN: frozenset[RolloutState] = frozenset({"PREPARING", "RUNNING", "PAUSED"})
"""States of a rollout that is not over."""

# Every transition of a rollout. A pair that is missing is refused. The restart of a controller
# changes none: the state is in the database, and RUNNING simply goes on from the assignments. One
# that was still PREPARING is aborted once nobody adds to it any more (`steps.py`).
TRANSITIONS: dict[tuple[RolloutState, RolloutEvent], RolloutState] = {
    ("PREPARING", "begin"): "RUNNING",
    ("PREPARING", "abort"): "ABORTED",
    ("RUNNING", "pause"): "PAUSED",
    ("RUNNING", "breach"): "PAUSED",
    ("RUNNING", "stop"): "PAUSED",
    ("RUNNING", "finish"): "FINISHED",
    ("RUNNING", "abort"): "ABORTED",
    ("RUNNING", "resume"): "RUNNING",  # a hardware class that was held back goes on
    ("PAUSED", "finish"): "FINISHED",  # late devices have committed after all
    ("PAUSED", "resume"): "RUNNING",
    ("PAUSED", "abort"): "ABORTED",
    ("RUNNING", "retry"): "RUNNING",
    ("PAUSED", "retry"): "RUNNING",
    ("FINISHED", "retry"): "RUNNING",
    ("RUNNING", "supersede"): "ABORTED",
    ("PAUSED", "supersede"): "ABORTED",
    ("FINISHED", "abort"): "ABORTED",  # taken back afterwards; devices that join get it no more
}


MOST_TRIED = 3
"""Devices that try a release alone, one after the other, before it is judged: as many as a gate
needs for a verdict (`statistics.LEAST_DEVICES`)."""


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """The only device of the current wave, which has decided.

    Attributes:
        device: Its id.
        because: The reported reason, a sentence.
        is_committed: Whether the device committed the release; otherwise the device failed.
        is_too_slow: Whether the device rolled back since the release was slower than the previous
            release.
        has_another: Whether another device can try the release instead.
        set_aside: The devices of this wave that tried the release before, and were set aside.
    """

    device: str
    because: str = ""
    is_committed: bool = True
    is_too_slow: bool = False
    has_another: bool = False
    set_aside: tuple[str, ...] = ()

    @property
    def tried(self) -> tuple[str, ...]:
        """Devices that tried the release in this wave."""
        return (*self.set_aside, self.device)


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a rollout for the rules.

    Attributes:
        state: Its state.
        wave: Index of the wave that is under way; -1 before the first.
        wave_count: Number of waves.
        threshold: The failures that are tolerated.
        accepted_failures: Failures of the current wave that a person saw and resumed after.
        is_split: Whether a hardware class that breaches a gate is held back alone.
        held: The hardware classes that are held back.
        accepted: Breaches of a class that a person accepted by resuming, as keys of `gates.key`.
        waits: Whether to wait for measurements after all devices of a wave have decided.
        is_early: Whether the start is in the future.
        approved: Index of the last wave that may begin without asking a person; None for all.
        lacks: Missing measurements of the waves so far, a sentence; "" for none.
        canary: The only device of the current wave, after its decision; None for other waves.
        set_aside: All devices that were set aside.
    """

    state: RolloutState
    wave: int
    wave_count: int
    threshold: Threshold
    accepted_failures: int = 0
    is_split: bool = False
    held: frozenset[str] = frozenset()
    accepted: frozenset[str] = frozenset()
    waits: bool = False
    is_early: bool = False
    approved: int | None = None
    lacks: str = ""
    canary: Canary | None = None
    set_aside: tuple[str, ...] = ()


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Offer of the release to a number of waiting devices in `wave` or an earlier wave."""

    wave: int
    devices: int


class Await(msgspec.Struct, frozen=True, kw_only=True):
    """A wait for measurements, a person or a time.

    With `evidence` a wave measured too little, as `because` describes: the next wave begins once
    enough devices have measured, or after a person's approval.
    """

    reason: Literal["measurements", "approval", "start", "evidence"]
    because: str = ""


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """A gate is breached.

    Attributes:
        action: Action on the breach.
        because: The reason in a sentence.
        gate: The gate's name.
        hardware_class: The class that is to be held back alone; None stops the whole rollout.
        numbers: Deciding numbers, for the audit log.
        is_of_few: Whether only 1 or 2 devices measured the breach.
    """

    action: OnBreach
    because: str
    gate: str
    hardware_class: str | None
    numbers: dict[str, Number]
    is_of_few: bool = False


class TryAnother(msgspec.Struct, frozen=True, kw_only=True):
    """Set the only device of the wave aside, and let another device try the release."""

    breach: Breach


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Only held classes are left: a person has to decide."""

    because: str


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """Every device has decided."""

    because: str


Decision = Offer | Await | Breach | TryAnother | Stop | Finish


def transition(state: RolloutState, event: RolloutEvent, rollout: str) -> RolloutState:
    """Return the state after an event.

    Raises:
        FleetError: The event is not possible in that state.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise FleetError(
            f"rollout {rollout} is {state}, so it cannot {event}",
            remedy=f"edgepack rollout status {rollout}",  # to look never makes it worse
        )
    return after


def decide(
    rollout: Rollout, classes: Classes, measured: Sequence[GateView] = ()
) -> Decision | None:
    """Decide the next action; devices past their deadline must already count as silent.

    1. A breach stops the rollout, or holds a hardware class back, before any new offer. In a wave
       with a single device, another device tries the release first.
    2. A rollout is finished after all of its devices have committed, whatever stopped the rollout.
       A rollout that does not run does nothing else.
    3. Devices that wait in a wave that has begun are offered the release.
    4. The next wave begins after every addressed device has decided and measured, at the wave's
       time, and with a person's approval if required. Without required approval, the wave begins
       only if enough devices measured.
    5. After the last wave the rollout is finished, unless a held class waits.

    Args:
        rollout: The rollout.
        classes: Its devices.
        measured: Results of the gates; see `gates.judge`.

    Returns:
        The decision; None when there is nothing but to wait.
    """
    everybody = total(classes)
    live = total({name: waves for name, waves in classes.items() if name not in rollout.held})
    # 1.
    breach = judge(rollout, classes, measured)
    if rollout.state == "RUNNING":
        if breach is not None:
            return _try_another(rollout, breach)
        if (divided := _divided(rollout)) is not None:
            return divided
    # 2.
    is_open = rollout.state in ("RUNNING", "PAUSED") and breach is None
    if is_open and _have_all_committed(everybody):
        waits = rollout.waits and rollout.state == "RUNNING"
        return Await(reason="measurements") if waits else _finish(rollout, everybody)
    if rollout.state != "RUNNING":
        return None
    # 3.
    if joined := count(live[: rollout.wave + 1], {"WAITING"}):
        return Offer(wave=rollout.wave, devices=joined)
    # 4.
    if count(live, UNDECIDED):
        return None
    if rollout.waits:
        return Await(reason="measurements")
    following = rollout.wave + 1
    if following < rollout.wave_count and (live or not classes):
        if rollout.is_early:
            return Await(reason="start")
        if rollout.approved is not None and following > max(rollout.approved, 0):
            return Await(reason="approval", because=rollout.lacks)
        if rollout.approved is None and rollout.lacks:
            return Await(reason="evidence", because=rollout.lacks)
        waiting = count(live[following : following + 1], {"WAITING"})
        return Offer(wave=following, devices=waiting)
    # 5.
    if count(everybody, UNDECIDED):
        return None
    if waiting := count(everybody, {"WAITING"}):
        names = ", ".join(sorted(rollout.held))
        return Stop(because=f"{counted(waiting, 'device')} of {names} held back, others are done")
    return _finish(rollout, everybody)


def tried_key(wave: int) -> str:
    """Return the key for a person's acceptance of disagreeing devices in a wave."""
    return f"tried/{wave}"


def _try_another(rollout: Rollout, breach: Breach) -> Breach | TryAnother:
    """Try the release on another device after an only device; condemn the release from 3 devices
    on.
    """
    canary = rollout.canary
    if canary is None or not (
        canary.is_too_slow
        if breach.gate == FAILURES_GATE
        else breach.is_of_few and breach.numbers["devices"] == 1
    ):
        return breach
    reason = canary.because if canary.is_too_slow else breach.because
    breach = msgspec.structs.replace(breach, because=reason)
    if len(canary.tried) >= MOST_TRIED:
        names = f"all {len(canary.tried)} devices that tried it: {', '.join(canary.tried)}"
        because = f"{reason}; {names}"
        return msgspec.structs.replace(
            breach, action=rollout.threshold.on_breach, because=because, is_of_few=False
        )
    if canary.has_another:
        return TryAnother(breach=breach)
    because = f"{reason}; no other device of its hardware class waits and is online to try it"
    return msgspec.structs.replace(breach, because=because)


def _divided(rollout: Rollout) -> Breach | None:
    """Return a pause for a person if only the last of the tested devices succeeded."""
    canary = rollout.canary
    if canary is None or not canary.is_committed or len(canary.tried) < MOST_TRIED or rollout.waits:
        return None
    if tried_key(rollout.wave) in rollout.accepted:
        return None
    because = (
        f"{len(canary.set_aside)} of {len(canary.tried)} devices that tried it measured a breach: "
        f"{', '.join(canary.set_aside)}; {canary.device} did not"
    )
    numbers: dict[str, Number] = {"wave": rollout.wave + 1, "devices": len(canary.tried)}
    return Breach(
        action="pause", because=because, gate="canary", hardware_class=None, numbers=numbers
    )


def _finish(rollout: Rollout, everybody: Sequence[Wave]) -> Finish:
    held = f"; held back: {', '.join(sorted(rollout.held))}" if rollout.held else ""
    aside = f"; set aside: {', '.join(rollout.set_aside)}" if rollout.set_aside else ""
    return Finish(because=tell_outcome(everybody) + held + aside)


def judge(rollout: Rollout, classes: Classes, measured: Sequence[GateView] = ()) -> Breach | None:
    """Return the first gate that is breached by a hardware class that is not held back; None for
    none.
    """
    found = (
        view
        for view in (*failures(rollout, classes), *measured)
        if view.hardware_class not in rollout.held
    )
    for view in sorted(found, key=lambda view: view.verdict != "breach"):
        if view.verdict in ("breach", "hold"):
            of_class = f" of {view.hardware_class}" if view.hardware_class else ""
            is_failures = view.name == FAILURES_GATE
            numbers: dict[str, Number] = {
                "gate": view.name,
                "hardware_class": view.hardware_class,
                "wave": rollout.wave + 1,
                "devices": view.devices,
                "value": view.value,
                "bound": view.bound,
                "threshold": view.threshold,
                "before": view.before,
                "now": view.now,
            }
            return Breach(
                # 1 or 2 devices are no reason to take the release from others.
                action="pause" if view.verdict == "hold" else rollout.threshold.on_breach,
                because=view.because if is_failures else f"{view.name}{of_class}: {view.because}",
                gate=view.name,
                hardware_class=view.hardware_class if rollout.is_split else None,
                numbers={name: number for name, number in numbers.items() if number is not None},
                is_of_few=view.verdict == "hold",
            )
    return None


def failures(rollout: Rollout, classes: Classes) -> tuple[GateView, ...]:
    """Return the failures gate's result for the current wave, and for each class if split."""
    groups: Classes = classes if rollout.is_split else {"": total(classes)}
    return judge_failures(
        rollout.threshold,
        {name: waves for name, waves in groups.items() if name not in rollout.held},
        rollout.wave,
        accepted_failures=rollout.accepted_failures,
        accepted=rollout.accepted,
    )


def _have_all_committed(waves: Sequence[Wave]) -> bool:
    others = frozenset(get_args(AssignmentState)) - {"COMMITTED", "WITHDRAWN", "RECALLED"}
    return bool(count(waves, {"COMMITTED"})) and not count(waves, others)
