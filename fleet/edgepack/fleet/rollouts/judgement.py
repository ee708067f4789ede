"""Facts of a rollout for rules and gates, with the present results of the gates."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy.orm import Session

from edgepack.decoding import convert_value
from edgepack.fleet.database import assignments, measurements
from edgepack.fleet.database.schema import ReleaseRow, RolloutRow
from edgepack.fleet.documents.gates import GateView
from edgepack.fleet.rollouts import canary, counting, failures, gates, looks, rules


class Judgement(NamedTuple):
    """Facts for the rules.

    Attributes:
        rollout: The rollout for the rules.
        classes: Its devices.
        measured: Results of the gates; empty for a rollback.
    """

    rollout: rules.Rollout
    classes: counting.Classes
    measured: tuple[GateView, ...]

    @property
    def views(self) -> tuple[GateView, ...]:
        """Results of all gates."""
        return (*rules.failures(self.rollout, self.classes), *self.measured)

    @property
    def accepted_by_resume(self) -> frozenset[str]:
        """Breaches that a resume accepts, in the form of `Plan.accepted`."""
        seen = {
            gates.hold_key(view.name, view.hardware_class)
            if view.verdict == "hold"
            else gates.key(view.name, view.hardware_class)
            for view in self.views
            if view.verdict in gates.STOPS and view.hardware_class
        }
        # Failures of all together are accepted by their number, those of a class by its name.
        seen |= {gates.evidence_key(self.rollout.wave)} if self.holds else set()
        found = self.rollout.canary
        is_divided = found is not None and len(found.tried) == rules.MOST_TRIED
        return frozenset(seen | ({rules.tried_key(self.rollout.wave)} if is_divided else set()))

    @property
    def holds(self) -> bool:
        """True if the next wave waits since the waves so far measured too little."""
        decision = rules.decide(self.rollout, self.classes, self.measured)
        return isinstance(decision, rules.Await) and decision.reason == "evidence"


def judge(session: Session, rollout: RolloutRow, now: float | None = None) -> Judgement:
    """Read the state of a rollout, take the looks that are due, and evaluate the state.

    Args:
        session: The transaction.
        rollout: The rollout.
        now: Seconds since the epoch; None to show the state at the last step.
    """
    classes, settings = classes_of(session, rollout), rollout.settings
    since = rollout.evidence_since
    is_due = since is not None and now is not None and now - since >= settings.evidence_s
    if now is None:
        is_due = rollout.waits_reason != "measurements"
    facts = _facts(session, rollout, classes, is_due=is_due)
    if now is not None and rollout.state == "RUNNING":
        looks.take_due(session, rollout, facts, now)
    measured: tuple[GateView, ...] = ()
    # What goes back to what served before is not held against what it leaves.
    if not rollout.takes_back and facts.plan.gates:
        found = looks.found_so_far(session, rollout, facts)
        measured = gates.judge(facts.plan, found, facts.settled)
    held = frozenset(rollout.held)
    counts = {name: waves for name, waves in facts.counts.items() if name not in held}
    return Judgement(
        rollout=rules.Rollout(
            state=state_of(rollout),
            wave=rollout.wave,
            wave_count=rollout.wave_count,
            threshold=failures.Threshold(
                max_failed_share=settings.max_failed_share,
                min_sample=settings.min_sample,
                on_breach=settings.on_breach,
                alpha=facts.plan.alpha(),
            ),
            accepted_failures=rollout.accepted_failures,
            is_split=settings.split_by == "hardware",
            held=held,
            accepted=facts.plan.accepted,
            is_early=now is not None and now < (settings.not_before or 0.0),
            approved=rollout.approved if settings.approve_waves else None,
            waits=now is not None and not is_due and gates.awaited(counts, rollout.wave) > 0,
            lacks=gates.missing_evidence(facts.plan, counts, rollout.wave, settings.look_s),
            canary=canary.find_canary(session, rollout, classes),
            set_aside=tuple(one.wanted for one in rollout.set_aside),
        ),
        classes=classes,
        measured=measured,
    )


def _facts(
    session: Session, rollout: RolloutRow, classes: counting.Classes, *, is_due: bool
) -> looks.Facts:
    """Return the facts for looks; `is_due` ends the wait for measurements."""
    settings, release = rollout.settings, session.get(ReleaseRow, rollout.digest)
    plan = gates.Plan(
        thresholds=settings.thresholds,
        accepted=frozenset(rollout.accepted),
        needs_evidence=settings.gate_evidence == "required",
        items=release.items if release else "answers",
        classes=len(classes),
        waves=rollout.wave_count - bool(settings.control),
    )
    counts: measurements.ClassCounts = {}
    if not rollout.takes_back and plan.gates:
        counts = measurements.counts_of(session, rollout.number)
    settled = {
        name
        for name in counting.over(classes, rollout.wave)
        if is_due or not gates.awaited({name: counts.get(name, ())}, rollout.wave)
    }
    return looks.Facts(plan, counts, tuple(classes), settled)


def classes_of(session: Session, rollout: RolloutRow) -> counting.Classes:
    """Return the parts of a rollout by hardware class and state, wave by wave."""
    found = assignments.counts_by_class(session, (rollout.number,))[rollout.number]
    classes: Mapping[str, tuple[counting.Wave, ...]] = convert_value(
        found, dict[str, tuple[counting.Wave, ...]]
    )
    return classes


def counts_of(session: Session, rollout: RolloutRow) -> tuple[counting.Wave, ...]:
    """Return the parts of a rollout by state, wave by wave."""
    return counting.total(classes_of(session, rollout))


def state_of(rollout: RolloutRow) -> rules.RolloutState:
    """Return its state."""
    state: rules.RolloutState = convert_value(rollout.state, rules.RolloutState)
    return state
