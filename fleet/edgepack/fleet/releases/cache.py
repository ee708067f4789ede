"""Cache of the release folder: fetches missing releases and removes deleted releases.

The folder is a cache of the releases in the database. Each controller may have its own folder, so a
release that a controller accepted is fetched by the other controllers from its source; a release is
served only after complete verification.

A source may hang or drip until its deadline. So each host is contacted by a thread of its own, for
a single release at a time, and hosts that failed before use at most half of the threads.
"""

import logging
import random
import threading
import time
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import or_, select

from edgepack.bundle.trust import TrustPolicy
from edgepack.durable import disk_remedy, log_fault
from edgepack.errors import EdgepackError
from edgepack.fleet.database import audit
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.schema import ReleaseRow, RolloutRow
from edgepack.fleet.database.store import DatabaseAwayError, Store
from edgepack.fleet.documents.audit import Action
from edgepack.fleet.releases.fetching import Wanted, fetch_release, wanted_of
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.halt import HaltedError
from edgepack.web.urls import shown_url

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often it is looked at what lacks, unless somebody asks for it."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 4.0, 600.0
WORKERS = 8
"""Hosts that are asked at the same time."""
MAX_ASKED = 64
"""Releases that were asked for and are not here; devices repeat what they need."""
FRESH_S = 600.0
"""What was put here lately is not a leftover, whatever the database says yet."""
CHECK_S = 24 * 3600.0
"""How often every byte of a release is compared with its digest."""
READ_AGAIN_S = 5.0
"""Until a damaged release is read again, then twice as long each time: the disk may have failed."""
CHECK_PAUSE_S = 2.0
"""Between two releases that are read."""
OPEN = ("PREPARING", "RUNNING", "PAUSED")


class _Trouble(msgspec.Struct):
    """Failure of fetching a release: the reason, and the time of the next attempt."""

    said: str
    source: str
    pause_s: float
    next_at: float


