"""Files of a slot that changed after they were verified: finding them, and serving without them."""

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.context import UpdateContext
from edgepack.bundle.verify import verify_slot
from edgepack.errors import BundleError
from edgepack.halt import Halt


def find_rot(context: UpdateContext, digest: str) -> str:
    """Why a slot is not what it was, one sentence; "" when it is.

    Raises:
        NotYetError: Its files are being read.
    """
    known = context.scratch.rot
    if digest in known:
        return known[digest]
    folder = context.deps.slots.folder(digest)

    def look(halt: Halt) -> str:
        try:
            verify_slot(folder, digest, checkpoint=halt.check)
        except BundleError as error:
            return error.problem
        return ""

    known[digest] = context.beside(f"look at {digest}", look)
    if known[digest]:
        because = f"{digest[:12]} is not what was installed any more: {known[digest]}"
        context.note("warning", because)
    return known[digest]


def serve_last_good(context: UpdateContext, pointer: ActivePointer) -> ActivePointer:
    """Switches to the release that was committed before, when its files are sound.

    Without one the damaged release stays: what has it open may still serve it.

    Returns:
        What serves now.

    Raises:
        NotYetError: Files are being read.
        OSError: The pointer cannot be written.
    """
    previous = context.journal.previous
    if previous is None or previous.digest == pointer.digest or not previous.choice.chosen:
        return pointer
    if find_rot(context, previous.digest):
        return pointer
    back = ActivePointer(
        bundle=previous.bundle,
        choice=previous.choice,
        since=context.deps.clock.wall(),
        committed=True,
    )
    context.model.pointer.write(back)
    return back
