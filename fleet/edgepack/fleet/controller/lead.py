"""Whether this controller leads: always when it is the only one, else while it holds the lease."""

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
"""How often a lease is renewed in the time that it holds."""


class Lead(Protocol):
    """Whether this controller leads."""

    @property
    def is_held(self) -> bool:
        """Whether it does, as far as it knows; `check` is sure."""

    def check(self, session: Session) -> None:
        """Makes sure of it in a transaction that writes what only a leader may.

        Raises:
            LeadLostError: It does not.
        """

    def pass_on(self) -> None:
        """Lets another controller try, since this one does not reach the broker."""


class Sole:
    """The lead of the only controller there is."""

    is_held = True

    def check(self, _: Session) -> None:
        """There is nobody else."""

    def pass_on(self) -> None:
        """There is nobody else."""


class Elected:
    """Takes the lease when nobody holds it, and keeps it, on a thread of its own.

    Args:
        store: The database that the controllers share.
        holder: Who takes it, see `lease.make_holder`; the store's sessions bear that name.
        voice: Client id of whoever leads, if none was chosen yet.
        length_s: How long the lease holds; another controller leads as long after this one died.
        may_lead: Whether this controller could do what a leader does.
        is_working: Whether its thread goes round; while it does not, another may lead.
        on_stuck: Called on the lease's thread now and then while it does not.
        on_change: Called on that thread when the lead came or went, and when another controller
            has left something to do.
    """

    def __init__(
        self,
        store: Store,
        *,
        holder: str,
        voice: str,
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
        self.voice = voice

    @property
    def is_held(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._epoch > 0

    def check(self, session: Session) -> None:
        """Makes sure that it leads.

        Raises:
            LeadLostError: It does not.
        """
        epoch = self._epoch
        try:
            lease.check(session, epoch)  # there is no epoch 0
        except LeadLostError:
            self._lose(epoch)
            raise

    def start(self) -> None:
        """Leads at once if nobody does."""
        self._try()
        self._thread.start()

    def stop(self) -> None:
        """Lets another controller lead."""
        self._stopping.set()
        self._thread.join()
        self._give_up()

    def pass_on(self) -> None:
        """Lets another controller lead, and tries again after a while."""
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
                session, holder=self._holder, voice=self.voice, length_s=self._length_s
            )
        if taken is not None:
            self._epoch, self.voice = taken
            log.warning("controller=%s leads epoch=%d", self._holder, taken.epoch)
            self._on_change()

    def _lose(self, epoch: int) -> None:
        if epoch and self._epoch == epoch:
            self._epoch = 0
            log.warning("controller=%s leads no longer epoch=%d", self._holder, epoch)
            self._on_change()