class ReleaseCache:
    """Fetches releases of unfinished rollouts and requested releases.

    Args:
        store: The fleet's database.
        folder: Where releases lie.
        trust: Keys with valid signatures.
        name: This controller's.
    """

    def __init__(self, store: Store, folder: ReleaseFolder, trust: TrustPolicy, name: str) -> None:
        self._store, self._folder, self._trust, self._name = store, folder, trust, name
        self._asked: dict[str, None] = {}
        self._troubles: dict[str, _Trouble] = {}
        self._disk_fault = ""
        self._checked_at: dict[str, float] = {}
        self._read_again: dict[str, tuple[float, float]] = {}
        self._freed = threading.Condition()
        self._busy: dict[str, bool] = {}
        """Hosts that are asked now, and whether the release failed before."""
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="releases", daemon=True)
        self._checker = threading.Thread(target=self._check, name="release-check", daemon=True)

    def start(self) -> None:
        """Start."""
        self._folder.on_missing = self.want
        self._folder.signature_of = self._signature_of
        self._thread.start()
        self._checker.start()

    def stop(self) -> None:
        """Stop at once, even during a fetch; the fetch is repeated later."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(timeout=10)
        self._checker.join(timeout=10)
        with self._freed:
            self._freed.wait_for(lambda: not self._busy, timeout=10)

    def want(self, digest: str) -> None:
        """Note that a release was asked for which is not here; never wait."""
        if digest not in self._asked and len(self._asked) < MAX_ASKED:
            self._asked[digest] = None
            self._woken.set()

    def warnings(self) -> tuple[str, ...]:
        """Return why the folder cannot be read, and the releases that cannot be fetched."""
        said = tuple(trouble.said for trouble in tuple(self._troubles.values()))
        return (self._disk_fault, *said) if self._disk_fault else said

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look()
                self._disk_fault = ""
            except DatabaseAwayError as error:
                log.warning("releases wait because=%s", error.problem)
            except OSError as error:
                self._note_fault(error)
            except Exception:  # the outermost loop of this thread: it goes on
                log.exception("the release folder stumbled")
            self._woken.wait(LOOK_S)
            self._woken.clear()

    def _check(self) -> None:
        while not self._stopping.wait(CHECK_PAUSE_S):
            try:
                self.check_next()
            except HaltedError:
                return
            except (EdgepackError, OSError) as error:
                log.warning("releases are not checked because=%s", error)
            except Exception:  # the outermost loop of this thread: it goes on
                log.exception("the check of releases stumbled")

    def _note_fault(self, error: OSError) -> None:
        because = f"{self._name}: the folder of releases fails: {error.strerror or error}"
        if because not in self._disk_fault:
            log_fault(log, "the folder of releases fails", error)
        self._disk_fault = f"{because}; {disk_remedy(error)}"

    def check_next(self) -> None:
        """Read the release with the oldest check, if a check is due, and what was set aside."""
        now, here = time.monotonic(), self._folder.list_here()
        self._checked_at = {digest: at for digest, at in self._checked_at.items() if digest in here}
        due = {digest: self._checked_at.get(digest, now - CHECK_S) for digest in here}
        digest = min(due, key=due.__getitem__, default="")
        if digest and now - due[digest] >= CHECK_S:
            self._folder.check(digest, self._checkpoint)
            self._checked_at[digest] = now
        damaged = self._folder.list_damaged()
        self._read_again = {one: due for one, due in self._read_again.items() if one in damaged}
        for digest in damaged:
            at, pause_s = self._read_again.get(digest, (now, READ_AGAIN_S))
            if now >= at:
                self._read_again[digest] = (now + pause_s, min(2 * pause_s, CHECK_S))
                self._folder.restore(digest, self._checkpoint)

    def _checkpoint(self) -> None:
        if self._stopping.is_set():
            raise HaltedError

    def _signature_of(self, digest: str) -> str:
        with self._store.reading() as session:
            row = session.get(ReleaseRow, digest)
            return row.signature_sha256 if row is not None else ""

    def look(self) -> None:
        """Start to fetch each missing release that may be tried now; never wait for a source."""
        asked = (*self._asked, *self._folder.list_damaged())
        is_open = select(RolloutRow.digest).where(RolloutRow.state.in_(OPEN))
        needed = or_(ReleaseRow.digest.in_(is_open), ReleaseRow.digest.in_(asked))
        here = {path.name: path.stat().st_ctime for path in self._folder.root.iterdir()}
        with self._store.reading() as session:
            query = select(ReleaseRow).where(needed, ReleaseRow.deleted_at.is_(None))
            found = [wanted_of(row) for row in session.scalars(query)]
            deleted = session.scalars(
                select(ReleaseRow.digest).where(ReleaseRow.deleted_at.is_not(None))
            )
            gone = here.keys() & set(deleted)
        for digest in gone:
            if here[digest] < time.time() - FRESH_S:
                self._folder.forget(digest)
        missing = {wanted.digest: wanted for wanted in found if not self._folder.has(wanted.digest)}
        for digest in self._troubles.keys() - missing.keys():
            self._troubles.pop(digest, None)
            self._folder.problems.pop(digest, None)
        self._note_damage()
        for wanted in sorted(missing.values(), key=lambda wanted: wanted.digest in self._troubles):
            if self._start(wanted):
                missing.pop(wanted.digest)
        for digest in asked:
            if digest not in missing or digest in self._troubles:
                self._asked.pop(digest, None)

    def _note_damage(self) -> None:
        """Write damage and its end into the audit log."""
        while self._folder.unreported:
            digest, action, happened = self._folder.unreported[0]
            with self._store.reading() as session:
                row = session.get(ReleaseRow, digest)
                wanted = wanted_of(row) if row is not None else None
            if wanted is not None:
                self._note(wanted, f"{self._name}: {wanted.title} {happened}", action=action)
            self._folder.unreported.popleft()

    def _start(self, wanted: Wanted) -> bool:
        """Fetch a release in a thread; False if its host or all threads are busy, or too early."""
        before = self._troubles.get(wanted.digest)
        if before is not None and before.source != wanted.source:
            before = None
        if self._stopping.is_set() or (before is not None and time.monotonic() < before.next_at):
            return False
        host = urlsplit(wanted.source).netloc.lower()
        with self._freed:
            failed = sum(self._busy.values())
            is_full = len(self._busy) >= WORKERS or (before is not None and 2 * failed >= WORKERS)
            if host in self._busy or is_full:
                return False
            self._busy[host] = before is not None
        threading.Thread(
            target=self._fetch, args=(wanted, before, host), name="release", daemon=True
        ).start()
        return True

    def _fetch(self, wanted: Wanted, before: _Trouble | None, host: str) -> None:
        try:
            self._fetch_now(wanted, before)
        except DatabaseAwayError as error:
            log.warning("bundle=%s waits because=%s", wanted.digest, error.problem)
        except Exception:  # the outermost frame of ours in this thread
            log.exception("bundle=%s stumbled", wanted.digest)
        finally:
            with self._freed:
                del self._busy[host]
                self._freed.notify_all()
            self._woken.set()

    def _fetch_now(self, wanted: Wanted, before: _Trouble | None) -> None:
        if self._folder.has(wanted.digest):
            return
        try:
            fetch_release(wanted, self._folder, self._trust, self._stopping.is_set)
        except (EdgepackError, OSError) as error:
            if not self._stopping.is_set():
                self._note_failed(wanted, before, error)
            return
        self._troubles.pop(wanted.digest, None)
        self._folder.problems.pop(wanted.digest, None)
        log.info("bundle=%s fetched from=%s", wanted.digest, shown_url(wanted.source))
        self._note(wanted, f"{self._name} has fetched {wanted.title}")

    def _note_failed(
        self, wanted: Wanted, before: _Trouble | None, error: EdgepackError | OSError
    ) -> None:
        why = error.problem if isinstance(error, EdgepackError) else error.strerror or str(error)
        remedy = error.remedy if isinstance(error, EdgepackError) else None
        place = f" from {shown_url(wanted.source)}" if wanted.source else ""
        said = f"{self._name} cannot get the files of {wanted.title}{place}: {why}"
        said += f" ({remedy})" if remedy else ""
        self._folder.problems[wanted.digest] = said
        pause_s = min(2 * before.pause_s, LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
        self._troubles[wanted.digest] = _Trouble(
            said=said,
            source=wanted.source,
            pause_s=pause_s,
            next_at=time.monotonic() + pause_s * random.uniform(0.5, 1.0),
        )
        log.warning("bundle=%s not fetched because=%s", wanted.digest, why)
        if before is None or before.said != said:
            self._note(wanted, said)

    def _note(self, wanted: Wanted, because: str, *, action: Action = "release.fetch") -> None:
        entry = Entry(
            action=action,
            model=wanted.name,
            digest=wanted.digest,
            because=because,
            numbers={"source": wanted.source} if wanted.source else {},
        )
        with self._store.transaction() as session:
            audit.note(session, self._store.now(), entry)
