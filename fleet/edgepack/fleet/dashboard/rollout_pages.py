"""List of rollouts, and live page of a rollout."""

from typing import Any, get_args

from edgepack.fleet.dashboard.guard import Visit
from edgepack.fleet.documents.rollouts import RolloutView
from edgepack.fleet.rollouts.rules import OPEN, RolloutState
from edgepack.fleet.server.queries import FleetQueries

PAGE, FIRST = 50, 20
"""Devices of a list, and those that the page of a rollout begins with."""
STATES = ("", *get_args(RolloutState))


class RolloutPages:
    """Pages about rollouts."""

    def __init__(self, queries: FleetQueries) -> None:
        self._queries = queries

    def list(self, visit: Visit) -> dict[str, Any]:
        """Return a page of rollouts."""
        state, model = visit.asked("state"), visit.asked("model")
        before = visit.asked("before").removeprefix("r")
        number = int(before) if before.isdecimal() and len(before) < 10 else 0
        found = self._queries.rollouts(state=state, model=model, before=number, limit=PAGE)
        return {
            "rollouts": found,
            "state": state,
            "model": model,
            "states_of": STATES,
            "next": found[-1].rollout if len(found) == PAGE else "",
        }

    def one(self, visit: Visit) -> dict[str, Any]:
        """Return a rollout: its waves, gates, devices and events."""
        name, state = visit.path("name"), visit.asked("state")
        wave = visit.asked("wave")
        number = int(wave) if wave.isdecimal() and len(wave) < 6 else 0
        rollout = self._queries.rollout(name)
        after = visit.asked("after")
        is_list = bool(state or number or after)
        if is_list:
            assignments = self._queries.rollout_assignments(
                name, state=state, wave=number, after=after, limit=PAGE
            )
        else:
            assignments = self._queries.assignments_to_show(name, FIRST)
        length_s, spans = self._queries.latency_over_time(rollout.bundle.digest)
        return {
            "rollout": rollout,
            "assignments": assignments,
            "state": state,
            "wave": number,
            "next": assignments[-1].device if is_list and len(assignments) == PAGE else "",
            "is_list": is_list,
            "latency": self._queries.rollout_latency(name),
            "length_s": length_s,
            "spans": spans,
            "entries": self._queries.audit(rollout=rollout.rollout, limit=PAGE),
            "acts": acts_of(rollout),
        }


def acts_of(rollout: RolloutView) -> tuple[str, ...]:
    """Return the possible actions on a rollout in its state."""
    is_open = rollout.state in ("RUNNING", "PAUSED")
    can = {
        "resume": rollout.state == "PAUSED" or rollout.waits_reason == "evidence",
        "approve": is_open and rollout.settings.approve_waves and rollout.wave < rollout.wave_count,
        "pause": rollout.state == "RUNNING",
        "retry": rollout.state != "ABORTED" and any(map(rollout.counts.get, ("FAILED", "SILENT"))),
        "abort": rollout.state in OPEN,
        # A device that went back, or never committed, has nothing to go back from.
        "rollback": bool(rollout.counts.get("COMMITTED")) and rollout.takes_back is None,
    }
    return tuple(act for act, holds in can.items() if holds)
