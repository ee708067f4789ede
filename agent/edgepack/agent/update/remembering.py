"""Memory of the watch across orders: an order that does not commit makes no bad variant good."""

import msgspec

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.journal import Journal, WatchNote
from edgepack.agent.update.transitions import MAX_TEXT
from edgepack.wire.orders import ModelOrder, RunModel
from edgepack.wire.reports import Choice, Watched


def name_variant(digest: str, variant: str) -> str:
    """Return the name of a variant of a release, for the memory of the watch."""
    return f"{digest} {variant}"


def name_pointer(pointer: ActivePointer) -> str:
    """Return the name of a pointer's variant."""
    return name_variant(pointer.digest, pointer.choice.chosen)


def title_variant(pointer: ActivePointer, choice: Choice | None = None, variant: str = "") -> str:
    """Return a variant of a release for people: `cpu of 1.2.0`."""
    return f"{variant or (choice or pointer.choice).chosen} of {pointer.bundle.version}"


def is_repair(journal: Journal, order: ModelOrder | None) -> bool:
    """Check whether an order fetches the committed release again, whose files were damaged."""
    return order is not None and order == journal.repair


def is_left(journal: Journal, pointer: ActivePointer) -> bool:
    """Check whether the watch left the variant of a pointer."""
    return name_pointer(pointer) in journal.watch.left


def begin_order(journal: Journal, order: ModelOrder) -> WatchNote:
    """Return the memory for an order that begins: reports end, left variants stay known."""
    if is_repair(journal, order):
        return journal.watch
    return WatchNote(left=journal.watch.left if isinstance(order, RunModel) else {})


def pass_over(journal: Journal, digest: str) -> dict[str, str]:
    """Return why variants of a release must not serve; an order to try a release tries them all.

    Returns:
        By variant: the reason.
    """
    if not is_repair(journal, journal.offer):
        return {}
    left = ((*key.split(" ", 1), why) for key, why in journal.watch.left.items())
    return {variant: f"the watch left it: {why}" for of, variant, why in left if of == digest}


def end_order(journal: Journal, pointer: ActivePointer, kept: frozenset[str]) -> WatchNote:
    """Return the memory after a commit: the release begins anew, unless its files were repaired.

    Args:
        journal: The journal, before the commit was noted.
        pointer: The release that serves.
        kept: Digests of the releases whose slots stay.
    """
    note, title = journal.watch, title_variant(pointer)
    if not is_repair(journal, journal.offer):
        left = {key: why for key, why in note.left.items() if key.split(" ", 1)[0] in kept}
        own = {key for key in left if key.startswith(f"{pointer.digest} ")}
        return WatchNote(left={key: why for key, why in left.items() if key not in own})
    if not note.told.chosen:
        return note
    said = note.told.because
    again = f"{title} serves again, after: "
    if note.told.symptom == "damage" and not said.startswith(again):
        said = f"{again}{said}"[:MAX_TEXT]
    told = msgspec.structs.replace(note.told, chosen=title, because=said)
    is_wanted = title == told.wanted
    moved = Watched() if is_wanted else msgspec.structs.replace(note.moved, chosen=title)
    return msgspec.structs.replace(note, told=told, moved=moved)
