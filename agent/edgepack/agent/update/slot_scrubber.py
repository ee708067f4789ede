"""Scrubbing of slots between updates: find and report damage.

A quick check every few seconds finds missing files and files that are not regular. Each serving
release is read completely at intervals, slowly, and at once after a process could not open the
release. A damaged release runs through the life cycle again; the last good release serves
meanwhile.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import Slots
from edgepack.agent.update.choosing import describe_unreadable
from edgepack.agent.update.remembering import title_variant
from edgepack.agent.update.updater import Updater
from edgepack.agent.update.work import Job, Worker
from edgepack.bundle.slot import check_presence, verify_slot
from edgepack.errors import BundleError
from edgepack.halt import Halt, HaltedError

log = logging.getLogger(__name__)

FIRST_LOOK_S = 60.0
"""After the start, when others have what they need of the disk."""
LISTEN_S = 5.0
"""Seconds between glances, and between looks at what processes could not open."""
PIECE_PAUSE_S = 0.05
"""After each MiB, so that reading takes no more than 20 MB/s of a disk that others need."""
FIRST_REPAIR_S = 60.0
LAST_REPAIR_S = 24 * 3600.0
"""A repair that ended without the wanted release is tried again after the first time, then after
twice as long each time, up to the last."""

_Stamp = tuple[tuple[str, int, int, int, int], ...]


class SlotScrubber:
    """Reads the serving releases in turn.

    Args:
        worker: Worker that reads.
        slots: Slots to read.
        interval_s: Seconds between rounds; 0 means never.
        now: Monotonic clock, seconds.
    """

    def __init__(
        self,
        worker: Worker,
        slots: Slots,
        *,
        interval_s: float,
        now: float,
    ) -> None:
        self._worker = worker
        self._slots = slots
        self.set_interval(interval_s, now)
        self._listen_at = now
        self._waiting: list[str] = []
        self._urgent: set[str] = set()
        self._job: tuple[str, ActivePointer, Job] | None = None
        self._seen: dict[str, tuple[ActivePointer, _Stamp]] = {}
        self._faults: dict[str, tuple[str, str]] = {}
        """By model: the release that served, and its damage."""
        self._repairs: dict[str, tuple[float, float]] = {}
        self._glance_error: OSError | None = None
        self._read_errors: dict[str, OSError] = {}
        self._read_again_at = now

    def set_interval(self, interval_s: float, now: float) -> None:
        """Plan the next round, at the start or after a reload of the settings."""
        self._interval_s = interval_s
        self._round_at = now + min(FIRST_LOOK_S, interval_s) if interval_s else None

    @property
    def error(self) -> OSError | None:
        """Reason why the slots cannot be read now; None after a try that worked."""
        return self._glance_error or next(iter(self._read_errors.values()), None)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Damage found and not yet repaired, a sentence for each model."""
        return tuple(f"{name}: {fault}" for name, (_, fault) in self._faults.items())

    def turn(self, updaters: Sequence[Updater], now: float) -> float | None:
        """Continue to scrub, unless an update does more than wait for its files.

        Returns:
            Seconds after which to call again at the latest.

        Raises:
            OSError: The disk cannot be written now; a later turn tries again.
        """
        self._take_result(updaters, now)
        is_due = now >= self._listen_at
        if is_due:
            self._listen_at = now + LISTEN_S
            self._glance_at_all(updaters, now)
        if any(updater.is_working for updater in updaters):
            if self._job:
                self._job[2].halt.set()
            return LISTEN_S
        if is_due:
            self._hear(updaters)
        if self._round_at is not None and now >= self._round_at:
            self._round_at = now + self._interval_s
            self._add(one.name for one in updaters)
        busy = {updater.name for updater in updaters if not updater.is_at_rest}
        name = next((name for name in self._waiting if name not in busy), None)
        if self._job is None and name is not None and now >= self._read_again_at:
            self._waiting.remove(name)
            self._begin(name, updaters, now)
        return LISTEN_S if updaters else None

    def _glance_at_all(self, updaters: Sequence[Updater], now: float) -> None:
        self._glance_error = None
        for updater in updaters:
            if updater.is_at_rest and updater.active is not None:
                try:
                    self._glance(updater, updater.active, now)
                except OSError as error:
                    self._glance_error = error
                    self._add([updater.name])  # A fault that lasts is damage.

    def _glance(self, updater: Updater, active: ActivePointer, now: float) -> None:
        """Check presence, type and size of every file, where anything changed since the last
        glance; what changed is read completely, too.
        """
        name, folder = updater.name, self._slots.folder(active.digest)
        stamp = tuple(_stamp(folder))
        if (seen := self._seen.get(name)) != (active, stamp):
            self._seen.pop(name, None)
            if seen is not None and seen[0] == active:
                self._add([name])
            try:
                check_presence(folder, active.digest, active.choice.chosen)
            except BundleError as error:
                self._report(updater, active, error.problem, now)
                return
            self._seen[name] = (active, stamp)
        if updater.is_on_fallback:
            said = f"{title_variant(active)} serves, since the committed variant was damaged"
            if self._faults.setdefault(name, (active.digest, said))[1] == said:
                updater.note_symptom("damage", said)
            self._repair(updater, now)
        elif name in self._repairs and updater.journal.state == "COMMITTED":
            self._forget(updater)
        elif name in self._faults and self._faults[name][0] != active.digest:
            self._forget(updater)  # A newer release took the place of the damaged one.
        elif name in self._repairs and now >= self._repairs[name][0]:
            self._add([name])  # The repair failed: files of the right size may be damaged.

    def _report(self, updater: Updater, active: ActivePointer, fault: str, now: float) -> None:
        """Report damage once, and start the repair."""
        name = updater.name
        said = f"the slot of {active.bundle.version} is damaged: {fault}"
        if self._faults.get(name) != (active.digest, said):
            self._faults[name] = (active.digest, said)
            log.warning("model=%s %s", name, said)
            updater.note_symptom("damage", said)
        self._repair(updater, now)

    def _repair(self, updater: Updater, now: float) -> None:
        due_at, pause_s = self._repairs.get(updater.name, (now, FIRST_REPAIR_S))
        if now < due_at:
            return
        if updater.orders.look_again():
            self._repairs[updater.name] = (now + pause_s, min(2 * pause_s, LAST_REPAIR_S))

    def _forget(self, updater: Updater) -> None:
        self._repairs.pop(updater.name, None)
        if self._faults.pop(updater.name, None):
            updater.note_symptom("damage", "")

    def _hear(self, updaters: Sequence[Updater]) -> None:
        names = [one.name for one in updaters if one.take_heard()]
        self._urgent.update(names)
        self._add(names)

    def _add(self, names: Iterable[str]) -> None:
        self._waiting += [name for name in names if name not in self._waiting]

    def _begin(self, name: str, updaters: Sequence[Updater], now: float) -> None:
        updater = next((one for one in updaters if one.name == name), None)
        active = updater.active if updater else None
        if active is None:
            self._read_errors.pop(name, None)
            return
        folder, pause_s = self._slots.folder(active.digest), PIECE_PAUSE_S
        if name in self._urgent:
            self._urgent.remove(name)
            pause_s = 0.0  # A process waits for the model.

        def look(halt: Halt) -> str:
            def pause() -> None:
                halt.wait(pause_s)
                halt.check()

            try:
                verify_slot(folder, active.digest, active.choice.chosen, checkpoint=pause)
            except BundleError as error:
                return error.problem
            return ""

        self._job = (name, active, self._worker.begin(look))
        self._take_result(updaters, now)

    def _take_result(self, updaters: Sequence[Updater], now: float) -> None:
        if self._job is None or not self._job[2].is_done:
            return
        name, active, job = self._job
        self._job = None
        try:
            fault = job.result()
        except HaltedError:
            self._add([name])  # An update came in between.
            return
        except OSError as error:
            self._add([name])
            self._read_errors[name], self._read_again_at = error, now + LISTEN_S
            if not self._slots.note_unreadable(active.digest, now):
                return
            fault = describe_unreadable(error)
        else:
            self._read_errors.pop(name, None)
            self._slots.note_readable(active.digest)
        for updater in updaters:
            if updater.name != name or updater.active != active:
                continue
            if fault:
                self._report(updater, active, fault, now)
            elif not updater.is_on_fallback:
                self._forget(updater)


def _stamp(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield file metadata that changes if an entry of a slot is added, removed, replaced or
    written.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        status = entry.stat(follow_symlinks=False)
        yield (entry.path, entry.inode(), status.st_mode, status.st_size, status.st_mtime_ns)
        if entry.is_dir(follow_symlinks=False):
            yield from _stamp(folder / entry.name)
