"""The rules of a rollout: what happens next, from values alone.

A rollout sends a release to its devices wave by wave. Each device's part in it is an
assignment. The next wave begins when every device of the current one has decided: it committed
the release after its soak, it failed, or it stayed silent past the deadline. Failures above the
threshold stop the rollout. Nothing here reads a clock, a database or a network.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.documents.audit import Number
from edgepack.fleet.documents.gates import GateVerdict, GateView
from edgepack.fleet.documents.rollouts import OnBreach
from edgepack.text import counted

RolloutState = Literal["RUNNING", "PAUSED", "FINISHED", "ABORTED"]
RolloutEvent = Literal["resume", "pause", "breach", "stop", "finish", "abort", "retry", "supersede"]
AssignmentState = Literal[
    "WAITING", "OFFERED", "WORKING", "COMMITTED", "FAILED", "SILENT", "WITHDRAWN", "RECALLED"
]

UNDECIDED: frozenset[AssignmentState] = frozenset({"OFFERED", "WORKING"})
DECIDED: frozenset[AssignmentState] = frozenset({"COMMITTED", "FAILED", "SILENT"})
FAILURES: frozenset[AssignmentState] = frozenset({"FAILED", "SILENT"})
FAILURES_GATE = "failures"

# Every transition of a rollout. A pair that is missing is refused. The restart of a controller
# changes none: the state is in the database, and RUNNING simply goes on from the assignments.
TRANSITIONS: dict[tuple[RolloutState, RolloutEvent], RolloutState] = {
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

# What a device's life cycle state means for its assignment (see `edgepack.agent`).
MEANING: dict[str, AssignmentState] = {
    "OFFERED": "WORKING",
    "DOWNLOADING": "WORKING",
    "VERIFIED": "WORKING",
    "STAGED": "WORKING",
    "PROBING": "WORKING",
    "ACTIVATING": "WORKING",
    "SOAKING": "WORKING",
    "ROLLING_BACK": "WORKING",
    "COMMITTED": "COMMITTED",
    "ROLLED_BACK": "FAILED",
    "REJECTED": "FAILED",
}


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """How many failures a wave may have.

    Attributes:
        max_failed_share: 0..1, greatest share of failed (or silent) among decided devices.
        min_sample: Decided devices before a wave that is under way is judged; once all of its
            devices have decided it is judged whatever their number.
        on_breach: What happens to the rollout, or to the hardware class.
    """

    max_failed_share: float
    min_sample: int
    on_breach: OnBreach


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules need to know of a rollout.

    Attributes:
        state: Its state.
        wave: Index of the wave that is under way; -1 before the first.
        wave_count: Number of waves.
        threshold: The failures that are let pass.
        accepted_failures: Failures of the current wave that a person saw and resumed after.
        is_split: Whether a hardware class that breaches a gate is held back alone.
        held: The hardware classes that are held back.
        accepted: Breaches of a class that a person saw and resumed after, as `gates.key` has them.
        waits: Whether it waits for what devices measure, once all of a wave have decided.
        is_early: Whether it is to begin later.
        approved: Index of the last wave that may begin without asking a person; None for all.
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


Wave = Mapping[AssignmentState, int]
"""Devices of one wave by the state of their part; states that nobody is in may be missing."""

Classes = Mapping[str, Sequence[Wave]]
"""By hardware class: all waves of the rollout, in order; as many for each."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Offer the release to those who wait in `wave` or an earlier one: so many devices."""

    wave: int
    devices: int


