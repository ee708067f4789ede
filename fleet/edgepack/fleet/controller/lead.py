"""Leadership of this controller: permanent for a single controller, else by a lease."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from sqlalchemy.orm import Session

from edgepack.fleet.database import lease
from edgepack.fleet.database.lease import LeadLostError
from edgepack.fleet.database.store import DatabaseAwayError, Store

log = logging.getLogger(__name__)

RENEWALS = 3
"""Number of renewals within the length of a lease."""


class Lead(Protocol):
    """Leadership of this controller."""

    @property
    def is_held(self) -> bool:
        """True if this controller leads, as last known; `check` verifies."""

    def check(self, session: Session) -> None:
        """Verify leadership in a transaction with leader-only writes.

        Raises:
            LeadLostError: Another controller leads.
        """

    def pass_on(self) -> None:
        """Give up leadership, because this controller cannot reach the broker."""


class SingleController:
    """Leadership of the only controller."""

    is_held = True

    def check(self, _: Session) -> None:
        """Return without a check: no other controller exists."""

    def pass_on(self) -> None:
        """Keep leadership: no other controller exists."""


class LeaseElection:
    """Thread that takes the lease when the lease is free, and renews the lease.

    Args:
        store: The database that the controllers share.
        holder: Name of this holder, see `lease.make_holder`; the store's sessions have this name.
        leader_client_id: MQTT client id of the leader, stored if the lease has none yet.
        length_s: Length of the lease, seconds; another controller takes over that long after this
            controller died.
        may_lead: Returns True if this controller can do a leader's work.
        is_working: Returns True while the controller's thread runs; else the lease is given up.
        on_stuck: Called repeatedly on the lease's thread while the controller's thread hangs.
        on_change: Called on the lease's thread when leadership changes, and when another controller
            leaves work for the leader.
    """

    def __init__(
        self,
        store: Store,
        *,
        holder: str,
        leader_client_id: str,
        length_s: float,
        may_lead: Callable[[], bool],
        is_working: Callable[[], bool],
        on_stuck: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self._store, self._holder = store, holder
        self._length_s = length_s
        self._may_lead, self._on_change = may_lead, on_change
        self._is_working, self._on_stuck = is_working, on_stuck
        self._not_before = 0.0
        self._epoch = 0
        self._asked = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lead", daemon=True)
        self.leader_client_id = leader_client_id

    @property
    def is_held(self) -> bool:
        """True if this controller leads, as last known."""
        return self._epoch > 0

    def check(self, session: Session) -> None:
        """Verify leadership in the transaction.

        Raises:
            LeadLostError: Another controller leads.
        """
        epoch = self._epoch
        try:
            lease.check(session, epoch)  # there is no epoch 0
        except LeadLostError:
            self._lose(epoch)
            raise

    def start(self) -> None:
        """Take a free lease at once, and start the thread."""
        self._try()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and give up the lease."""
        self._stopping.set()
        self._thread.join()
        self._give_up()

    def pass_on(self) -> None:
        """Give up the lease, and do not take the lease again for two lease lengths."""
        self._not_before = time.monotonic() + 2 * self._length_s
        self._give_up()

    def _give_up(self) -> None:
        if not (epoch := self._epoch):
            return
        self._lose(epoch)
        try:
            with self._store.aside() as session:
                lease.give_up(session, epoch)
        except DatabaseAwayError as error:
            log.warning("the lease runs out by itself because=%s", error.problem)

    def _run(self) -> None:
        while not self._stopping.wait(self._length_s / RENEWALS):
            try:
                self._try()
            except DatabaseAwayError as error:
                log.warning("the lease waits because=%s", error.problem)
            except Exception:  # the outermost loop of this thread: it goes on
                log.exception("the lease stumbled")

    def _try(self) -> None:
        if not self._is_working():
            if time.monotonic() >= self._not_before:
                log.error("controller=%s hangs, and leaves its work to the others", self._holder)
                self._on_stuck()
                self.pass_on()
            return
        if epoch := self._epoch:
            try:
                with self._store.aside() as session:
                    asked = lease.renew(session, epoch, self._length_s)
            except LeadLostError:
                self._lose(epoch)
                return
            if asked != self._asked:
                self._asked = asked
                self._on_change()
            return
        if time.monotonic() < self._not_before or not self._may_lead():
            return
        with self._store.aside() as session:
            if not lease.end_expired(session):
                return
        self._store.set_clock()
        with self._store.transaction() as session:
            taken = lease.take(
                session,
                holder=self._holder,
                leader_client_id=self.leader_client_id,
                length_s=self._length_s,
            )
        if taken is not None:
            self._epoch, self.leader_client_id = taken
            log.warning("controller=%s leads epoch=%d", self._holder, taken.epoch)
            self._on_change()

    def _lose(self, epoch: int) -> None:
        if epoch and self._epoch == epoch:
            self._epoch = 0
            log.warning("controller=%s leads no longer epoch=%d", self._holder, epoch)
            self._on_change()
