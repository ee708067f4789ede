"""The journal: the one truth about an update, kept so that a power cut cannot damage it.

`journal.json` in the state folder says which state the update is in and what the next step needs.
It is written before the step is taken. MQTT mirrors it.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.lifecycle import State
from edgepack.durable import write_file
from edgepack.wire.messages import BundleRef, Choice, Desired, Event

log = logging.getLogger(__name__)

JOURNAL_FILE = "journal.json"
DAMAGED_FILE = "journal.damaged.json"
MAX_OUTBOX = 64
"""Events kept for a broker that is away; the oldest go first. `Reported` mirrors the rest."""


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the current update and of those before it.

    Attributes:
        state: Where the update is.
        because: Reason of the last transition.
        is_settled: Whether the action of a resting state was done.
        offer: What the state speaks of; None when there never was an offer.
        pending: A newer offer that waits until the current update has ended.
        acted_sequence: Highest sequence that was acted on or refused.
        restarts: Restarts during the current update.
        candidates: Names of the variants to fetch and probe, in order of preference.
        rejected: The other variants, each with its reason.
        was_staged: Whether hooks of `staged` were asked, which those of `rolled_back` may undo.
        choice: Result of probing; None before.
        back: What served before the switch, to go back to; None when nothing did.
        previous: The release that was committed before the one that serves.
        highest_releases: Highest release counter ever committed, by model name.
        outbox: Events that the broker has not acknowledged.
    """

    state: State = "IDLE"
    because: str = ""
    is_settled: bool = True
    offer: Desired | None = None
    pending: Desired | None = None
    acted_sequence: int = 0
    restarts: int = 0
    candidates: tuple[str, ...] = ()
    rejected: dict[str, str] = {}
    was_staged: bool = False
    choice: Choice | None = None
    back: ActivePointer | None = None
    previous: BundleRef | None = None
    highest_releases: dict[str, int] = {}
    outbox: tuple[Event, ...] = ()


class JournalStore:
    """Keeps the journal on the disk and its last saved value at hand.

    Args:
        state_dir: The agent's state folder; must exist.
        pointer: What serves, for a journal that was lost.
        write: Writes a small file durably.
    """

    def __init__(
        self,
        state_dir: Path,
        pointer: ActivePointer | None,
        *,
        write: Callable[[Path, bytes], None] = write_file,
    ) -> None:
        self._path = state_dir / JOURNAL_FILE
        self._write = write
        self._journal = self._load(pointer)

    @property
    def journal(self) -> Journal:
        """The journal as it was last saved."""
        return self._journal

    def update(self, **changes: Any) -> Journal:
        """Saves the journal with some fields changed, and only then believes them.

        Raises:
            OSError: It could not be written; nothing has changed.
        """
        journal = msgspec.structs.replace(self._journal, **changes)
        self._write(self._path, msgspec.json.encode(journal))
        self._journal = journal
        return journal

    def add_event(self, event: Event) -> None:
        """Puts an event into the outbox; it is saved with the next update."""
        outbox = (*self._journal.outbox, event)[-MAX_OUTBOX:]
        self._journal = msgspec.structs.replace(self._journal, outbox=outbox)

    def drop_event(self, event: Event) -> None:
        """Takes an acknowledged event out of the outbox; this is saved with the next update."""
        outbox = tuple(kept for kept in self._journal.outbox if kept is not event)
        self._journal = msgspec.structs.replace(self._journal, outbox=outbox)

    def _load(self, pointer: ActivePointer | None) -> Journal:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Journal)
        except FileNotFoundError:
            pass
        except msgspec.DecodeError as error:
            # Nobody may be near this device to mend a file: what serves is known from the
            # pointer, and what is wanted will be said again.
            aside = self._path.with_name(DAMAGED_FILE)
            self._path.replace(aside)
            log.warning("the journal was damaged (%s); moved to %s, starting anew", error, aside)
        known = {pointer.bundle.name: pointer.bundle.release} if pointer else {}
        return Journal(highest_releases=known)


def read_journal(state_dir: Path) -> Journal | None:
    """The journal for a reader that is not the agent; None when there is none or it is damaged."""
    try:
        return msgspec.json.decode((state_dir / JOURNAL_FILE).read_bytes(), type=Journal)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
