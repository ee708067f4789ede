"""Switching to a release, commit, rollback and removal: the actions of ACTIVATING, SOAKING,
COMMITTED, ROLLING_BACK and REMOVING."""

import msgspec

from edgepack.agent.runtime.bases import base_name
from edgepack.agent.state.captured import forget_samples
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.telemetry.shadowed import Shadowed, add_up
from edgepack.agent.update.context import Ended, Step, UpdateContext, Wait
from edgepack.agent.update.remembering import end_order
from edgepack.agent.update.shadow_first import end_shadow_first
from edgepack.agent.update.shadowing import plan_shadow, tell_shadow
from edgepack.agent.watch.liveness import usual_ms
from edgepack.agent.watch.observed import Bad, Observed
from edgepack.agent.watch.slowness import LONGEST, SHORT_INTERVALS, SHORTER
from edgepack.agent.watch.table import judge_all
from edgepack.bundle.slot import check_presence
from edgepack.errors import BundleError, DeviceError
from edgepack.text import counted
from edgepack.wire.telemetry import Telemetry

SOAK_LOOK_S = 0.5
"""How often a soaking model is looked at."""


def activate(context: UpdateContext) -> Step:
    """Switch the pointer between the hooks."""
    model, choice = context.model, context.journal.choice
    if choice is None:
        raise DeviceError("the journal has no choice of a variant to activate")
    if held_up := context.run_hooks("activating", "before"):
        return held_up
    pointer = model.pointer.read()
    if pointer is None or pointer.digest != context.digest or pointer.choice != choice:
        # A pointer names a complete slot: a hook or a disk may have changed the slot since.
        check_presence(context.deps.slots.folder(context.digest), context.digest, choice.chosen)
        model.collect()  # What was said before the switch is not about the new release.
        shadow, _ = plan_shadow(context)
        model.pointer.write(
            ActivePointer(
                bundle=context.offer.bundle,
                choice=choice,
                since=context.deps.clock.wall(),
                committed=False,
                shadow=shadow,
                basis=context.probed_basis,
                base=base_name(context.read_manifest()),
            )
        )
    elif pointer.committed:
        model.collect()  # The slot was repaired: what was said before is about the damage.
    if held_up := context.run_hooks("activating", "after"):
        return held_up
    because = f"{choice.chosen} serves; it soaks for {context.offer.soak_s:g} s"
    return Ended(outcome="success", because=because)


_FOLLOWED_S = 10.0
"""In so much time, a process takes a release."""


def soak(context: UpdateContext) -> Step:
    """Judge the serving model by the watch's table until the end of its soak."""
    scratch, offer = context.scratch, context.offer
    if scratch.soak_from is None:
        scratch.soak_from = context.now()
        scratch.soak_until = scratch.soak_from + _longest_s(context)
    collected = context.model.collect()
    scratch.windows += collected.telemetry
    scratch.troubles += [trouble.because for trouble in collected.troubles]
    scratch.shadowed = add_up(scratch.shadowed, collected.shadowed)
    for window in collected.telemetry:
        if window.digest == context.digest:
            interval_s = context.deps.config.watch.interval_s
            scratch.pace = scratch.pace.plus(window, interval_s)
            scratch.short = scratch.short.plus(window, interval_s / SHORTER)
    shadowed = scratch.shadowed.get(context.digest, Shadowed()).of_order(context.offer.sequence)
    doubts = set()
    for symptom, verdict in judge_all(_observe(context, shadowed)):
        if verdict.answer == "proven":
            changes = {"is_too_slow": symptom == "slow"}
            return Ended(outcome="failure", because=verdict.because, changes=changes)
        doubts.add(symptom)
    soaked_s = context.now() - scratch.soak_from
    if soaked_s < offer.soak_s:
        return Wait(seconds=min(offer.soak_s - soaked_s, SOAK_LOOK_S))
    seen = sum(window.latency.count for window in _own_windows(context))
    if seen < offer.min_inferences:
        if context.now() < scratch.soak_until:
            return Wait(seconds=SOAK_LOOK_S)
        wanted = counted(offer.min_inferences, "inference")
        because = f"no evidence: {seen} of {wanted} seen in {soaked_s:.0f} s"
        return Ended(outcome="failure", because=because)
    if doubts and not _is_last_look(context):
        return Wait(seconds=SOAK_LOOK_S)
    if "disagreement" in doubts and context.now() < scratch.soak_until:
        return Wait(seconds=SOAK_LOOK_S)
    if held_up := context.run_hooks("committed", "before"):
        return held_up
    # Where a new base stopped an adapter, the stopped release is kept for a rollback of the base.
    back, previous = context.journal.back or context.journal.committed, context.journal.previous
    told = _told(seen) + _tell_behind(context, soaked_s) + tell_shadow(context, shadowed)
    return Ended(
        outcome="firmware" if context.journal.firmware else "success",
        because=f"soaked for {offer.soak_s:g} s without trouble, {told}",
        changes={"previous": back if back and back.digest != context.digest else previous},
    )


