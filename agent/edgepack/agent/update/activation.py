"""Switching to a model, keeping it or going back: ACTIVATING, SOAKING, COMMITTED, ROLLING_BACK."""

from pathlib import Path

import msgspec

from edgepack.agent.state.pointer import ActivePointer, read_pointer, remove_pointer
from edgepack.agent.update.context import Ended, Step, UpdateContext, Wait
from edgepack.agent.update.soak import why_unfit
from edgepack.errors import DeviceError

SOAK_LOOK_S = 0.5
"""How often a soaking model is looked at."""


def activate(context: UpdateContext) -> Step:
    """Switches the pointer between the hooks."""
    deps, choice = context.deps, context.journal.choice
    if choice is None:
        raise DeviceError("the journal has no choice of a variant to activate")
    if held_up := context.run_hooks("activating", "before"):
        return held_up
    pointer = read_pointer(deps.state_dir)
    if pointer is None or pointer.digest != context.digest or pointer.choice != choice:
        deps.tools.collect()  # What was said before the switch is not about the new model.
        deps.tools.write_pointer(
            deps.state_dir,
            ActivePointer(
                bundle=context.offer.bundle,
                choice=choice,
                since=deps.clock.wall(),
                committed=False,
            ),
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
    collected = context.deps.tools.collect()
    scratch.windows += collected.telemetry
    scratch.troubles += collected.troubles
    because = _why_gone(context) or why_unfit(scratch.windows, scratch.troubles, context.digest)
    if because:
        return Ended(outcome="failure", because=because)
    left_s = scratch.soak_from + offer.soak_s - context.now()
    if left_s > 0:
        return Wait(seconds=min(left_s, SOAK_LOOK_S))
    if held_up := context.run_hooks("committed", "before"):
        return held_up
    bundle, journal = offer.bundle, context.journal
    highest = max(bundle.release, journal.highest_releases.get(bundle.name, 0))
    return Ended(
        outcome="success",
        because=f"soaked for {offer.soak_s:g} s without trouble",
        changes={
            "previous": journal.back.bundle if journal.back else journal.previous,
            "highest_releases": journal.highest_releases | {bundle.name: highest},
        },
    )


def settle_commit(context: UpdateContext) -> Step:
    """Makes the commit final; a hook can delay nothing but itself."""
    deps, journal = context.deps, context.journal
    if journal.is_settled:
        return Wait(seconds=None)
    pointer = read_pointer(deps.state_dir)
    if pointer and pointer.digest == context.digest and not pointer.committed:
        pointer = msgspec.structs.replace(pointer, committed=True)
        deps.tools.write_pointer(deps.state_dir, pointer)
    deps.slots.keep_only(context.kept(pointer))
    deps.slots.forget_held(context.digest)
    if journal.choice is not None:
        held_up = context.run_hooks("committed", "after")
        if isinstance(held_up, Wait) and journal.pending is None:
            return held_up
    deps.store.update(is_settled=True)
    return Wait(seconds=None)


def roll_back(context: UpdateContext) -> Step:
    """Puts back what served before; no hook can keep it from that."""
    deps, journal = context.deps, context.journal
    if journal.was_staged:
        context.tell_hooks("rolled_back", "before")
    pointer = read_pointer(deps.state_dir)
    was_chosen = journal.choice is not None
    if was_chosen and pointer and pointer.digest == context.digest and not pointer.committed:
        if journal.back is None:
            remove_pointer(deps.state_dir)
            pointer = None
        else:
            pointer = msgspec.structs.replace(journal.back, since=deps.clock.wall())
            deps.tools.write_pointer(deps.state_dir, pointer)
    if context.digest not in context.kept(pointer):
        deps.slots.remove(context.digest)
    if journal.was_staged:
        context.tell_hooks("rolled_back", "after")
    return Ended(outcome="success", because=journal.because)


def _why_gone(context: UpdateContext) -> str:
    pointer = read_pointer(context.deps.state_dir)
    if pointer is None or pointer.digest != context.digest:
        return "the pointer does not lead to the model that soaks any more"
    variant = context.read_manifest().variant(pointer.choice.chosen)
    model = Path(variant.folder) / variant.model_file
    if not (context.deps.slots.folder(context.digest) / model).is_file():
        return f"{model} disappeared from its slot while it soaked"
    return ""
