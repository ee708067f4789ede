"""The only device of a wave: its measurement is evidence about the device, not about the release.

Such a device is set aside when its measurement is a breach: the device runs its previous release
again, and another waiting device tries the release. So an odd device does not stop a good release,
and a bad release is stopped after 3 devices have measured a breach.
"""

from sqlalchemy.orm import Session

from edgepack.fleet.database import assignments, devices
from edgepack.fleet.database.assignments import Assignment
from edgepack.fleet.database.schema import DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.rollouts import counting, rules
from edgepack.fleet.rollouts.offers import speaks_of
from edgepack.fleet.rollouts.waves import parse_waves


def find_canary(
    session: Session, rollout: RolloutRow, classes: counting.Classes
) -> rules.Canary | None:
    """Return the only device of a wave after its decision; None for all other waves."""
    waves = counting.total(classes)[max(rollout.wave, 0) : rollout.wave + 1]
    if rollout.takes_back or counting.count(waves, counting.LIVE) != 1:
        return None
    assignment = find_assignment(session, rollout)
    if assignment is None:
        return None
    aside = [one.wanted for one in rollout.set_aside if one.wave == rollout.wave + 1]
    return rules.Canary(
        device=assignment.device,
        because=assignment.because,
        is_committed=assignment.state == "COMMITTED",
        is_too_slow=assignment.state == "FAILED" and _is_too_slow(session, rollout, assignment),
        has_another=find_another(session, rollout, assignment) is not None,
        set_aside=tuple(aside),
    )


def find_assignment(session: Session, rollout: RolloutRow) -> Assignment | None:
    """Return the first assignment of the current wave that committed or failed."""
    states, wave = ("COMMITTED", "FAILED"), rollout.wave
    found = assignments.of_rollout(session, rollout.number, states, wave=wave)
    return found[0] if found else None


def find_another(
    session: Session, rollout: RolloutRow, assignment: Assignment
) -> Assignment | None:
    """Return the device that can try instead; where waves are selectors, a person chose each."""
    if any(step.unit not in ("devices", "percent") for step in parse_waves(rollout.settings.waves)):
        return None
    return assignments.next_to_try(
        session, rollout.number, assignment.wave, assignment.hardware_class
    )


def _is_too_slow(session: Session, rollout: RolloutRow, assignment: Assignment) -> bool:
    reported = devices.last_report(session.get_one(DeviceRow, assignment.device))
    name = session.get_one(ReleaseRow, rollout.digest).name
    said = reported.models.get(name) if reported else None
    return (
        said is not None
        and said.is_too_slow
        and speaks_of(said, assignment.sequence, rollout.digest)
    )