def settle_commit(context: UpdateContext) -> Step:
    """Make the commit final; a hook can delay nothing but itself.

    The release counter rises first: a release marked as committed is counted.
    """
    deps, model, journal = context.deps, context.model, context.journal
    if journal.is_settled:
        return Wait(seconds=None)
    pointer = model.pointer.read()
    if pointer and pointer.digest == context.digest:
        model.counters.raise_to(model.name, pointer.bundle.release)
    if pointer and pointer.digest == context.digest and not pointer.committed:
        pointer = msgspec.structs.replace(pointer, committed=True, shadow=None)
        model.pointer.write(pointer)
    is_news = journal.brought.get(context.digest) != context.offer
    if pointer and (pointer != journal.committed or is_news):
        kept = context.own_slots()
        brought = {of: one for of, one in journal.brought.items() if of in kept}
        journal = model.store.update(
            committed=pointer,
            brought=brought | {context.digest: context.offer},
            watch=end_order(journal, pointer, kept),
        )
    context.clear_slots()
    deps.slots.forget_held(context.digest)
    if journal.choice is not None:
        held_up = context.run_hooks("committed", "after")
        if isinstance(held_up, Wait) and journal.pending is None:
            return held_up
    model.store.update(is_settled=True)
    return Wait(seconds=None)


def roll_back(context: UpdateContext) -> Step:
    """Restore the previous release; no hook can prevent the rollback."""
    deps, model, journal = context.deps, context.model, context.journal
    if journal.was_staged:
        context.notify_hooks_once("rolled_back", "before")
    end_shadow_first(context)
    pointer = model.pointer.read()
    was_chosen = journal.choice is not None
    if was_chosen and pointer and pointer.digest == context.digest and not pointer.committed:
        if journal.back is None:
            model.pointer.remove()
        else:
            since = deps.clock.wall()
            model.pointer.write(msgspec.structs.replace(journal.back, since=since, shadow=None))
    if context.digest not in context.own_slots():
        deps.slots.remove(context.digest)
    if journal.was_staged:
        context.notify_hooks_once("rolled_back", "after")
    is_changed = journal.firmware is not None and journal.firmware.previous
    return Ended(outcome="firmware" if is_changed else "success", because=journal.because)


def remove(context: UpdateContext) -> Step:
    """Take the model off this device; its release counter stays."""
    journal = context.journal
    context.model.pointer.remove()
    context.model.store.update(
        brought={}, **dict.fromkeys(("choice", "back", "committed", "previous"))
    )
    context.clear_slots()
    forget_samples(context.deps.state_dir, context.model.name)
    sequence = journal.offer.sequence if journal.offer else 0
    return Ended(
        outcome="success",
        because=journal.because,
        changes={"acted_sequence": max(journal.acted_sequence, sequence)},
    )


def _told(seen: int) -> str:
    """Return the evidence of the soak in words; few inferences prove little."""
    return f"{counted(seen, 'inference')} seen" if seen else "no evidence: no inference was seen"


def _tell_behind(context: UpdateContext, soaked_s: float) -> str:
    """Name the processes that have not taken the release; "" without any, or in a short soak."""
    held = context.deps.tools.holders().held if soaked_s >= _FOLLOWED_S else ()
    own = (one for one in held if one.model == context.model.name and one.digest)
    behind = [str(one.pid) for one in own if context.digest not in one.releases]
    processes = "process" if len(behind) == 1 else "processes"
    return f"; another release still serves in {processes} {', '.join(behind)}" if behind else ""


