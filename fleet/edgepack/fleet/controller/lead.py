"""Leadership of this controller: permanent for a single controller, else by a lease."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from sqlalchemy.orm import Session

from edgepack.fleet.database import audit, lease
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.lease import LeadLostError, Lease
from edgepack.fleet.database.store import DatabaseAwayError, Store

log = logging.getLogger(__name__)

RENEWALS = 3
"""Number of renewals within the length of a lease."""
WARN_S = 7 * 24 * 3600.0
"""How long a restored database is a warning."""


class Lead(Protocol):
    """Leadership of this controller."""

    @property
    def is_held(self) -> bool:
        """True if this controller leads, as last known; `check` verifies."""

    def check(self, session: Session) -> int:
        """Verify leadership in a transaction with leader-only writes.

        Returns:
            The number of the term of leadership, which grows from term to term.

        Raises:
            LeadLostError: Another controller leads, or the database is an older copy.
        """

    def pass_on(self) -> None:
        """Give up leadership, because this controller cannot reach the broker."""

    def warnings(self) -> tuple[str, ...]:
        """Return warnings of the database, a sentence each."""


class SingleController:
    """Leadership of the only controller."""

    is_held = True

    def check(self, _: Session) -> int:
        """Return 0 without a check: no other controller exists."""
        return 0

    def pass_on(self) -> None:
        """Keep leadership: no other controller exists."""

    def warnings(self) -> tuple[str, ...]:
        """Return no warning: the database's lock keeps a single controller."""
        return ()


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
        self._lease: Lease | None = None
        self._newest = self._seen = 0
        self._lost: tuple[int, int] | None = None
        self._restored_at: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lead", daemon=True)
        self.leader_client_id = leader_client_id

    @property
    def is_held(self) -> bool:
        """True if this controller leads, as last known."""
        return self._lease is not None

    def check(self, session: Session) -> int:
        """Verify leadership in the transaction; return the epoch.

        Raises:
            LeadLostError: Another controller leads, or the database is an older copy.
        """
        held = self._lease
        try:
            return lease.check(session, held)
        except LeadLostError:
            self._lose(held)
            raise

    def warnings(self) -> tuple[str, ...]:
        """Warn of a database that was restored from an older copy."""
        at = self._restored_at
        if at is None or self._store.now() - at >= WARN_S:
            return ()
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
        return (
            f"the database was restored from an older copy, seen at {moment} UTC: what it stored "
            "after that copy is lost; enrol devices that were enrolled since again "
            "(edgepack fleet audit --action database.restored)",
        )

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
        if (held := self._lease) is None:
            return
        self._lose(held)
        try:
            with self._store.aside() as session:
                lease.give_up(session, held)
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
        if held := self._lease:
            try:
                with self._store.aside() as session:
                    renewed = lease.renew(session, held, self._length_s)
            except LeadLostError:
                self._lose(held)
                return
            self._see(renewed.renewals)
            if self._lease is held:
                self._lease = renewed
            if renewed.asked != held.asked:
                self._on_change()
            return
        with self._store.aside() as session:
            is_free, renewals = lease.end_expired(session)
        self._see(renewals)
        if not is_free or time.monotonic() < self._not_before or not self._may_lead():
            return
        self._store.set_clock()
        with self._store.transaction() as session:
            taken = lease.take(
                session,
                holder=self._holder,
                leader_client_id=self.leader_client_id,
                length_s=self._length_s,
                above=self._newest,
            )
            if taken is not None and self._lost is not None:
                self._note_lost(session, *self._lost)
        if taken is not None:
            self._lost = None
            self._see(taken.renewals)
            self._lease, self.leader_client_id = taken, taken.leader_client_id
            log.warning("controller=%s leads epoch=%d", self._holder, taken.epoch)
            self._on_change()

    def _see(self, renewals: int) -> None:
        """Compare the number of renewals with the number before: an older copy has a lower one."""
        if renewals < self._seen:
            self._restored_at, self._lost = self._store.now(), (renewals, self._seen)
            log.warning(
                "the database was restored from an older copy renewals=%d before=%d",
                *self._lost,
            )
        elif renewals > self._newest:
            self._lost = None  # Another leader has noted it.
        self._seen, self._newest = renewals, max(renewals, self._newest)

    def _note_lost(self, session: Session, renewals: int, before: int) -> None:
        entry = Entry(
            "database.restored",
            because="the database was restored from an older copy while the fleet was served",
            numbers={"renewals": renewals, "renewals before": before},
        )
        audit.note(session, self._store.now(), entry)

    def _lose(self, held: Lease | None) -> None:
        if held is None or (now_held := self._lease) is None or now_held.epoch != held.epoch:
            return
        self._lease = None
        log.warning("controller=%s leads no longer epoch=%d", self._holder, held.epoch)
        self._on_change()
