"""The gates at the moment of a decision: stored with the rollout, and shown as decided.

A decision changes its devices, and later reports of these devices no longer matter. So the results
that a breach, the end of a rollout, or the hold of a hardware class rested on are stored before
anything changes.
"""

from typing import NamedTuple

from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import RolloutRow
from edgepack.fleet.documents.gates import GateView
from edgepack.fleet.rollouts import judgement, rules


class Shown(NamedTuple):
    """The results of gates to show, and their time; None means now."""

    views: tuple[GateView, ...]
    at: float | None


def show_gates(session: Session, rollout: RolloutRow) -> Shown:
    """Return the results at the decision, or the current results without a decision."""
    if rollout.decided_at is not None:
        return Shown(rollout.decided, rollout.decided_at)
    return Shown(_current(session, rollout), None)


def store_decision(
    session: Session, rollout: RolloutRow, event: rules.RolloutEvent, now: float
) -> None:
    """Store the results behind an event; call this before the event changes any state.

    A rollout that continues is judged again. An end after a breach keeps the results of the breach.
    """
    if event in ("resume", "retry", "begin"):
        rollout.decided = () if event == "resume" else _of_held(rollout)
        rollout.decided_at, rollout.stopped_by = None, ""
    elif event == "finish" or (event != "pause" and rollout.decided_at is None):
        rollout.decided = _current(session, rollout, now)
        rollout.decided_at = now
        if event == "finish":
            rollout.stopped_by = ""
    elif event in ("abort", "supersede"):
        rollout.stopped_by = ""  # a person has seen the breach, and ends the rollout


def store_hold(session: Session, rollout: RolloutRow, hardware_class: str, now: float) -> None:
    """Store the results of a hardware class that is about to be held back alone."""
    views = judgement.judge(session, rollout, now).views
    of_class = (view for view in views if view.hardware_class == hardware_class)
    rollout.decided = (*_of_held(rollout), *of_class)


def _current(
    session: Session, rollout: RolloutRow, now: float | None = None
) -> tuple[GateView, ...]:
    """Return the current results, and the results at the decision for held classes."""
    views = judgement.judge(session, rollout, now).views
    return (
        *(view for view in views if view.hardware_class not in rollout.held),
        *_of_held(rollout),
    )


def _of_held(rollout: RolloutRow) -> tuple[GateView, ...]:
    return tuple(view for view in rollout.decided if view.hardware_class in rollout.held)
