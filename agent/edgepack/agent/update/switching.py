"""Switching to a model, keeping it or going back: ACTIVATING, SOAKING, COMMITTED, ROLLING_BACK."""

from pathlib import Path

import msgspec

from edgepack.agent.pointer import ActivePointer, read_pointer, remove_pointer
from edgepack.agent.update.soak import why_unfit
from edgepack.agent.update.work import Ended, Step, Wait, Work
from edgepack.errors import DeviceError

SOAK_LOOK_S = 0.5
"""How often a soaking model is looked at."""


def activate(work: Work) -> Step:
    """Switches the pointer between the hooks."""
    around, choice = work.around, work.journal.choice
    if choice is None:
        raise DeviceError("the journal has no choice of a variant to activate")
    if held_up := work.run_hooks("activating", "before"):
        return held_up
    pointer = read_pointer(around.state_dir)
    if pointer is None or pointer.digest != work.digest or pointer.choice != choice:
        around.tools.collect()  # What was said before the switch is not about the new model.
        around.tools.write_pointer(
            around.state_dir,
            ActivePointer(
                bundle=work.offer.bundle,
                choice=choice,
                since=around.clock.wall(),
                committed=False,
            ),
        )
    if held_up := work.run_hooks("activating", "after"):
        return held_up
    because = f"{choice.chosen} serves; it soaks for {work.offer.soak_s:g} s"
    return Ended(outcome="success", because=because)


def soak(work: Work) -> Step:
    """Watches the model serve until it has stood its time."""
    scratch, offer = work.scratch, work.offer
    if scratch.soak_from is None:
        scratch.soak_from = work.now()
    collected = work.around.tools.collect()
    scratch.windows += collected.telemetry
    scratch.troubles += collected.troubles
    because = _why_gone(work) or why_unfit(scratch.windows, scratch.troubles, work.digest)
    if because:
        return Ended(outcome="failure", because=because)
    left_s = scratch.soak_from + offer.soak_s - work.now()
    if left_s > 0:
        return Wait(seconds=min(left_s, SOAK_LOOK_S))
    if held_up := work.run_hooks("committed", "before"):
        return held_up
    bundle, journal = offer.bundle, work.journal
    highest = max(bundle.release, journal.highest_releases.get(bundle.name, 0))
    return Ended(
        outcome="success",
        because=f"soaked for {offer.soak_s:g} s without trouble",
        changes={
            "previous": journal.back.bundle if journal.back else journal.previous,
            "highest_releases": journal.highest_releases | {bundle.name: highest},
        },
    )


def settle_commit(work: Work) -> Step:
    """Makes the commit final; a hook can delay nothing but itself."""
    around, journal = work.around, work.journal
    if journal.is_settled:
        return Wait(seconds=None)
    pointer = read_pointer(around.state_dir)
    if pointer and pointer.digest == work.digest and not pointer.committed:
        pointer = msgspec.structs.replace(pointer, committed=True)
        around.tools.write_pointer(around.state_dir, pointer)
    around.slots.keep_only(work.kept(pointer))
    around.slots.forget_held(work.digest)
    if journal.choice is not None:
        held_up = work.run_hooks("committed", "after")
        if isinstance(held_up, Wait) and journal.pending is None:
            return held_up
    around.store.update(is_settled=True)
    return Wait(seconds=None)


def roll_back(work: Work) -> Step:
    """Puts back what served before; no hook can keep it from that."""
    around, journal = work.around, work.journal
    if journal.was_staged:
        work.tell_hooks("rolled_back", "before")
    pointer = read_pointer(around.state_dir)
    was_chosen = journal.choice is not None
    if was_chosen and pointer and pointer.digest == work.digest and not pointer.committed:
        if journal.back is None:
            remove_pointer(around.state_dir)
            pointer = None
        else:
            pointer = msgspec.structs.replace(journal.back, since=around.clock.wall())
            around.tools.write_pointer(around.state_dir, pointer)
    if work.digest not in work.kept(pointer):
        around.slots.remove(work.digest)
    if journal.was_staged:
        work.tell_hooks("rolled_back", "after")
    return Ended(outcome="success", because=journal.because)


def _why_gone(work: Work) -> str:
    pointer = read_pointer(work.around.state_dir)
    if pointer is None or pointer.digest != work.digest:
        return "the pointer does not lead to the model that soaks any more"
    variant = work.read_manifest().variant(pointer.choice.chosen)
    model = Path(variant.folder) / variant.model_file
    if not (work.around.slots.folder(work.digest) / model).is_file():
        return f"{model} disappeared from its slot while it soaked"
    return ""
