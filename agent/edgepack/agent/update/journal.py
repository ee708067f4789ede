"""The journal of a model: the only record of its update, written so that a power cut cannot damage
the file.

`models/<name>/journal.json` in the state folder holds the update's state and the inputs of the next
step. The journal is written before the step is taken. MQTT mirrors the journal.
"""

import logging
from pathlib import Path
from typing import Any

import msgspec

from edgepack.agent.state.models import make_model_folder, model_folder
from edgepack.agent.state.outages import JOURNAL_FILE
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.state_file import StateFile, Write, read_regular
from edgepack.agent.update.lifecycle import RESTING, TABLE, State
from edgepack.durable import write_file
from edgepack.versions import Format, NewerVersionError, Version
from edgepack.wire.orders import ModelOrder, RunModel
from edgepack.wire.reports import Choice, Watched
from edgepack.wire.telemetry import Event

log = logging.getLogger(__name__)

MAX_OUTBOX = 64
"""Events kept for a broker that is away; the oldest go first. `Reported` mirrors the rest."""


NOTHING_SERVES = "nothing serves: "
"""Begins the reason of a model whose committed release does not work on this device any more."""


class WatchNote(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the watch, which a restart must not lose.

    Attributes:
        told: The reported state.
        moved: The report of the last move, for as long as the wanted variant does not serve.
        left: Variants that the watch left, as "digest variant", each with the reason.
        tried: Symptoms for which nothing better was found, as "symptom digest variant".
        shared: Symptoms that two releases showed, each with the evidence: no release is left for
            these any more.
    """

    told: Watched = Watched()
    moved: Watched = Watched()
    left: dict[str, str] = {}
    tried: tuple[str, ...] = ()
    shared: dict[str, str] = {}


class FirmwarePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Change of the firmware that belongs to an update.

    Attributes:
        version: Version that the release requires.
        file: Path of the artefact in the bundle.
        previous: Version that ran before; "" before the installation began.
        boot: Start of the device during which a restart was last prepared.
        leaves: Restarts towards the new firmware.
        returns: Restarts towards the previous firmware.
    """

    version: str
    file: str
    previous: str = ""
    boot: str = ""
    leaves: int = 0
    returns: int = 0


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """Journal of a model's current and earlier updates.

    Attributes:
        state: Where the update is.
        because: Reason of the last transition.
        is_settled: Whether the action of a resting state was done.
        offer: Order of the state; None before the first order.
        taken_at: When that offer was accepted, seconds since the epoch; 0 if unknown.
        pending: A newer offer that waits until the current update has ended.
        acted_sequence: Highest sequence of an order with a verified bundle, or of a finished order.
        restarts: Restarts that count against the current update: the release or a hook was at work.
        was_stopped: Whether the agent was stopped in order, so that the next start does not count.
        candidates: Names of the variants to fetch and probe, in order of preference.
        rejected: The other variants, each with its reason.
        size_bytes: Disk space of the candidates' files.
        memory_bytes: Memory of the largest candidate.
        is_too_slow: Whether slowness compared with the previous release caused the rollback.
        was_staged: Whether the `staged` hooks ran, which `rolled_back` hooks may undo.
        firmware: Change of the firmware; None if the release changes none here.
        choice: Result of probing; None before.
        back: Previous release for a rollback; None without a previous release.
        committed: Last committed release; None before a commit, or after a removal.
        previous: Release committed before the last.
        brought: Orders of the kept releases, by digest, to fetch a release again if its files rot.
        watch: Memory of the watch over the committed release.
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
    firmware: FirmwarePlan | None = None
    choice: Choice | None = None
    back: ActivePointer | None = None
    committed: ActivePointer | None = None
    previous: ActivePointer | None = None
    brought: dict[str, RunModel] = {}
    watch: WatchNote = WatchNote()
    outbox: tuple[Event, ...] = ()

    @property
    def repair(self) -> RunModel | None:
        """The order that fetches the committed release again; None if unknown."""
        order = self.brought.get(self.committed.digest) if self.committed else None
        return msgspec.structs.replace(order, expires_at=None) if order else None

    @property
    def is_at_rest(self) -> bool:
        """True if nothing is under way, and nothing waits."""
        return self.state in RESTING and self.is_settled and self.pending is None


class _AnyState(Journal, frozen=True, kw_only=True):
    """The same, in a state that this edgepack may not know."""

    state: str = "IDLE"  # type: ignore[assignment]


JOURNAL = Format("journal", _AnyState, Version(1, 0))


class JournalStore:
    """Keeps the journal of a model on the disk and the last saved value in memory.

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
        """The last saved journal."""
        return self._journal

    @property
    def trouble(self) -> str:
        """Problem of the file, as a sentence; "" without a problem."""
        return self._file.trouble

    @property
    def is_sealed(self) -> bool:
        """True if a newer edgepack wrote the journal, so that the model must stay unchanged."""
        return self._file.is_sealed

    def update(self, **changes: Any) -> Journal:
        """Save the journal with some fields changed, and only then use the new fields.

        Raises:
            OSError: The journal could not be written; nothing has changed.
        """
        journal = msgspec.structs.replace(self._journal, **changes)
        self._file.save(journal)  # type: ignore[arg-type]
        self._journal = journal
        return journal

    def add_event(self, event: Event) -> None:
        """Put an event into the outbox; the next update saves the event."""
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
    """Return the journal for a reader other than the agent; None if missing or unreadable."""
    try:
        content = read_regular(model_folder(state_dir, name) / JOURNAL_FILE)
        if content is None:
            return None
        found = JOURNAL.decode(content).value
    except (OSError, ValueError, NewerVersionError):
        return None
    return _known(found) if found.state in TABLE else None