def _longest_s(context: UpdateContext) -> float:
    """Return the longest wait of a soak for inferences: until the order's deadline."""
    deadline_s = context.offer.deadline_s or 0.0
    spent_s = max(0.0, context.deps.clock.wall() - context.journal.taken_at)
    return max(context.offer.soak_s, deadline_s - spent_s)


def _observe(context: UpdateContext, shadowed: Shadowed) -> Observed:
    """Return the measurements since the switch.

    A return to an older release is not held against the release before.
    """
    scratch, offer, back = context.scratch, context.offer, context.journal.back
    if back is not None and back.digest == context.digest:
        back = None
    own, lets_pass = context.deps.config.watch.slowdown, offer.max_slowdown
    is_compared = own and lets_pass is not None and not offer.rollback and back
    before = context.deps.tools.pace_of(back.digest, back.choice.chosen) if back else Pace()
    windows = _own_windows(context)
    failed = sum(window.failures for window in windows)
    pointer, now, choice = context.model.pointer.read(), context.now(), context.journal.choice
    known = {context.digest, back.digest if back else ""}
    has_run = any(
        one.digest in known and one.latency.count + one.failures for one in scratch.windows
    )
    return Observed(
        is_soaking=True,
        title_before=f"{back.bundle.name} {back.bundle.version}" if back else "",
        inferences=failed + sum(window.latency.count for window in windows),
        failed=Bad(count=failed),
        not_finite=Bad(count=sum(window.not_finite for window in windows)),
        troubles=tuple(scratch.troubles),
        before=before,
        now=scratch.pace,
        recent=scratch.short.intervals[-SHORT_INTERVALS:],
        recent_first_tokens=(scratch.short.first_tokens or Pace()).intervals[-SHORT_INTERVALS:],
        slowdown=max(own, lets_pass or 0.0) if is_compared else 0.0,
        is_last=_is_last_look(context),
        is_awaited=_is_awaited(context, before),
        shadowed=shadowed,
        disagree_max=max(context.deps.config.shadow.disagree_max, offer.shadow or 0.0),
        damage=_why_gone(context),
        model=context.model.name,
        digest=context.digest,
        holders=context.deps.tools.holders(),
        monotonic_s=now,
        since=scratch.soak_from or now,
        usual_ms=usual_ms(choice),
        hung_s=context.deps.config.watch.hung_s,
        switched_at=None if pointer is None or has_run else pointer.since,
    )


def _own_windows(context: UpdateContext) -> list[Telemetry]:
    return [window for window in context.scratch.windows if window.digest == context.digest]


def _is_awaited(context: UpdateContext, before: Pace) -> bool:
    """Check whether applications that used the previous release until the switch may still come.

    Applications load the release first and report every few seconds, so a short soak ends before
    the reports.
    """
    pointer, interval_s = context.model.pointer.read(), context.deps.config.watch.interval_s
    was_used = pointer is not None and abs(pointer.since - before.seen_at) <= interval_s
    soaked_s = context.now() - (context.scratch.soak_from or 0.0)
    return was_used and soaked_s < context.offer.soak_s + interval_s


def _is_last_look(context: UpdateContext) -> bool:
    """Check whether a soak has waited for latencies for its maximum time."""
    scratch, offer = context.scratch, context.offer
    longest_s = offer.soak_s + LONGEST * context.deps.config.watch.interval_s
    until = min(scratch.soak_until, (scratch.soak_from or 0.0) + longest_s)
    return context.now() >= until


def _why_gone(context: UpdateContext) -> str:
    pointer = context.model.pointer.read()
    if pointer is None or pointer.digest != context.digest:
        return "the pointer does not lead to the model that soaks any more"
    folder = context.deps.slots.folder(context.digest)
    try:
        check_presence(folder, context.digest, pointer.choice.chosen)
    except BundleError as error:
        return f"its slot was damaged while it soaked: {error.problem}"
    return ""
