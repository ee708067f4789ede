"""The gates at the moment of a decision: stored with the rollout, and shown as decided.

A decision changes the devices that it was made about, and devices report later what no longer
matters. So the results that a breach, the end of a rollout, or the hold of a hardware class rested
on are stored before anything changes.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import RolloutRow
from edgepack.fleet.documents.gates import GateView
from edgepack.fleet.rollouts import judgement, rules


class Shown(NamedTuple):
    """The results of gates to show, and when they were taken; None means now."""

    views: tuple[GateView, ...]
    at: float | None


def show_gates(session: Session, rollout: RolloutRow) -> Shown:
    """Return the results at the decision, or the current ones while nothing is decided."""
    if rollout.decided_at is not None:
        return Shown(_stored(rollout), rollout.decided_at)
    return Shown(_current(session, rollout), None)


def store_decision(
    session: Session, rollout: RolloutRow, event: rules.RolloutEvent, now: float
) -> None:
    """Store the results that an event rests on; call it before the event changes anything.

    A rollout that continues is judged again. An end after a breach keeps the results of the breach.
    """
    if event in ("resume", "retry", "begin"):
        _store(rollout, () if event == "resume" else _of_held(rollout))
        rollout.decided_at, rollout.stopped_by = None, ""
    elif event == "finish" or (event != "pause" and rollout.decided_at is None):
        _store(rollout, _current(session, rollout, now))
        rollout.decided_at = now
        if event == "finish":
            rollout.stopped_by = ""
    elif event in ("abort", "supersede"):
        rollout.stopped_by = ""  # a person has seen the breach, and ends the rollout


def store_hold(session: Session, rollout: RolloutRow, hardware_class: str, now: float) -> None:
    """Store the results of a hardware class that is about to be held back alone."""
    views = judgement.judge(session, rollout, now).views
    of_class = (view for view in views if view.hardware_class == hardware_class)
    _store(rollout, (*_of_held(rollout), *of_class))


def _current(
    session: Session, rollout: RolloutRow, now: float | None = None
) -> tuple[GateView, ...]:
    """Return the current results, and those at the decision of classes that are held back."""
    held = _held(rollout)
    views = judgement.judge(session, rollout, now).views
    return (*(view for view in views if view.hardware_class not in held), *_of_held(rollout))


def _of_held(rollout: RolloutRow) -> tuple[GateView, ...]:
    held = _held(rollout)
    return tuple(view for view in _stored(rollout) if view.hardware_class in held)


def _held(rollout: RolloutRow) -> dict[str, str]:
    return msgspec.json.decode(rollout.held, type=dict[str, str])


def _stored(rollout: RolloutRow) -> tuple[GateView, ...]:
    if not rollout.decided:
        return ()
    return msgspec.json.decode(rollout.decided, type=tuple[GateView, ...])


def _store(rollout: RolloutRow, views: Iterable[GateView]) -> None:
    rollout.decided = msgspec.json.encode(tuple(views)).decode()
