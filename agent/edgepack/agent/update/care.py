"""Looking after slots while nothing else is to be done: files of a disk change, and are found.

Each release that serves is read now and then, slowly; soon when a process could not open it. What
is found damaged goes through the life cycle again, which serves the last good release meanwhile.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from edgepack.agent.state.slots import Slots
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.update.updater import Updater
from edgepack.agent.update.work import Bench, Job
from edgepack.bundle.verify import verify_slot
from edgepack.errors import BundleError
from edgepack.halt import Halt, HaltedError

log = logging.getLogger(__name__)

FIRST_LOOK_S = 60.0
"""After the start, when others have what they need of the disk."""
LISTEN_S = 5.0
"""How often the agent hears what processes could not open."""
PIECE_PAUSE_S = 0.05
"""After each MiB, so that reading takes no more than 20 MB/s of a disk that others need."""


class Care:
    """Reads what serves, one release after the other.

    Args:
        bench: Where it is read.
        slots: What is read.
        collect: Takes what serving processes said.
        interval_s: Time from one round to the next; 0 means never.
        now: Monotonic clock, seconds.
    """

    def __init__(
        self,
        bench: Bench,
        slots: Slots,
        collect: Callable[[], Collected],
        *,
        interval_s: float,
        now: float,
    ) -> None:
        self._bench = bench
        self._slots = slots
        self._collect = collect
        self._interval_s = interval_s
        self._round_at = now + min(FIRST_LOOK_S, interval_s) if interval_s else None
        self._listen_at = now
        self._waiting: list[str] = []
        self._job: tuple[str, Job] | None = None

    def turn(self, updaters: Sequence[Updater], now: float) -> float | None:
        """Goes on with it, unless an update is under way.

        Returns:
            Seconds after which to call again at the latest.
        """
        is_idle = all(updater.is_at_rest for updater in updaters)
        self._take_result(updaters)
        if not is_idle:
            if self._job:
                self._job[1].halt.set()
            return None
        if now >= self._listen_at:
            self._listen_at = now + LISTEN_S
            self._hear(updaters)
        if self._round_at is not None and now >= self._round_at:
            self._round_at = now + self._interval_s
            self._add(one.name for one in updaters)
        if self._job is None and self._waiting:
            self._begin(self._waiting.pop(0), updaters)
        return LISTEN_S if updaters else None

    def _hear(self, updaters: Sequence[Updater]) -> None:
        try:
            said = {trouble.model for trouble in self._collect().troubles}
        except OSError as error:
            log.warning("what serving processes say cannot be collected: %s", error)
            return
        self._add(one.name for one in updaters if one.name in said)

    def _add(self, names: Iterable[str]) -> None:
        self._waiting += [name for name in names if name not in self._waiting]

    def _begin(self, name: str, updaters: Sequence[Updater]) -> None:
        updater = next((one for one in updaters if one.name == name), None)
        active = updater.active if updater else None
        if active is None:
            return
        digest, folder = active.digest, self._slots.folder(active.digest)

        def look(halt: Halt) -> str:
            def pause() -> None:
                halt.wait(PIECE_PAUSE_S)
                halt.check()

            try:
                verify_slot(folder, digest, checkpoint=pause)
            except BundleError as error:
                return error.problem
            return ""

        self._job = (name, self._bench.begin(look))
        self._take_result(updaters)

    def _take_result(self, updaters: Sequence[Updater]) -> None:
        if self._job is None or not self._job[1].is_done:
            return
        name, job = self._job
        self._job = None
        try:
            rot = job.result()
        except HaltedError:
            self._add([name])  # An update came in between.
            return
        for updater in updaters:
            if updater.name == name and rot:
                log.warning("model=%s what serves is damaged: %s", name, rot)
                updater.orders.look_again()
