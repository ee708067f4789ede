"""Incomplete slots: find the fault, and serve the last good release meanwhile."""

import msgspec

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.choosing import check_files, read_slot
from edgepack.agent.update.context import UpdateContext
from edgepack.agent.update.remembering import is_left, title_variant
from edgepack.agent.update.transitions import MAX_TEXT
from edgepack.bundle.slot import verify_slot
from edgepack.errors import BundleError
from edgepack.halt import Halt


def find_fault(context: UpdateContext, pointer: ActivePointer) -> str:
    """Return why the slot of a pointer is incomplete, as a sentence; "" if complete.

    Raises:
        NotYetError: The slot's files are being read.
        OSError: The disk cannot be read now.
    """
    known, digest, variant = context.scratch.faults, pointer.digest, pointer.choice.chosen
    if digest in known:
        return known[digest]
    folder = context.deps.slots.folder(digest)

    def look(halt: Halt) -> str:
        try:
            verify_slot(folder, digest, variant, checkpoint=halt.check)
        except BundleError as error:
            return error.problem
        return ""

    known[digest] = read_slot(context, digest, f"look at {digest}", look)
    if known[digest]:
        because = f"the slot of {digest[:12]} is damaged: {known[digest]}"
        context.note("warning", because)
    return known[digest]


def find_own_fault(context: UpdateContext, pointer: ActivePointer) -> str:
    """Return why the serving variant's own files cannot be opened, likewise."""
    evidence, variant = context.scratch.evidence, pointer.choice.chosen
    return check_files(context, evidence, pointer.digest, variant)


def serve_last_good(context: UpdateContext, pointer: ActivePointer) -> ActivePointer:
    """Switch to the previous release, when its slot is complete.

    The pointer stays if the files of its own variant are intact. The pointer stays, too, without a
    previous release, or if the watch left that release: a process with the damaged release open
    continues to serve.

    Returns:
        The pointer now.

    Raises:
        NotYetError: Files are being read.
        OSError: The pointer cannot be written, or the disk cannot be read.
    """
    previous = context.journal.previous
    if previous is None or previous.digest == pointer.digest or not previous.choice.chosen:
        return pointer
    if is_left(context.journal, previous):
        return pointer
    if not find_own_fault(context, pointer) or find_fault(context, previous):
        return pointer
    back = ActivePointer(
        bundle=previous.bundle,
        choice=previous.choice,
        since=context.deps.clock.wall(),
        committed=True,
        base=previous.base,
    )
    context.model.pointer.write(back)
    note = context.journal.watch
    if note.told.symptom == "damage":
        because = f"{note.told.because}; {title_variant(back)} serves meanwhile"[:MAX_TEXT]
        told = msgspec.structs.replace(note.told, chosen=title_variant(back), because=because)
        context.model.store.update(watch=msgspec.structs.replace(note, told=told))
    return back
