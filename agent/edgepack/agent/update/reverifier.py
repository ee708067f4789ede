"""Repeated verification of serving releases by the agent: schedule and findings.

The golden samples of each serving release run again on the serving provider, in a child process:
first a minute after the commit, for the device's own first answers; then at an interval, and once
when the device becomes hot. The next run waits so long that runs take a small share of the time.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from edgepack.agent.config import VerificationConfig
from edgepack.agent.runtime.verification import Verified
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import Slots
from edgepack.agent.update.updater import Updater
from edgepack.agent.update.work import Job, Worker
from edgepack.bundle.manifest import MANIFEST_FILE, Variant, decode_manifest
from edgepack.errors import BundleError
from edgepack.halt import Halt, HaltedError

log = logging.getLogger(__name__)

FIRST_S = 60.0
"""Seconds after a commit or start until the first run, when others have what they need."""
HOT_PAUSE_S = 600.0
"""Seconds between two runs of a hot device, at least."""
LOOK_S = 5.0

Verify = Callable[[Path, Variant, Halt], Verified]


class _Plan(NamedTuple):
    """Times of a release's next run, and of its last run or plan; monotonic clock, seconds."""

    active: ActivePointer
    due_at: float
    ran_at: float


class Reverifier:
    """Runs the golden samples of the serving releases in turn, and notes differences as symptoms.

    A difference is confirmed by a second run, with the files read from the disk again: a bit that
    flipped in the file cache is gone then.

    Args:
        worker: Worker that waits for the child.
        slots: The slots.
        verify: Runs the golden samples of a variant in a child.
        config: Pace.
        temperature_c: Returns the highest temperature, degrees Celsius; None if not known.

    Attributes:
        config: Pace; a reload of the settings replaces it.
    """

    def __init__(
        self,
        worker: Worker,
        slots: Slots,
        verify: Verify,
        config: VerificationConfig,
        temperature_c: Callable[[], float | None],
    ) -> None:
        self._worker, self._slots, self._verify = worker, slots, verify
        self.config, self._temperature_c = config, temperature_c
        self._plans: dict[str, _Plan] = {}
        self._job: tuple[str, ActivePointer, Job] | None = None
        self._suspects: set[str] = set()
        self._is_hot = False
        self._look_at = 0.0

    def turn(self, updaters: Sequence[Updater], now: float) -> float | None:
        """Continue to verify, unless an update does more than wait for its files.

        Returns:
            Seconds after which to call again at the latest; None if nothing is to be verified.

        Raises:
            OSError: A symptom cannot be saved now; a later run notes the symptom again.
        """
        if not self.config.interval_s:
            return None
        self._take_result(updaters, now)
        if any(updater.is_working for updater in updaters):
            if self._job:
                self._job[2].halt.set()
            return LOOK_S
        resting = {updater.name for updater in updaters if updater.is_at_rest}
        for updater in updaters:
            if updater.name in resting:
                self._plan(updater, now)
        self._feel_heat(now)
        due = [name for name in self._plans if name in resting and now >= self._plans[name].due_at]
        if self._job is None and due:
            self._begin(due[0])
            self._take_result(updaters, now)
        return LOOK_S if self._plans else None

    def _plan(self, updater: Updater, now: float) -> None:
        """Plan the first run of a release that serves anew; what served before is forgotten."""
        name, active = updater.name, updater.active
        plan = self._plans.get(name)
        if active is None or not active.committed:
            if self._plans.pop(name, None):
                self._forget(updater)
        elif plan is None or not _is_same(plan.active, active):
            self._forget(updater)
            self._plans[name] = _Plan(active, now + FIRST_S, now)

    def _forget(self, updater: Updater) -> None:
        if updater.name in self._suspects:
            self._suspects.remove(updater.name)
            updater.note_symptom("golden", "")

    def _feel_heat(self, now: float) -> None:
        """Let everything run once when the device becomes hot."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        temperature_c = self._temperature_c()
        is_hot = temperature_c is not None and temperature_c >= self.config.hot_c
        if is_hot and not self._is_hot:
            for name, plan in self._plans.items():
                due_at = max(now, plan.ran_at + HOT_PAUSE_S)
                self._plans[name] = plan._replace(due_at=min(plan.due_at, due_at))
        self._is_hot = is_hot

    def _begin(self, name: str) -> None:
        active, is_second = self._plans[name].active, name in self._suspects
        folder = self._slots.folder(active.digest)

        def run(halt: Halt) -> Verified:
            try:
                content = self._slots.read_file(active.digest, MANIFEST_FILE) or b""
                variant = decode_manifest(content).variant(active.choice.chosen)
            except (BundleError, KeyError) as error:
                return Verified(trouble=f"its manifest cannot be read: {error}")
            if is_second:
                for entry in variant.facts.files:
                    _leave_cache(folder / entry.path)
            return self._verify(folder, variant, halt)

        self._job = (name, active, self._worker.begin(run))

    def _take_result(self, updaters: Sequence[Updater], now: float) -> None:
        if self._job is None or not self._job[2].is_done:
            return
        name, active, job = self._job
        self._job = None
        plan = self._plans.get(name)
        if plan is None or plan.active != active:
            return
        try:
            result: Verified = job.result()
        except (HaltedError, OSError) as error:
            log.debug("model=%s verification ended early: %r", name, error)
            self._plans[name] = plan._replace(due_at=now + LOOK_S)
            return
        pause_s = max(self.config.interval_s, result.taken_s / self.config.share)
        is_first = bool(result.because) and name not in self._suspects
        due_at = now if is_first else now + pause_s
        self._plans[name] = plan._replace(due_at=due_at, ran_at=now)
        for problem in filter(None, (result.because, result.trouble)):
            log.warning("model=%s golden samples of %s: %s", name, active.bundle.version, problem)
        for updater in (one for one in updaters if one.name == name):
            if is_first:
                self._suspects.add(name)
            elif result.because:
                updater.note_symptom("golden", result.because)
            elif not result.trouble:
                self._forget(updater)


def _leave_cache(path: Path) -> None:
    """Ask the kernel to forget a file's content, so that the next reader reads from the disk."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def _is_same(one: ActivePointer, other: ActivePointer) -> bool:
    return (one.digest, one.choice.chosen, one.basis) == (
        other.digest,
        other.choice.chosen,
        other.basis,
    )
