"""The journal of a model: the one truth about its update, kept so that a power cut cannot damage
it.

`models/<name>/journal.json` in the state folder says which state the update is in and what the next
step needs. It is written before the step is taken. MQTT mirrors it.
"""

import logging
from pathlib import Path
from typing import Any

import msgspec

from edgepack.agent.state.models import make_model_folder, model_folder
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.state_file import StateFile, Write, read_regular
from edgepack.agent.update.lifecycle import RESTING, TABLE, State
from edgepack.durable import write_file
from edgepack.versions import Format, NewerVersionError, Version
from edgepack.wire.messages import Choice, Event, ModelOrder, RunModel

log = logging.getLogger(__name__)

JOURNAL_FILE = "journal.json"
MAX_OUTBOX = 64
"""Events kept for a broker that is away; the oldest go first. `Reported` mirrors the rest."""


NOTHING_SERVES = "nothing serves: "
"""Begins the reason of a model whose committed release does not work on this device any more."""


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """Journal of a model's current and earlier updates.

    Attributes:
        state: Where the update is.
        because: Reason of the last transition.
        is_settled: Whether the action of a resting state was done.
        offer: Order of the state; None before the first order.
        taken_at: When that offer was taken, seconds since the epoch; 0 when it is not known.
        pending: A newer offer that waits until the current update has ended.
        acted_sequence: Highest sequence of an order whose bundle was verified, or that was done.
        restarts: Restarts that count against the current update: the release or a hook was at work.
        was_stopped: Whether the agent was stopped in order, so that the next start does not count.
        candidates: Names of the variants to fetch and probe, in order of preference.
        rejected: The other variants, each with its reason.
        size_bytes: Disk space of the candidates' files.
        memory_bytes: Memory of the largest candidate.
        is_too_slow: Whether the release was rolled back since it was slower than the previous one.
        was_staged: Whether hooks of `staged` were asked, which those of `rolled_back` may undo.
        choice: Result of probing; None before.
        back: Previous release for a rollback; None without one.
        committed: Last committed release; None without one, or after its removal.
        committed_by: The order that brought it, to fetch it again when its files rot.
        previous: Release committed before the last.
        outbox: Events that the broker has not acknowledged.
    """

    state: State = "IDLE"
    because: str = ""
    is_settled: bool = True
    offer: ModelOrder | None = None
    taken_at: float = 0.0
    pending: ModelOrder | None = None
    acted_sequence: int = 0
    restarts: int = 0
    was_stopped: bool = False
    candidates: tuple[str, ...] = ()
    rejected: dict[str, str] = {}
    size_bytes: int = 0
    memory_bytes: int = 0
    is_too_slow: bool = False
    was_staged: bool = False
    choice: Choice | None = None
    back: ActivePointer | None = None
    committed: ActivePointer | None = None
    committed_by: RunModel | None = None
    previous: ActivePointer | None = None
    outbox: tuple[Event, ...] = ()

    @property
    def is_at_rest(self) -> bool:
        """True if nothing is under way, and nothing waits."""
        return self.state in RESTING and self.is_settled and self.pending is None


class _AnyState(Journal, frozen=True, kw_only=True):
    """The same, in a state that this edgepack may not know."""

    state: str = "IDLE"  # type: ignore[assignment]


JOURNAL = Format("journal", _AnyState, Version(1, 0))


class JournalStore:
    """Keeps the journal of one model on the disk and its last saved value at hand.

    Args:
        state_dir: The agent's state folder; must exist.
        name: The model.
        write: Writes a small file durably.
    """

    def __init__(self, state_dir: Path, name: str, *, write: Write = write_file) -> None:
        folder = make_model_folder(state_dir, name)
        self._file = StateFile[_AnyState](folder / JOURNAL_FILE, JOURNAL, write=write)
        self._journal = self._load()

    @property
    def journal(self) -> Journal:
        """The journal as it was last saved."""
        return self._journal

    @property
    def trouble(self) -> str:
        """Problem of the file, one sentence; "" without a problem."""
        return self._file.trouble

    @property
    def is_sealed(self) -> bool:
        """True if a newer edgepack wrote it, so that the model must be left alone."""
        return self._file.is_sealed

    def update(self, **changes: Any) -> Journal:
        """Save the journal with some fields changed, and only then believes them.

        Raises:
            OSError: It could not be written; nothing has changed.
        """
        journal = msgspec.structs.replace(self._journal, **changes)
        self._file.save(journal)  # type: ignore[arg-type]
        self._journal = journal
        return journal

    def add_event(self, event: Event) -> None:
        """Put an event into the outbox; it is saved with the next update."""
        outbox = (*self._journal.outbox, event)[-MAX_OUTBOX:]
        self._journal = msgspec.structs.replace(self._journal, outbox=outbox)

    def drop_event(self, event: Event) -> None:
        """Take an acknowledged event out of the outbox; this is saved with the next update."""
        outbox = tuple(kept for kept in self._journal.outbox if kept is not event)
        self._journal = msgspec.structs.replace(self._journal, outbox=outbox)

    def _load(self) -> Journal:
        # Nobody may be near this device to mend a file: what serves is known from the pointer, and
        # what is wanted will be said again.
        found = self._file.load()
        if found is None:
            return Journal()
        if found.state not in TABLE:
            self._file.reject(f"it is in a state {found.state!a:.40} that is not known here")
            return Journal()
        if found.state not in ("IDLE", "REMOVED") and found.offer is None:
            self._file.reject(f"it is in {found.state} without an offer")
            return Journal()
        return _known(found)


def _known(found: _AnyState) -> Journal:
    return Journal(**msgspec.structs.asdict(found))


def read_journal(state_dir: Path, name: str) -> Journal | None:
    """Return the journal for a reader that is not the agent; None when there is none that it can
    read.
    """
    try:
        content = read_regular(model_folder(state_dir, name) / JOURNAL_FILE)
        if content is None:
            return None
        found = JOURNAL.decode(content).value
    except (OSError, ValueError, NewerVersionError):
        return None
    return _known(found) if found.state in TABLE else None
