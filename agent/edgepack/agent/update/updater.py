"""An update from offer to commit: takes offers, walks the life cycle table, keeps the journal.

The state is saved, then acted upon; an action that a restart or a full disk interrupts runs again.
What the actions do is in `actions`, what follows what in `lifecycle`.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal

from edgepack.agent.hooks.runner import HookVerdict
from edgepack.agent.state.pointer import ActivePointer, read_pointer
from edgepack.agent.transfer.chunk_status import ChunkOutcome
from edgepack.agent.update.actions import Actions
from edgepack.agent.update.context import Ended, Wait
from edgepack.agent.update.dependencies import AgentDependencies
from edgepack.agent.update.journal import MAX_OUTBOX, Journal
from edgepack.agent.update.lifecycle import RESTING, TABLE, Row, State, follow, resume
from edgepack.agent.update.offer import check_local, check_message, check_time
from edgepack.errors import DeviceError, EdgepackError
from edgepack.wire.messages import Desired, DeviceFacts, Event

log = logging.getLogger(__name__)

DISK_RETRY_S = 5.0
"""How long the agent waits when its journal or pointer cannot be written."""
MAX_TEXT = 2000
"""Characters of a reason that are kept."""

OfferOutcome = Literal["taken", "adopted", "known", "refused"]
"""What became of an offer: it will be acted on, it is what the update is about already, it was
acted on before, it came too late."""


class Updater:
    """The one update that a device has at a time.

    Args:
        deps: What the update needs of the world.
        notify: Called after every transition, when the journal says something new.
    """

    def __init__(self, deps: AgentDependencies, notify: Callable[[], None]) -> None:
        self._deps = deps
        self._notify = notify
        self._actions = Actions(deps, self._note_hook)
        self._unsaved: Ended | None = None

    @property
    def journal(self) -> Journal:
        """The journal as it was last saved."""
        return self._deps.store.journal

    @property
    def facts(self) -> DeviceFacts:
        """What the device is."""
        return self._actions.facts

    @property
    def active(self) -> ActivePointer | None:
        """What serves now."""
        return read_pointer(self._deps.state_dir)

    @property
    def progress(self) -> float:
        """Share of the bytes that are there, 0..1, while downloading."""
        return self._actions.progress

    def start(self) -> None:
        """Goes on where the journal says, after the agent was started.

        Raises:
            OSError: The journal cannot be written.
        """
        self._deps.slots.sweep_temporaries()
        journal = self.journal
        if journal.state in RESTING and journal.is_settled:
            return
        restarts = journal.restarts + 1
        after = resume(
            journal.state,
            restarts=restarts,
            max_restarts=self._deps.config.limits.max_restarts,
        )
        if after.state == journal.state:
            self._deps.store.update(restarts=restarts)
            log.info(
                "bundle=%s resumed=%s restarts=%d", _title(journal.offer), after.state, restarts
            )
        else:
            self._move(after.state, after.because, restarts=restarts)

    def offer(self, desired: Desired) -> OfferOutcome:
        """Takes an offer from the controller; the newest one wins.

        Raises:
            TransferError: The message makes no sense; nothing was changed.
            OSError: The journal cannot be written; nothing was changed.
        """
        check_message(desired)
        journal, store = self.journal, self._deps.store
        if desired.sequence <= journal.acted_sequence:
            return "known"
        try:
            check_time(desired, self._deps.clock.wall())
        except DeviceError as error:
            self._refuse(desired, error.problem)
            return "refused"
        current = journal.offer
        is_running = journal.state not in RESTING and journal.state != "ROLLING_BACK"
        if current and is_running and current.bundle == desired.bundle:
            store.update(offer=desired, pending=None, acted_sequence=desired.sequence)
            if journal.state == "OFFERED":
                self._actions.leave()
            log.info("bundle=%s adopted sequence=%d", _title(desired), desired.sequence)
            self._notify()
            return "adopted"
        store.update(pending=desired, acted_sequence=desired.sequence)
        return "taken"

    def note_malformed(self, because: str) -> None:
        """Lets the controller know that an offer could not be read."""
        self._deps.store.add_event(self._event("refused", None, because[:MAX_TEXT]))
        self._notify()

    def note_sent(self, event: Event) -> None:
        """The broker has acknowledged an event."""
        self._deps.store.drop_event(event)

    def install(self, desired: Desired) -> None:
        """Takes an offer from a file on this device.

        Raises:
            DeviceError: An update is under way.
            TransferError: The offer makes no sense.
        """
        check_local(desired)
        journal = self.journal
        if journal.state not in RESTING or journal.pending:
            raise DeviceError(
                f"an update is under way: {_title(journal.offer)} is {journal.state}",
                remedy="edgepack-agent run finishes it",
            )
        self._deps.store.update(pending=desired)

    def accept_chunk(self, sha256: str, index: int, content: bytes) -> ChunkOutcome:
        """Takes a chunk that came."""
        return self._actions.accept_chunk(sha256, index, content)

    def note_connected(self) -> None:
        """The broker is there again; what it was asked for is asked anew."""
        self._actions.note_connected()

    def suspend(self) -> None:
        """Notes how far a download is, before the agent stops."""
        try:
            self._actions.suspend()
        except OSError as error:
            log.warning("the download's progress could not be noted: %s", error)

    def advance(self) -> float | None:
        """Goes on as far as possible now.

        Returns:
            Seconds after which to call again at the latest; None when only a message can help.
        """
        while True:
            try:
                wait = self._step()
            except OSError as error:
                log.warning(
                    "state=%s cannot go on: %s; trying again in %g s",
                    self.journal.state,
                    error,
                    DISK_RETRY_S,
                )
                return DISK_RETRY_S
            if wait is not None:
                return wait.seconds

    def _step(self) -> Wait | None:
        """One step of the table; None when the next one can follow at once."""
        journal = self.journal
        row = TABLE[journal.state]
        pending = journal.pending
        if pending and row.newer == "OFFERED" and journal.is_settled:
            self._begin(pending)
            return None
        if pending and row.newer and row.newer != "OFFERED":
            self._move(row.newer, f"superseded by sequence {pending.sequence}")
            return None
        step = self._unsaved or self._act(row)
        if isinstance(step, Wait):
            return step
        self._unsaved = step  # An action is not run again because the journal's disk was full.
        self._move(follow(journal.state, step.outcome), step.because, **step.changes)
        return None

    def _act(self, row: Row) -> Ended | Wait:
        try:
            return self._actions.act()
        except OSError as error:
            if row.failure is None:
                raise
            because = f"the disk failed: {error.strerror or error}"
            return Ended(outcome="failure", because=because)
        except EdgepackError as error:
            if row.failure is None:
                raise
            return Ended(outcome="failure", because=_one_line(error))

    def _begin(self, desired: Desired) -> None:
        self._move(
            "OFFERED",
            f"offered by {desired.rollout}" if desired.rollout else "offered on this device",
            offer=desired,
            pending=None,
            restarts=0,
            candidates=(),
            rejected={},
            was_staged=False,
            choice=None,
            back=None,
        )

    def _refuse(self, desired: Desired, because: str) -> None:
        """Refuses an offer at the door; an update that is under way goes on."""
        if self.journal.state in RESTING and self.journal.is_settled:
            self._move(
                "REJECTED",
                because,
                offer=desired,
                acted_sequence=desired.sequence,
                was_staged=False,
                choice=None,
                back=None,
            )
            return
        event = self._event("refused", desired, because)
        self._save(event, acted_sequence=desired.sequence)
        self._notify()

    def _move(self, state: State, because: str, **changes: Any) -> None:
        """Saves a transition, and only then lets it be known."""
        before = self.journal.state
        offer = changes.get("offer", self.journal.offer)
        because = because[:MAX_TEXT]
        event = self._event("transition", offer, because, before, state)
        self._save(event, state=state, because=because, is_settled=state != "COMMITTED", **changes)
        self._unsaved = None
        self._actions.leave()
        log.info("bundle=%s from=%s to=%s because=%s", _title(offer), before, state, because)
        self._notify()

    def _save(self, event: Event, **changes: Any) -> None:
        outbox = (*self.journal.outbox, event)[-MAX_OUTBOX:]
        self._deps.store.update(outbox=outbox, **changes)

    def _note_hook(self, verdict: HookVerdict) -> None:
        log.warning("bundle=%s %s", _title(self.journal.offer), verdict.because)
        self._deps.store.add_event(
            self._event("hook", self.journal.offer, verdict.because[:MAX_TEXT])
        )
        self._notify()

    def _event(
        self,
        kind: Literal["transition", "refused", "hook"],
        offer: Desired | None,
        because: str,
        before: str = "",
        after: str = "",
    ) -> Event:
        return Event(
            at=self._deps.clock.wall(),
            kind=kind,
            bundle=_title(offer),
            from_state=before,
            to_state=after,
            because=because,
            rollout=offer.rollout if offer else "",
            sequence=offer.sequence if offer else 0,
        )


def _title(offer: Desired | None) -> str:
    return f"{offer.bundle.name}-{offer.bundle.version}" if offer else "none"


def _one_line(error: EdgepackError) -> str:
    """An error as one sentence for a journal; the remedy is for whoever is at a keyboard."""
    return f"{error.problem} ({error.found_in})" if error.found_in else error.problem
