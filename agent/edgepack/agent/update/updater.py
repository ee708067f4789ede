"""The updates of a model, from offer to commit: walks the life cycle table.

The state is saved, then acted upon; an action that a restart or a full disk interrupts runs again.
`actions` has the actions, `lifecycle` the order of states, `orders` the accepted orders.
"""

import logging
from collections.abc import Callable

from edgepack.agent.state.disk import DiskWatch, describe_fault
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.transfer.chunk_status import ChunkOutcome, Content
from edgepack.agent.update.actions import Actions
from edgepack.agent.update.choosing import is_gone
from edgepack.agent.update.context import Ended, Wait
from edgepack.agent.update.dependencies import AgentDependencies, ModelParts
from edgepack.agent.update.footprint import serving_bytes
from edgepack.agent.update.journal import Journal
from edgepack.agent.update.lifecycle import RESTING, TABLE, Row, State, follow, resume
from edgepack.agent.update.orders import Orders
from edgepack.agent.update.remembering import begin_order, name_pointer
from edgepack.agent.update.transitions import Transitions
from edgepack.agent.watch.table import Symptom
from edgepack.durable import is_disk_fault
from edgepack.errors import EdgepackError
from edgepack.wire.coded import CodedChunk
from edgepack.wire.orders import ModelOrder, RemoveModel, RunModel
from edgepack.wire.reports import DeviceFacts
from edgepack.wire.telemetry import Event

log = logging.getLogger(__name__)

DISK_RETRY_S = 5.0
"""Seconds until the agent tries again what the disk did not do."""


