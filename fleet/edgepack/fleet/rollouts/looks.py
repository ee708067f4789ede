"""Looks at a rollout: gates that compare times are evaluated only at planned moments.

Devices of a wave are compared after 10 and 30 minutes, 2, 6 and 24 hours, and at the end of the
wave. The error probability is shared by these looks (`Plan.share`); each further look would make
chance breach a gate more often. The results of the last look hold until the next look.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.changes import changes_at_once, changes_over_time, noise_of
from edgepack.fleet.database.measurements import COMPARED, LOOKS, ClassCounts, look_name
from edgepack.fleet.database.schema import LookRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents.gates import GATES, Found
from edgepack.fleet.rollouts.gates import WAVE_END, Look, Plan, find, residuals_of


class Facts(NamedTuple):
    """Facts of a rollout for looks.

    Attributes:
        plan: Plan of evaluation.
        counts: Devices that measured, by class and wave.
        classes: Hardware classes.
        settled: Classes whose current wave has measured what it will.
    """

    plan: Plan
    counts: ClassCounts
    classes: Collection[str]
    settled: Collection[str]


def take_due(session: Session, rollout: RolloutRow, facts: Facts, now: float) -> None:
    """Take the looks that are due, and store the results.

    Nobody is left to compare the control group's own wave with: the wave has no looks.
    """
    if rollout.takes_back or not facts.plan.gates or is_control_wave(rollout):
        return
    query = select(LookRow.hardware_class, LookRow.wave, LookRow.look)
    taken = {tuple(row) for row in session.execute(query.where(LookRow.rollout == rollout.number))}
    last = _last(session, rollout)
    for name in facts.classes:
        due = {look for look in _due(rollout, facts, name) if (name, *look) not in taken}
        if name in rollout.held or not due:
            continue
        found = _look(session, rollout, facts.plan, name, facts.plan.share(due), last)
        last[name] = found
        for wave, look in sorted(due):
            session.add(
                LookRow(
                    rollout=rollout.number,
                    hardware_class=name,
                    wave=wave,
                    look=look,
                    taken_at=now,
                    found=found,
                )
            )
    session.flush()


def is_control_wave(rollout: RolloutRow) -> bool:
    """Return True while the devices that were held back as controls get the release."""
    return bool(rollout.settings.control) and rollout.wave == rollout.wave_count - 1 > 0


def found_so_far(
    session: Session, rollout: RolloutRow, facts: Facts
) -> dict[str, dict[str, Found]]:
    """Return the last look of each class, and the present state of gates that are valid at any
    time.
    """
    last = _last(session, rollout)
    share = facts.plan.share([(0, 0)])
    found = {}
    for name in facts.classes:
        changes = changes_at_once(session, rollout.number, name)
        found[name] = last.get(name, {}) | {
            gate.name: find(gate, changes[gate.name], facts.plan, gate.noise, share)
            for gate in GATES
            if gate.method != "mean" and gate.name in changes
        }
    return found


def _last(session: Session, rollout: RolloutRow) -> dict[str, dict[str, Found]]:
    """Return the results of each class's last look."""
    rows = session.scalars(select(LookRow).where(LookRow.rollout == rollout.number))
    return {row.hardware_class: row.found for row in sorted(rows, key=lambda row: row.taken_at)}


def forget(session: Session, rollout: RolloutRow) -> None:
    """Delete the looks of the current wave: another device tries the release."""
    of_wave = (LookRow.rollout == rollout.number, LookRow.wave == rollout.wave)
    session.execute(delete(LookRow).where(*of_wave))


def _due(rollout: RolloutRow, facts: Facts, hardware_class: str) -> set[Look]:
    """Return the looks for which most devices of a wave measured long enough."""
    due: set[Look] = set()
    for wave, counts in enumerate(facts.counts.get(hardware_class, ())[: rollout.wave + 1]):
        compared = counts.get(COMPARED, 0)
        due |= {
            (wave, look)
            for look in range(len(LOOKS))
            if 2 * counts.get(look_name(look), 0) > compared
        }
    if hardware_class in facts.settled and rollout.wave >= 0:
        due.add((rollout.wave, WAVE_END))
    return due


def _look(
    session: Session,
    rollout: RolloutRow,
    plan: Plan,
    hardware_class: str,
    share: float,
    last: Mapping[str, Mapping[str, Found]],
) -> dict[str, Found]:
    model = session.get_one(ReleaseRow, rollout.digest).name
    noise = noise_of(session, model, hardware_class)
    changes = changes_at_once(session, rollout.number, hardware_class) | changes_over_time(
        session,
        rollout.number,
        hardware_class,
        model=model,
        look_s=rollout.settings.look_s,
    )
    others = [found for name, found in last.items() if name != hardware_class]
    return {
        gate.name: find(
            gate,
            changes[gate.name],
            plan,
            noise[gate.name],
            share,
            residuals_of(found[gate.name] for found in others if gate.name in found),
        )
        for gate in GATES
        if gate.method == "mean" and gate.name in changes
    }
