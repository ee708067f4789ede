"""The rules of a rollout: what happens next, from values alone.

A rollout sends a release to its devices wave by wave. Each device's part in it is an
assignment. The next wave begins when every device of the current one has decided: it committed
the release after its soak, it failed, or it stayed silent past the deadline. Failures above the
threshold stop the rollout. Nothing here reads a clock, a database or a network.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.documents.audit import Number
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
        threshold: The failures that are let pass.
        accepted_failures: Failures of the current wave that a person saw and resumed after.
    """

    state: RolloutState
    wave: int
    wave_count: int
    threshold: Threshold
    accepted_failures: int = 0


Wave = Mapping[AssignmentState, int]
"""Devices of one wave by the state of their part; states that nobody is in may be missing."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Offer the release to those who wait in `wave` or an earlier one: so many devices."""

    wave: int
    devices: int


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """Too many devices of the wave failed: pause or abort.

    Attributes:
        action: Which of the two.
        because: The reason in one sentence.
        numbers: What decided, for the audit log.
    """

    action: OnBreach
    because: str
    numbers: dict[str, Number]


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """Every device has decided."""

    because: str


Decision = Offer | Breach | Finish


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


def decide(rollout: Rollout, waves: Sequence[Wave]) -> Decision | None:
    """What to do now; devices past their deadline must count as silent already.

    1. When all of its devices have committed it is finished, whatever it was stopped for.
       A rollout that does not run does nothing else.
    2. Too many failures in the current wave stop it, before anything new is offered.
    3. Devices that wait in a wave that has begun are offered the release.
    4. When everybody addressed has decided, the next wave begins, or the rollout is finished.

    Args:
        rollout: The rollout.
        waves: All of its waves, in order.

    Returns:
        The decision; None when there is nothing but to wait.
    """
    # 1.
    if rollout.state in ("RUNNING", "PAUSED") and _have_all_committed(waves):
        return Finish(because=tell_outcome(waves))
    if rollout.state != "RUNNING":
        return None
    # 2.
    if breach := judge(rollout, waves):
        return breach
    # 3.
    if joined := count(waves[: rollout.wave + 1], {"WAITING"}):
        return Offer(wave=rollout.wave, devices=joined)
    # 4.
    if count(waves, UNDECIDED):
        return None
    following = rollout.wave + 1
    if following < rollout.wave_count:
        return Offer(wave=following, devices=count(waves[following : following + 1], {"WAITING"}))
    return Finish(because=tell_outcome(waves))


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


def judge(rollout: Rollout, waves: Sequence[Wave]) -> Breach | None:
    """Whether the failures of the current wave are beyond the threshold."""
    current = waves[max(rollout.wave, 0) : rollout.wave + 1]
    decided = count(current, DECIDED)
    failed = count(current, FAILURES)
    rule = rollout.threshold
    is_over = not count(current, {"WAITING", "RECALLED", *UNDECIDED})
    if not decided or (decided < rule.min_sample and not is_over):
        return None
    if failed <= rollout.accepted_failures or failed / decided <= rule.max_failed_share:
        return None
    because = (
        f"{failed} of {counted(decided, 'decided device')} of wave {rollout.wave + 1} failed "
        f"or stayed silent ({failed / decided:.0%}), more than {rule.max_failed_share:.0%}"
    )
    numbers: dict[str, Number] = {
        "wave": rollout.wave + 1,
        "decided": decided,
        "failed": failed,
        "max_failed_share": rule.max_failed_share,
    }
    return Breach(action=rule.on_breach, because=because, numbers=numbers)


def _have_all_committed(waves: Sequence[Wave]) -> bool:
    others = frozenset(get_args(AssignmentState)) - {"COMMITTED", "WITHDRAWN", "RECALLED"}
    return bool(count(waves, {"COMMITTED"})) and not count(waves, others)
