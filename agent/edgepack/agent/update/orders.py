"""The door of a model's update: which orders are taken, from the fleet or from a person."""

import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from edgepack.agent.update.dependencies import Clock, ModelParts
from edgepack.agent.update.lifecycle import GOING_BACK, RESTING, follow
from edgepack.agent.update.offer import check_local, check_order, check_release, check_time
from edgepack.agent.update.transitions import Transitions
from edgepack.errors import DeviceError
from edgepack.wire.orders import ModelOrder, RemoveModel, RunModel

log = logging.getLogger(__name__)

OfferOutcome = Literal["taken", "adopted", "known", "refused"]
"""What became of an offer: it will be acted on, it is what the update is about already, it was
acted on before, it came too late."""


class Orders:
    """Queue of a model's orders; an accepted order waits in the journal for its turn.

    Args:
        model: The model.
        clock: The time.
        transitions: Where a refusal is reported.
        leave: Has the state's action begun again.
        notify: Called when the journal says something new.
    """

    def __init__(
        self,
        model: ModelParts,
        clock: Clock,
        transitions: Transitions,
        *,
        leave: Callable[[], None],
        notify: Callable[[], None],
    ) -> None:
        self._model = model
        self._clock = clock
        self._transitions = transitions
        self._leave = leave
        self._notify = notify
        self._refused: ModelOrder | None = None

    def offer(self, order: ModelOrder, refusal: str = "") -> OfferOutcome:
        """Accept an order from the controller; the newest order wins.

        Before its bundle is verified, an order is stored only as the offer under evaluation.

        Args:
            order: Order to run.
            refusal: Reason to reject the order; reported if the order is new.

        Raises:
            TransferError: The message makes no sense; nothing was changed.
            OSError: The journal cannot be written; nothing was changed.
        """
        journal, store = self._model.store.journal, self._model.store
        check_order(self._model.name, order, acted_sequence=journal.acted_sequence)
        if self._model.is_sealed:
            self._refuse(order, self._model.trouble)
            return "refused"
        if order in (journal.pending, self._refused):
            return "known"
        if order == journal.offer:
            if journal.pending is not None:
                store.update(pending=None)  # What was said in between was taken back.
            return "known"
        if order.sequence <= journal.acted_sequence:
            return "known"
        if refusal:
            self._refuse(order, refusal)
            return "refused"
        if isinstance(order, RunModel):
            try:
                check_time(order, self._clock.wall())
            except DeviceError as error:
                self._refuse(order, error.problem)
                return "refused"
        return self._take(order)

    def install(self, order: ModelOrder) -> OfferOutcome:
        """Accept an order from a person on this device; a running update gives way to the order.

        An order for the release of the running update joins that update, and does not shorten its
        soak.

        Raises:
            DeviceError: A newer edgepack wrote the model's files; or an update runs, and the order
                would be rejected. The update continues.
            TransferError: The order makes no sense.
        """
        check_local(self._model.name, order)
        if self._model.is_sealed:
            raise DeviceError(self._model.trouble, remedy="update edgepack on this device")
        return self._take(self._join(order) if isinstance(order, RunModel) else order)

    def _join(self, order: RunModel) -> RunModel:
        """Return an order from this device as it continues with the running update.

        Raises:
            DeviceError: An update runs, and the order would be rejected.
        """
        journal = self._model.store.journal
        if journal.is_at_rest:
            return order
        is_running = journal.state not in RESTING | GOING_BACK
        for current in (journal.offer if is_running else None, journal.pending):
            if isinstance(current, RunModel) and _is_same(current, order):
                return msgspec.structs.replace(
                    current,
                    soak_s=max(current.soak_s, order.soak_s),
                    manifest=order.manifest,
                    signature=order.signature,
                )
        committed, previous = journal.committed, journal.previous
        try:
            check_release(
                order,
                self._model.counters.highest(self._model.name),
                committed=committed.bundle if committed else None,
                previous=previous.bundle if previous else None,
            )
        except DeviceError as error:
            running = self._transitions.title(journal.pending or journal.offer)
            raise DeviceError(f"{error.problem}; the update to {running} continues") from error
        return order

    def withdraw(self, order: ModelOrder, because: str) -> None:
        """End a local order if its release is not complete here; otherwise the order continues.

        Raises:
            OSError: The journal cannot be written.
        """
        journal = self._model.store.journal
        if _is_local(journal.pending, order):
            self._model.store.update(pending=None)
        elif _is_local(journal.offer, order) and journal.state in ("OFFERED", "DOWNLOADING"):
            self._transitions.move(follow(journal.state, "failure"), because)

    def look_again(self) -> bool:
        """Check the committed release again, because its slot is damaged.

        Returns:
            False where nobody knows the order that brought the release.

        Raises:
            OSError: The journal cannot be written.
        """
        journal = self._model.store.journal
        if journal.repair is None or not journal.is_at_rest:
            return False
        self._model.store.update(pending=journal.repair)
        return True

    def _take(self, order: ModelOrder) -> OfferOutcome:
        journal, store = self._model.store.journal, self._model.store
        current = journal.offer
        is_running = journal.state not in RESTING | GOING_BACK
        if is_running and current and _is_same(current, order):
            store.update(offer=order, pending=None)
            if journal.state == "OFFERED":
                self._leave()
            log.info(
                "bundle=%s adopted sequence=%d", self._transitions.title(order), order.sequence
            )
            self._notify()
            return "adopted"
        store.update(pending=order)
        return "taken"

    def _refuse(self, order: ModelOrder, because: str) -> None:
        """Reject an order at the door; an update that is under way continues."""
        self._refused = order
        if self._model.store.journal.is_at_rest and not self._model.is_sealed:
            changes = {"offer": order, "was_staged": False, "choice": None, "back": None}
            self._transitions.move("REJECTED", because, **changes)
        else:
            self._transitions.tell("refused", order, because)


def _is_same(current: ModelOrder, order: ModelOrder) -> bool:
    """Return True if both ask for the same in the end."""
    if isinstance(current, RunModel) and isinstance(order, RunModel):
        return current.bundle == order.bundle
    return isinstance(current, RemoveModel) and isinstance(order, RemoveModel)


def _is_local(current: ModelOrder | None, order: ModelOrder) -> bool:
    """Return True if an order came from this device, and asks for the same as another."""
    return current is not None and not current.sequence and _is_same(current, order)
