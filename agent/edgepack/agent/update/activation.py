"""Switching to a release, keeping it, going back, or removing the model: the actions of
ACTIVATING, SOAKING, COMMITTED, ROLLING_BACK and REMOVING."""

from pathlib import Path

import msgspec

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.context import Ended, Step, UpdateContext, Wait
from edgepack.agent.update.soak import why_unfit
from edgepack.errors import DeviceError
from edgepack.text import counted

SOAK_LOOK_S = 0.5
"""How often a soaking model is looked at."""


def activate(context: UpdateContext) -> Step:
    """Switches the pointer between the hooks."""
    model, choice = context.model, context.journal.choice
    if choice is None:
        raise DeviceError("the journal has no choice of a variant to activate")
    if held_up := context.run_hooks("activating", "before"):
        return held_up
    pointer = model.pointer.read()
    if pointer is None or pointer.digest != context.digest or pointer.choice != choice:
        model.collect()  # What was said before the switch is not about the new release.
        model.pointer.write(
            ActivePointer(
                bundle=context.offer.bundle,
                choice=choice,
                since=context.deps.clock.wall(),
                committed=False,
            )
        )
    if held_up := context.run_hooks("activating", "after"):
        return held_up
    because = f"{choice.chosen} serves; it soaks for {context.offer.soak_s:g} s"
    return Ended(outcome="success", because=because)


def soak(context: UpdateContext) -> Step:
    """Watches the model serve until it has stood its time."""
    scratch, offer = context.scratch, context.offer
    if scratch.soak_from is None:
        scratch.soak_from = context.now()
    collected = context.model.collect()
    scratch.windows += collected.telemetry
    scratch.troubles += [trouble.because for trouble in collected.troubles]
    because = _why_gone(context) or why_unfit(scratch.windows, scratch.troubles, context.digest)
    if because:
        return Ended(outcome="failure", because=because)
    left_s = scratch.soak_from + offer.soak_s - context.now()
    if left_s > 0:
        return Wait(seconds=min(left_s, SOAK_LOOK_S))
    if held_up := context.run_hooks("committed", "before"):
        return held_up
    back, previous = context.journal.back, context.journal.previous
    return Ended(
        outcome="success",
        because=f"soaked for {offer.soak_s:g} s without trouble, {_seen(context)}",
        changes={"previous": back if back and back.digest != context.digest else previous},
    )


def settle_commit(context: UpdateContext) -> Step:
    """Makes the commit final; a hook can delay nothing but itself.

    The release counter rises first: what is marked as committed is counted.
    """
    deps, model, journal = context.deps, context.model, context.journal
    if journal.is_settled:
        return Wait(seconds=None)
    pointer = model.pointer.read()
    if pointer and pointer.digest == context.digest:
        model.counters.raise_to(model.name, pointer.bundle.release)
    if pointer and pointer.digest == context.digest and not pointer.committed:
        pointer = msgspec.structs.replace(pointer, committed=True)
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
    """Puts back what served before; no hook can keep it from that."""
    deps, model, journal = context.deps, context.model, context.journal
    if journal.was_staged:
        context.tell_hooks_once("rolled_back", "before")
    pointer = model.pointer.read()
    was_chosen = journal.choice is not None
    if was_chosen and pointer and pointer.digest == context.digest and not pointer.committed:
        if journal.back is None:
            model.pointer.remove()
        else:
            model.pointer.write(msgspec.structs.replace(journal.back, since=deps.clock.wall()))
    if context.digest not in context.own_slots():
        deps.slots.remove(context.digest)
    if journal.was_staged:
        context.tell_hooks_once("rolled_back", "after")
    return Ended(outcome="success", because=journal.because)


def remove(context: UpdateContext) -> Step:
    """Takes the model off this device; its release counter stays."""
    journal = context.journal
    context.model.pointer.remove()
    ways = ("choice", "back", "committed", "committed_by", "previous")
    context.model.store.update(**dict.fromkeys(ways))
    context.clear_slots()
    sequence = journal.offer.sequence if journal.offer else 0
    return Ended(
        outcome="success",
        because=journal.because,
        changes={"acted_sequence": max(journal.acted_sequence, sequence)},
    )


def _seen(context: UpdateContext) -> str:
    """How much the soak rests on; a model that nobody used has proven little."""
    count = sum(
        window.latency.count
        for window in context.scratch.windows
        if window.digest == context.digest
    )
    return f"{counted(count, 'inference')} seen" if count else "no inference was seen"


def _why_gone(context: UpdateContext) -> str:
    pointer = context.model.pointer.read()
    if pointer is None or pointer.digest != context.digest:
        return "the pointer does not lead to the model that soaks any more"
    variant = context.read_manifest().variant(pointer.choice.chosen)
    model = Path(variant.folder) / variant.model_file
    if not (context.deps.slots.folder(context.digest) / model).is_file():
        return f"{model} disappeared from its slot while it soaked"
    return ""
