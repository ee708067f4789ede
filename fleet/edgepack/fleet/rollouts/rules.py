"""The rules of a rollout: what happens next, from values alone.

A rollout sends a release to its devices wave by wave. Each device's part in it is an
assignment. The next wave begins when every device of the current one has decided: it committed
the release after its soak, it failed, or it stayed silent past the deadline. Failures above the
threshold stop the rollout. Nothing here reads a clock, a database or a network.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.documents.rollouts import OnBreach
from edgepack.text import counted

RolloutState = Literal["RUNNING", "PAUSED", "FINISHED", "ABORTED"]
RolloutEvent = Literal["resume", "pause", "breach", "finish", "abort"]
AssignmentState = Literal[
    "WAITING", "OFFERED", "WORKING", "COMMITTED", "FAILED", "SILENT", "WITHDRAWN", "RECALLED"
]

UNDECIDED: frozenset[AssignmentState] = frozenset({"OFFERED", "WORKING"})
DECIDED: frozenset[AssignmentState] = frozenset({"COMMITTED", "FAILED", "SILENT"})
FAILURES: frozenset[AssignmentState] = frozenset({"FAILED", "SILENT"})

# Every transition of a rollout. A pair that is missing is refused. The restart of a controller
# changes none: the state is in the database, and RUNNING simply goes on from the assignments.
TRANSITIONS: dict[tuple[RolloutState, RolloutEvent], RolloutState] = {
    ("RUNNING", "pause"): "PAUSED",
    ("RUNNING", "breach"): "PAUSED",
    ("RUNNING", "finish"): "FINISHED",
    ("RUNNING", "abort"): "ABORTED",
    ("PAUSED", "finish"): "FINISHED",  # late devices have committed after all
    ("PAUSED", "resume"): "RUNNING",
    ("PAUSED", "abort"): "ABORTED",
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
        on_breach: What happens to the rollout.
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
        deadline_s: Time that a device has from its offer until it counts as silent.
        threshold: The failures that are let pass.
        accepted_failures: Failures of the current wave that a person saw and resumed after.
    """

    state: RolloutState
    wave: int
    wave_count: int
    deadline_s: float
    threshold: Threshold
    accepted_failures: int = 0


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One device's part in a rollout.

    Attributes:
        device: Its id.
        wave: The one wave it is in.
        state: How far it is.
        offered_at: When it was offered the release; None while it waits.
    """

    device: str
    wave: int
    state: AssignmentState
    offered_at: float | None = None


class TimeOut(msgspec.Struct, frozen=True, kw_only=True):
    """These devices said nothing decisive until their deadline: they are silent."""

    devices: tuple[str, ...]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Offer the release to these devices now; they are in `wave` or an earlier one."""

    wave: int
    devices: tuple[str, ...]


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """Too many devices of the wave failed: pause or abort."""

    action: OnBreach
    because: str


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """Every device has decided."""

    because: str


Decision = TimeOut | Offer | Breach | Finish


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


def decide(rollout: Rollout, assignments: Sequence[Assignment], now: float) -> tuple[Decision, ...]:
    """What to do now.

    1. Devices past their deadline are silent; this holds while the rollout is paused, too.
    2. When all of its devices have committed it is finished, whatever it was stopped for.
       A rollout that does not run does nothing else.
    3. Too many failures in the current wave stop it, before anything new is offered.
    4. Devices that joined a wave that has begun are offered the release.
    5. When everybody addressed has decided, the next wave begins, or the rollout is finished.

    Args:
        rollout: The rollout.
        assignments: All of them, of every wave.
        now: Seconds since the epoch.

    Returns:
        Decisions in the order to carry them out; none when there is nothing but to wait.
    """
    decisions: list[Decision] = []
    # 1.
    late = tuple(a.device for a in assignments if _is_late(a, rollout.deadline_s, now))
    if late and rollout.state in ("RUNNING", "PAUSED"):
        decisions.append(TimeOut(devices=late))
        silenced = frozenset(late)
        assignments = [
            msgspec.structs.replace(a, state="SILENT") if a.device in silenced else a
            for a in assignments
        ]
    # 2.
    if rollout.state in ("RUNNING", "PAUSED") and _have_all_committed(assignments):
        return (*decisions, Finish(because=tell_outcome(assignments)))
    if rollout.state != "RUNNING":
        return tuple(decisions)
    # 3.
    breach = judge(rollout, assignments)
    if breach is not None:
        return (*decisions, breach)
    # 4.
    joined = tuple(a.device for a in assignments if a.state == "WAITING" and a.wave <= rollout.wave)
    if joined:
        return (*decisions, Offer(wave=rollout.wave, devices=joined))
    # 5.
    if any(a.state in UNDECIDED for a in assignments):
        return tuple(decisions)
    if rollout.wave + 1 < rollout.wave_count:
        wave = rollout.wave + 1
        following = tuple(a.device for a in assignments if a.state == "WAITING" and a.wave == wave)
        return (*decisions, Offer(wave=wave, devices=following))
    return (*decisions, Finish(because=tell_outcome(assignments)))


def tell_outcome(assignments: Sequence[Assignment]) -> str:
    """What a rollout has come to, in one sentence."""
    failed = sum(a.state in FAILURES for a in assignments)
    done = sum(a.state == "COMMITTED" for a in assignments)
    return (
        f"{done} of {counted(len(assignments), 'device')} committed, "
        f"{failed} failed or stayed silent"
    )


def judge(rollout: Rollout, assignments: Sequence[Assignment]) -> Breach | None:
    """Whether the failures of the current wave are beyond the threshold."""
    wave = [a for a in assignments if a.wave == rollout.wave and a.state != "WITHDRAWN"]
    decided = [a for a in wave if a.state in DECIDED]
    failed = sum(a.state in FAILURES for a in decided)
    rule = rollout.threshold
    is_over = len(decided) == len(wave)
    if not decided or (len(decided) < rule.min_sample and not is_over):
        return None
    if failed <= rollout.accepted_failures or failed / len(decided) <= rule.max_failed_share:
        return None
    because = (
        f"{failed} of {counted(len(decided), 'decided device')} of wave {rollout.wave + 1} failed "
        f"or stayed silent ({failed / len(decided):.0%}), more than {rule.max_failed_share:.0%}"
    )
    return Breach(action=rule.on_breach, because=because)


def _have_all_committed(assignments: Sequence[Assignment]) -> bool:
    states = {a.state for a in assignments} - {"WITHDRAWN", "RECALLED"}
    return states == {"COMMITTED"}


def _is_late(assignment: Assignment, deadline_s: float, now: float) -> bool:
    return (
        assignment.state in UNDECIDED
        and assignment.offered_at is not None
        and now - assignment.offered_at > deadline_s
    )
