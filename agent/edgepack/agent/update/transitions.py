"""Transitions of a model's update: saved in the journal, then logged and reported."""

import logging
from collections.abc import Callable
from typing import Any

from edgepack.agent.update.dependencies import Clock, ModelParts
from edgepack.agent.update.journal import MAX_OUTBOX, WatchNote
from edgepack.agent.update.lifecycle import State
from edgepack.wire.orders import BundleRef, ModelOrder, RunModel
from edgepack.wire.telemetry import Event

log = logging.getLogger(__name__)

MAX_TEXT = 2000
"""Characters of a reason that are kept."""


class Transitions:
    """Writer of a model's journal.

    Args:
        model: The model.
        clock: The time.
        leave: Called after every transition, before the report: the state's action is over.
        notify: Called when the journal says something new.
    """

    def __init__(
        self,
        model: ModelParts,
        clock: Clock,
        *,
        leave: Callable[[], None],
        notify: Callable[[], None],
    ) -> None:
        self._model = model
        self._clock = clock
        self._leave = leave
        self._notify = notify

    def move(self, state: State, because: str, **changes: Any) -> None:
        """Save a transition, then report the transition.

        Args:
            state: The state that follows.
            because: Reason, as a sentence.
            changes: Fields of the journal to save with the transition.

        Raises:
            OSError: The transition cannot be saved; nothing has changed.
        """
        journal = self._model.store.journal
        offer = changes.get("offer", journal.offer)
        because = because[:MAX_TEXT]
        event = self._event("transition", offer, because, journal.state, state)
        self._model.store.update(
            outbox=(*journal.outbox, event)[-MAX_OUTBOX:],
            state=state,
            because=because,
            is_settled=state != "COMMITTED",
            **changes,
        )
        self._leave()
        # Of its own accord, the watch left a release for a worse one.
        level = logging.WARNING if state == "ROLLED_BACK" and "watch" in changes else logging.INFO
        log.log(
            level,
            "bundle=%s from=%s to=%s because=%s",
            *(self.title(offer), journal.state, state, because),
        )
        self._notify()

    def watch(self, note: WatchNote, because: str = "", **changes: Any) -> None:
        """Save a decision of the watch, then report the decision.

        Args:
            note: The watch's memory, with the decision.
            because: Reason, as a sentence; "" takes the reason of the decision.
            changes: Fields of the journal to save with the decision.

        Raises:
            OSError: The decision cannot be saved; nothing has changed.
        """
        journal = self._model.store.journal
        because = (because or note.told.because or "no symptom is left")[:MAX_TEXT]
        before, after = journal.watch.told.state, note.told.state
        event = self._event("watch", journal.offer, because, before, after)
        outbox = (*journal.outbox, event)[-MAX_OUTBOX:]
        self._model.store.update(outbox=outbox, watch=note, **changes)
        log.log(
            logging.WARNING if note.told.symptom else logging.INFO,
            "model=%s watch=%s symptom=%s wanted=%s chosen=%s because=%s",
            *(self._model.name, after, note.told.symptom or "none"),
            *(note.told.wanted, note.told.chosen, because),
        )
        self._notify()

    def note(self, kind: str, because: str) -> None:
        """Report an event that is not a transition: a hook's answer, a wait, a warning."""
        offer = self._model.store.journal.offer
        level = logging.INFO if kind == "wait" else logging.WARNING
        log.log(level, "bundle=%s %s", self.title(offer), because)
        self.tell(kind, offer, because)

    def tell(self, kind: str, order: ModelOrder | None, because: str) -> None:
        """Report an event to the fleet about an order that need not be under way."""
        self._model.store.add_event(self._event(kind, order, because[:MAX_TEXT]))
        self._notify()

    def title(self, order: ModelOrder | None) -> str:
        """Return the order's title for logs and events."""
        return title(order.bundle) if isinstance(order, RunModel) else self._model.name

    def _event(
        self,
        kind: str,
        order: ModelOrder | None,
        because: str,
        before: str = "",
        after: str = "",
    ) -> Event:
        return Event(
            at=self._clock.wall(),
            kind=kind,
            model=self._model.name,
            bundle=self.title(order),
            from_state=before,
            to_state=after,
            because=because,
            rollout=order.rollout if order else "",
            sequence=order.sequence if order else 0,
        )


def title(bundle: BundleRef) -> str:
    """Return a bundle's name for logs and events."""
    return f"{bundle.name}-{bundle.version}"