class Await(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing begins yet: it waits for what devices measure, for a person, or for its time."""

    reason: Literal["measurements", "approval", "start"]


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """A gate is breached.

    Attributes:
        action: What is to be done about it.
        because: The reason in one sentence.
        gate: The gate's name.
        hardware_class: The class that is to be held back alone; None stops the whole rollout.
        numbers: What decided, for the audit log.
    """

    action: OnBreach
    because: str
    gate: str
    hardware_class: str | None
    numbers: dict[str, Number]


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is left to do but for classes that are held back: a person has to say what."""

    because: str


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """Every device has decided."""

    because: str


Decision = Offer | Await | Breach | Stop | Finish


def transition(state: RolloutState, event: RolloutEvent, rollout: str) -> RolloutState:
    """The state after an event.

    Raises:
        FleetError: The event is not possible in that state.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise FleetError(
            f"rollout {rollout} is {state}, so it cannot be told to {event}",
            remedy=f"edgepack rollout status {rollout}",  # to look never makes it worse
        )
    return after


def decide(
    rollout: Rollout, classes: Classes, measured: Sequence[GateView] = ()
) -> Decision | None:
    """What to do now; devices past their deadline must count as silent already.

    1. A breach stops it, or holds a hardware class back, before anything new is offered.
    2. When all of its devices have committed it is finished, whatever it was stopped for.
       A rollout that does not run does nothing else.
    3. Devices that wait in a wave that has begun are offered the release.
    4. When everybody addressed has decided and told what they measure, the next wave begins, once
       it is time and a person has approved it where that is asked for.
    5. After the last one it is finished, unless a class that is held back waits.

    Args:
        rollout: The rollout.
        classes: Its devices.
        measured: What gates say of what they measured; see `gates.judge`.

    Returns:
        The decision; None when there is nothing but to wait.
    """
    everybody = total(classes)
    live = total({name: waves for name, waves in classes.items() if name not in rollout.held})
    # 1.
    breach = judge(rollout, classes, measured)
    if breach is not None and rollout.state == "RUNNING":
        return breach
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
            return Await(reason="approval")
        waiting = count(live[following : following + 1], {"WAITING"})
        return Offer(wave=following, devices=waiting)
    # 5.
    if count(everybody, UNDECIDED):
        return None
    if waiting := count(everybody, {"WAITING"}):
        names = ", ".join(sorted(rollout.held))
        return Stop(because=f"{counted(waiting, 'device')} of {names} held back, others are done")
    return _finish(rollout, everybody)


def _finish(rollout: Rollout, everybody: Sequence[Wave]) -> Finish:
    held = f"; held back: {', '.join(sorted(rollout.held))}" if rollout.held else ""
    return Finish(because=tell_outcome(everybody) + held)


def total(classes: Classes) -> tuple[Wave, ...]:
    """Hardware classes together, wave by wave."""
    by_wave = zip(*classes.values(), strict=True)
    return tuple(sum(map(Counter, same), Counter[AssignmentState]()) for same in by_wave)


def over(classes: Classes, wave: int) -> frozenset[str]:
    """The hardware classes of which nobody in the current wave is undecided."""
    open_states = {"WAITING", "RECALLED", *UNDECIDED}
    return frozenset(
        name
        for name, waves in classes.items()
        if not count(waves[max(wave, 0) : wave + 1], open_states)
    )


def count(waves: Iterable[Wave], states: Collection[AssignmentState]) -> int:
    """Devices of these waves that are in one of these states."""
    return sum(wave.get(state, 0) for wave in waves for state in states)


def tell_outcome(waves: Sequence[Wave]) -> str:
    """What a rollout has come to, in one sentence."""
    devices = sum(sum(wave.values()) for wave in waves)
    return (
        f"{count(waves, {'COMMITTED'})} of {counted(devices, 'device')} committed, "
        f"{count(waves, FAILURES)} failed or stayed silent"
    )


def judge(rollout: Rollout, classes: Classes, measured: Sequence[GateView] = ()) -> Breach | None:
    """The first gate that is breached by a hardware class that is not held back; None for none."""
    for view in (*failures(rollout, classes), *measured):
        if view.verdict == "breach" and view.hardware_class not in rollout.held:
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
                action=rollout.threshold.on_breach,
                because=view.because if is_failures else f"{view.name}{of_class}: {view.because}",
                gate=view.name,
                hardware_class=view.hardware_class if rollout.is_split else None,
                numbers={name: number for name, number in numbers.items() if number is not None},
            )
    return None


def failures(rollout: Rollout, classes: Classes) -> tuple[GateView, ...]:
    """What the gate of failures says of the current wave, and of each class where it is split.

    A share counts as it stands: to wait until it is proved would cost more devices than a false
    alarm does.
    """
    groups: Classes = classes if rollout.is_split else {"": total(classes)}
    return tuple(
        _judge_failures(rollout, name, waves)
        for name, waves in groups.items()
        if name not in rollout.held
    )


def _judge_failures(rollout: Rollout, name: str, waves: Sequence[Wave]) -> GateView:
    current = waves[max(rollout.wave, 0) : rollout.wave + 1]
    decided = count(current, DECIDED)
    failed = count(current, FAILURES)
    rule = rollout.threshold
    of_class = f" of {name}" if name else ""
    share = failed / decided if decided else None
    because = (
        f"{failed} of {counted(decided, 'decided device')}{of_class} of wave "
        f"{max(rollout.wave, 0) + 1} failed or stayed silent"
    )
    verdict: GateVerdict
    is_accepted = (
        failed <= rollout.accepted_failures or f"{FAILURES_GATE}/{name}" in rollout.accepted
    )
    if share is None:
        verdict, because = "no evidence", "no device has decided"
    elif decided < rule.min_sample and name not in over({name: waves}, rollout.wave):
        verdict = "too few"
    elif share <= rule.max_failed_share:
        verdict = "pass"
    else:
        verdict = "accepted" if is_accepted else "breach"
        because += f" ({share:.0%}), more than {rule.max_failed_share:.0%}"
    return GateView(
        name=FAILURES_GATE,
        hardware_class=name,
        threshold=rule.max_failed_share,
        comparison="share",
        unit="%",
        devices=decided,
        value=share,
        bound=None,
        before=None,
        now=share,
        verdict=verdict,
        because=because,
    )


def _have_all_committed(waves: Sequence[Wave]) -> bool:
    others = frozenset(get_args(AssignmentState)) - {"COMMITTED", "WITHDRAWN", "RECALLED"}
    return bool(count(waves, {"COMMITTED"})) and not count(waves, others)