class Updater:
    """The single update of a model at a time.

    Args:
        deps: Dependencies of all updates.
        model: Dependencies of this update.
        disk: Is notified of the disk's faults.
        notify: Called after every transition, when the journal says something new.

    Attributes:
        orders: Where its orders come in.
    """

    def __init__(
        self,
        deps: AgentDependencies,
        model: ModelParts,
        disk: DiskWatch,
        notify: Callable[[], None],
    ) -> None:
        self._deps = deps
        self._model = model
        self._disk = disk
        self._is_resumed = True
        self._fails_since: float | None = None
        self._retry_at = 0.0
        self._unsaved: Ended | None = None
        self._transitions = Transitions(model, deps.clock, leave=self._leave, notify=notify)
        self._actions = Actions(deps, model, self._transitions.note)
        self.orders = Orders(
            model, deps.clock, self._transitions, leave=self._actions.leave, notify=notify
        )

    @property
    def name(self) -> str:
        """The model."""
        return self._model.name

    @property
    def journal(self) -> Journal:
        """The last saved journal."""
        return self._model.store.journal

    @property
    def facts(self) -> DeviceFacts:
        """Facts of the device."""
        return self._actions.facts

    @property
    def active(self) -> ActivePointer | None:
        """Serving release; None if nothing serves, or the pointer cannot be read yet."""
        try:
            return self._model.pointer.read()
        except OSError:
            return None

    @property
    def base(self) -> str:
        """The model that this adapter belongs to, also while it does not serve; "" for others."""
        known = self.active or self.journal.committed
        return known.base if known is not None else ""

    @property
    def progress(self) -> float:
        """Share of the bytes that are there, 0..1, while downloading."""
        return self._actions.progress

    @property
    def trouble(self) -> str:
        """The fault of the model's files, or why nothing serves; "" if all is well."""
        if self._model.trouble or self.active is not None:
            return self._model.trouble
        return self._actions.watcher.trouble

    @property
    def disk_fault(self) -> str:
        """Reason why the disk blocks the update; "" if the disk works."""
        return self._disk.fault_of(self.name)

    @property
    def is_sealed(self) -> bool:
        """True if a newer edgepack wrote the model's files: the model must stay unchanged."""
        return self._model.is_sealed

    @property
    def is_at_rest(self) -> bool:
        """True if nothing is under way, and nothing waits."""
        return self.journal.is_at_rest

    @property
    def is_working(self) -> bool:
        """True if an update is under way that does more than wait for its files."""
        return not self.is_at_rest and self.journal.state not in ("OFFERED", "DOWNLOADING")

    @property
    def is_on_fallback(self) -> bool:
        """True if another variant or release serves at rest, since the committed variant was
        damaged.
        """
        active, committed = self.active, self.journal.committed
        if not self.is_at_rest or active is None or committed is None:
            return False
        return name_pointer(active) != name_pointer(committed)

    def kept_slots(self) -> frozenset[str] | None:
        """Return slots that this model needs; None when that cannot be known."""
        if self.is_sealed:
            return None
        try:
            self._model.pointer.read()
        except OSError:
            return None
        offer = self.journal.offer
        is_running = self.journal.state not in RESTING and isinstance(offer, RunModel)
        under_way = {offer.bundle.digest} if is_running and isinstance(offer, RunModel) else set()
        return self._actions.own_slots() | under_way

    def promised_bytes(self) -> int:
        """Return disk that was promised to the update under way and is not taken yet."""
        journal = self.journal
        if journal.state != "DOWNLOADING" or not isinstance(journal.offer, RunModel):
            return 0
        taken = self._deps.slots.allocated_bytes(journal.offer.bundle.digest)
        return max(0, journal.size_bytes - taken)

    @property
    def changes_firmware(self) -> bool:
        """True if the running update has begun to change the device's firmware or agent."""
        plan = self.journal.firmware
        return self.journal.state not in RESTING and plan is not None and bool(plan.previous)

    def why_not_on(self, basis: str, version: str, since: float) -> str | None:
        """Return why the serving release is not proven on a version of firmware or agent.

        Args:
            basis: Name of the version in the basis of a choice.
            version: Running version.
            since: Begin of its trial, seconds since the epoch.

        Returns:
            The reason; "" before the watch has probed the release; None for a proven release, and
            during an update, which probes for itself.
        """
        told, active = self.journal.watch.told, self.active
        if self.journal.state not in RESTING:
            return None
        if told.symptom == "basis" and told.state == "DEGRADED" and told.since >= since:
            return told.because
        if active is None or active.basis.get(basis, "") == version:
            return None
        return ""

    def memory_bytes(self) -> int:
        """Return the memory of the serving release."""
        return serving_bytes(self._deps.slots, self.active)

    def coming_bytes(self) -> int:
        """Return the memory of the release that an update will add."""
        is_coming = self.journal.state not in (*RESTING, "OFFERED", "REMOVING")
        return self.journal.memory_bytes if is_coming else 0

    def is_coming(self, digest: str) -> bool:
        """Return True if an update to a bundle is under way, and does not serve yet."""
        journal = self.journal
        is_moving = journal.state not in (*RESTING, "REMOVING")
        offer = journal.offer
        return is_moving and isinstance(offer, RunModel) and offer.bundle.digest == digest

    def start(self) -> None:
        """Continue at the journal's state, after the agent has started.

        While the disk cannot be written, `advance` tries again; the serving release continues.
        """
        self._is_resumed = self.is_sealed
        try:
            self._resume()
        except OSError as error:
            self._note_fault(error)

    def _resume(self) -> None:
        """Note the restart, and find the state to continue in.

        Raises:
            OSError: The journal or the pointer cannot be read or written.
        """
        if self._is_resumed:
            return
        self._mend()
        journal = self.journal
        if journal.state in RESTING and journal.is_settled:
            self._is_resumed = True
            return
        restarts = journal.restarts + (self._is_risky and not journal.was_stopped)
        after = resume(
            journal.state,
            restarts=restarts,
            max_restarts=self._deps.config.limits.max_restarts,
        )
        if after.state == journal.state:
            if restarts != journal.restarts or journal.was_stopped:
                self._model.store.update(restarts=restarts, was_stopped=False)
            log.info(
                "bundle=%s resumed=%s restarts=%d",
                self._transitions.title(journal.offer),
                after.state,
                restarts,
            )
        else:
            self._transitions.move(after.state, after.because, restarts=restarts, was_stopped=False)
        self._is_resumed = True

    def _mend(self) -> None:
        """Repair journal or pointer from the other, if either was lost."""
        journal, pointer = self.journal, self._model.pointer
        serving = pointer.read()
        is_lost = serving is None and journal.committed and not is_gone(journal)
        if is_lost and journal.committed and journal.state != "REMOVING":
            pointer.write(journal.committed)
        elif serving and serving.committed and journal.committed is None:
            self._model.store.update(committed=serving)

    def note_sent(self, event: Event) -> None:
        """Note that the broker has acknowledged an event."""
        self._model.store.drop_event(event)

    def accept_chunk(self, sha256: str, index: int, content: Content) -> ChunkOutcome:
        """Take a chunk that came."""
        return self._actions.accept_chunk(sha256, index, content)

    def accept_coded(self, sha256: str, coded: CodedChunk) -> ChunkOutcome:
        """Accept several chunks in a coded message."""
        return self._actions.accept_coded(sha256, coded)

    def note_symptom(self, symptom: Symptom, because: str) -> None:
        """Note a symptom that another part measures; "" for its end.

        Raises:
            OSError: The journal cannot be written.
        """
        self._actions.watcher.note(symptom, because, self._transitions)

    def take_heard(self) -> tuple[str, ...]:
        """Return, once, why processes could not open the serving release."""
        heard, self._actions.watcher.heard = self._actions.watcher.heard, []
        return tuple(heard)

    def compare_again(self) -> None:
        """Choose a variant again, because a provider returned or the base of an adapter changed."""
        self._actions.watcher.compare_again()

    def note_connected(self) -> None:
        """Note a new connection to the broker, and repeat requests."""
        self._actions.note_connected()

    def suspend(self) -> None:
        """Note the progress of a download before the agent stops."""
        try:
            self._actions.suspend()
            if self._is_resumed and not self.is_sealed and self._is_risky:
                self._model.store.update(was_stopped=True)
        except OSError as error:
            log.warning("cannot save the progress of the update: %s", error)

    def count_fault(self) -> None:
        """Count a fault that ends the agent against the update that is under way."""
        journal = self.journal
        if journal.state in RESTING or self._is_risky or self.is_sealed:
            return  # In a risky state the restart counts.
        try:
            self._model.store.update(restarts=journal.restarts + 1)
        except OSError as error:
            log.warning("the fault could not be counted: %s", error)

    @property
    def _is_risky(self) -> bool:
        """True if the release or a hook may have caused a restart."""
        state = self.journal.state
        has_hooks = bool(self._deps.config.hooks.folder) and state not in RESTING
        return TABLE[state].is_risky or has_hooks

    def advance(self) -> float | None:
        """Continue as far as possible now.

        Returns:
            Seconds after which to call again at the latest; None when only a message can help.
        """
        now = self._deps.clock.monotonic()
        if now < self._retry_at:
            return self._retry_at - now
        while not self.is_sealed:
            try:
                self._resume()
                wait = self._step()
            except OSError as error:
                self._note_fault(error)
                return DISK_RETRY_S
            if wait is None or self.is_at_rest or self._has_worked_for_long():
                self._fails_since, self._retry_at = None, 0.0
                self._disk.works(self.name)
            if wait is not None:
                again_s = self._actions.watcher.due_s
                return wait.seconds if wait.seconds is not None else again_s
        return None

    def _note_fault(self, error: OSError) -> None:
        now = self._deps.clock.monotonic()
        self._disk.failed(self.name, error)
        self._fails_since = now if self._fails_since is None else self._fails_since
        self._retry_at = now + DISK_RETRY_S

    def _has_worked_for_long(self) -> bool:
        """Return True if the failed part has worked since: waiting for background work proves
        nothing.
        """
        now = self._deps.clock.monotonic()
        return not self._actions.is_busy and now >= self._retry_at + 2 * DISK_RETRY_S

    def _step(self) -> Wait | None:
        """Run a step of the table; return None if the next step can follow at once."""
        journal = self.journal
        row = TABLE[journal.state]
        pending = journal.pending
        is_healing = journal.watch.told.state == "HEALING"
        is_over = isinstance(pending, RemoveModel) or (pending is not None and is_healing)
        if journal.state in RESTING and journal.is_settled and not is_over:
            wait = self._actions.watcher.turn(self._transitions)
            if wait is not None:
                return wait
            if self.journal != journal:
                return None
        if pending and row.newer == "OFFERED" and journal.is_settled:
            self._begin(pending, row)
            return None
        if pending and row.newer and row.newer != "OFFERED":
            self._transitions.move(row.newer, f"superseded by {self._transitions.title(pending)}")
            return None
        step = self._unsaved or self._act(row)
        if isinstance(step, Wait):
            return step
        self._unsaved = step  # An action is not run again because the journal's disk was full.
        self._transitions.move(follow(journal.state, step.outcome), step.because, **step.changes)
        return None

    def _act(self, row: Row) -> Ended | Wait:
        try:
            return self._actions.act()
        except OSError as error:
            if row.failure is None or (is_disk_fault(error) and not self._is_tired_of_waiting()):
                raise
            self._actions.free_space()
            because = describe_fault(error, self._deps.state_dir)
            return Ended(outcome="failure", because=because)
        except EdgepackError as error:
            if row.failure is None:
                raise
            return Ended(outcome="failure", because=_one_line(error))

    def _is_tired_of_waiting(self) -> bool:
        """Return True if the disk has failed for the whole patience of an update."""
        now, since = self._deps.clock.monotonic(), self._fails_since
        return now - (now if since is None else since) >= self._deps.disk_patience_s

    def _leave(self) -> None:
        """Forget an action's unsaved work, because the state has changed."""
        self._unsaved = None
        self._actions.leave()

    def _begin(self, order: ModelOrder, row: Row) -> None:
        asked = "offered" if isinstance(order, RunModel) else "told to go"
        by = f"by {order.rollout}" if order.rollout else "on this device"
        after: State = "OFFERED" if isinstance(order, RunModel) else row.removal or "REMOVING"
        self._transitions.move(
            after,
            f"{asked} {by}",
            offer=order,
            taken_at=self._deps.clock.wall(),
            pending=None,
            restarts=0,
            was_stopped=False,
            candidates=(),
            rejected={},
            size_bytes=0,
            memory_bytes=0,
            is_too_slow=False,
            was_staged=False,
            firmware=None,
            choice=None,
            back=None,
            watch=begin_order(self.journal, order),
        )


def _one_line(error: EdgepackError) -> str:
    """Return an error as a sentence for a journal; the remedy is for a person at a keyboard."""
    return f"{error.problem} ({error.found_in})" if error.found_in else error.problem
