"""Switching to a release, commit, rollback and removal: the actions of ACTIVATING, SOAKING,
COMMITTED, ROLLING_BACK and REMOVING."""

import msgspec

from edgepack.agent.state.captured import forget_samples
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.telemetry.shadowed import Shadowed, add_up
from edgepack.agent.update.context import Ended, Step, UpdateContext, Wait
from edgepack.agent.update.liveness import Finding, find_deaths, find_hangs, find_silence
from edgepack.agent.update.shadow_first import end_shadow_first
from edgepack.agent.update.shadowing import is_doubtful, plan_shadow, tell_shadow, why_disagreed
from edgepack.agent.update.slowdown import FEWEST_NOW, LONGEST, Verdict, judge
from edgepack.agent.update.soak import count_inferences, why_unfit
from edgepack.bundle.slot import check_presence
from edgepack.errors import BundleError, DeviceError
from edgepack.text import counted

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
            )
        )
    elif pointer.committed:
        model.collect()  # The slot was repaired: what was said before is about the damage.
    if held_up := context.run_hooks("activating", "after"):
        return held_up
    because = f"{choice.chosen} serves; it soaks for {context.offer.soak_s:g} s"
    return Ended(outcome="success", because=because)


def soak(context: UpdateContext) -> Step:
    """Watch the serving model until the end of its soak."""
    scratch, offer = context.scratch, context.offer
    if scratch.soak_from is None:
        scratch.soak_from = context.now()
        scratch.soak_until = scratch.soak_from + _longest_s(context)
    collected = context.model.collect()
    scratch.windows += collected.telemetry
    scratch.troubles += [trouble.because for trouble in collected.troubles]
    scratch.shadowed = add_up(scratch.shadowed, collected.shadowed)
    shadowed = scratch.shadowed.get(context.digest, Shadowed())
    for window in collected.telemetry:
        if window.digest == context.digest:
            scratch.pace = scratch.pace.plus(window, context.deps.config.slowdown.interval_s)
    slowdown, processes = _judge_slowdown(context), _judge_processes(context)
    because = (
        _why_gone(context)
        or why_unfit(scratch.windows, scratch.troubles, context.digest)
        or processes.because
        or why_disagreed(context, shadowed)
        or slowdown.because
    )
    if because:
        changes = {"is_too_slow": because == slowdown.because}
        return Ended(outcome="failure", because=because, changes=changes)
    soaked_s = context.now() - scratch.soak_from
    if soaked_s < offer.soak_s:
        return Wait(seconds=min(offer.soak_s - soaked_s, SOAK_LOOK_S))
    seen = count_inferences(scratch.windows, context.digest)
    if seen < offer.min_inferences:
        if context.now() < scratch.soak_until:
            return Wait(seconds=SOAK_LOOK_S)
        wanted = counted(offer.min_inferences, "inference")
        because = f"no evidence: {seen} of {wanted} seen in {soaked_s:.0f} s"
        return Ended(outcome="failure", because=because)
    if is_doubtful(context, shadowed) and context.now() < scratch.soak_until:
        return Wait(seconds=SOAK_LOOK_S)
    is_doubtful_now = slowdown.answer == "doubtful" or processes.is_doubtful
    if is_doubtful_now and not _is_last_look(context):
        return Wait(seconds=SOAK_LOOK_S)
    if held_up := context.run_hooks("committed", "before"):
        return held_up
    back, previous = context.journal.back, context.journal.previous
    told = _told(seen) + tell_shadow(context, shadowed)
    return Ended(
        outcome="success",
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
    if pointer != journal.committed or journal.committed_by != context.offer:
        journal = model.store.update(committed=pointer, committed_by=context.offer)
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
    return Ended(outcome="success", because=journal.because)


def remove(context: UpdateContext) -> Step:
    """Take the model off this device; its release counter stays."""
    journal = context.journal
    context.model.pointer.remove()
    ways = ("choice", "back", "committed", "committed_by", "previous")
    context.model.store.update(**dict.fromkeys(ways))
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


def _longest_s(context: UpdateContext) -> float:
    """Return the longest wait of a soak for inferences: until the order's deadline."""
    deadline_s = context.offer.deadline_s or 0.0
    spent_s = max(0.0, context.deps.clock.wall() - context.journal.taken_at)
    return max(context.offer.soak_s, deadline_s - spent_s)


def _judge_slowdown(context: UpdateContext) -> Verdict:
    """Compare latencies since the switch with those of the previous release on this device.

    A return to an older release is not held against the release before.
    """
    offer, back = context.offer, context.journal.back
    own, lets_pass = context.deps.config.slowdown.limit, offer.max_slowdown
    if not own or lets_pass is None or offer.rollback or not back or back.digest == context.digest:
        return Verdict("fine")
    before, now = context.deps.tools.pace_of(back.digest), context.scratch.pace
    allowed, title = max(own, lets_pass), f"{back.bundle.name} {back.bundle.version}"
    verdict = judge(before, now, allowed, title, is_last=_is_last_look(context))
    if verdict.answer == "fine" and now.count < FEWEST_NOW and _is_awaited(context, before):
        return Verdict("doubtful")
    return verdict


def _judge_processes(context: UpdateContext) -> Finding:
    """Judge the processes that hold the release, as far as this agent saw the soak."""
    holders, now = context.deps.tools.holders(), context.now()
    since, pointer = context.scratch.soak_from or now, context.model.pointer.read()
    choice, back = context.journal.choice, context.journal.back
    probes = choice.probes if choice else ()
    usual_ms = max((one.latency_ms or 0.0 for one in probes), default=0.0)
    findings = [
        find_deaths(holders, context.digest, since=since, now=now),
        find_hangs(holders, context.digest, usual_ms=usual_ms, now=now),
    ]
    ran = {one.digest for one in context.scratch.windows if one.latency.count + one.failures}
    if pointer is not None and back is not None and not ran & {context.digest, back.digest}:
        before, quiet_s = context.deps.tools.pace_of(back.digest), now - since
        found = find_silence(
            holders, context.model.name, before, switched_at=pointer.since, quiet_s=quiet_s
        )
        findings.append(found)
    return Finding(
        because=next((one.because for one in findings if one.because), ""),
        is_doubtful=any(one.is_doubtful for one in findings),
    )


def _is_awaited(context: UpdateContext, before: Pace) -> bool:
    """Check whether applications that used the previous release until the switch may still come.

    Applications load the release first and report every few seconds, so a short soak ends before
    the reports.
    """
    pointer, interval_s = context.model.pointer.read(), context.deps.config.slowdown.interval_s
    was_used = pointer is not None and abs(pointer.since - before.seen_at) <= interval_s
    soaked_s = context.now() - (context.scratch.soak_from or 0.0)
    return was_used and soaked_s < context.offer.soak_s + interval_s


def _is_last_look(context: UpdateContext) -> bool:
    """Check whether a soak has waited for latencies for its maximum time."""
    scratch, offer = context.scratch, context.offer
    longest_s = offer.soak_s + LONGEST * context.deps.config.slowdown.interval_s
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
