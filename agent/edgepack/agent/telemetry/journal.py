"""Journal of telemetry: numbered windows until the fleet has them, and the counts of the spool.

A window and the spooled counts that it stands for are stored in the same step. After any end of the
agent, the difference between the spool and the journal is therefore exactly what no window has. The
fleet counts each number of a journal once, and acknowledges; windows that may have been sent never
change, and all others merge where the journal would grow beyond its bound.
"""

import logging
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgepack.agent.state.state_file import StateFile, Write, read_regular
from edgepack.agent.telemetry.drift import DriftWatch, ReleaseState
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.telemetry.spool import Spooled
from edgepack.agent.telemetry.totals import ReleaseTotal
from edgepack.durable import write_file
from edgepack.versions import Format, NewerVersionError, Version
from edgepack.wire import histogram
from edgepack.wire.messages import encode
from edgepack.wire.reports import Drift
from edgepack.wire.signed import group_messages
from edgepack.wire.telemetry import Telemetry

log = logging.getLogger(__name__)

JOURNAL_FILE = "telemetry.json"
MAX_BATCH = 32
"""Windows that are under way to the fleet at once, at most."""
MAX_WINDOWS = 1024
"""Windows in all; of so many releases the oldest are dropped."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the journal.

    Attributes:
        journal: Random name of the journal.
        acknowledged: The fleet has the windows up to this number.
        sealed: Windows up to this number may have been sent.
        windows: Windows from `acknowledged` + 1 on.
        files: Spooled counts that windows stand for, by the name of the spool file.
        features: Running sums of features, by release.
        paces: The pace of each release, by digest.
        totals: Inferences of all windows so far, by release.
    """

    journal: str
    acknowledged: int = 0
    sealed: int = 0
    windows: tuple[Telemetry, ...] = ()
    files: dict[str, Spooled] = {}
    features: tuple[ReleaseState, ...] = ()
    paces: dict[str, Pace] = {}
    totals: tuple[ReleaseTotal, ...] = ()


STORED = Format("telemetry journal", Stored, Version(1, 0))


class Numbered(NamedTuple):
    """Windows to send: the journal, the number of the first window, and the windows."""

    journal: str
    first: int
    windows: tuple[Telemetry, ...]


def read_drift(state_dir: Path, digest: str) -> Drift | None:
    """Return the last stored drift of a release; None without any."""
    try:
        content = read_regular(state_dir / JOURNAL_FILE)
        found = STORED.decode(content).value if content else None
    except (OSError, ValueError, NewerVersionError):
        return None
    watch = DriftWatch()
    watch.load(found.features if found else ())
    return watch.recent(digest)


def join_windows(windows: Iterable[Telemetry]) -> Telemetry:
    """Merge windows of a release, of several processes or times, into one."""
    parts = list(windows)
    start = min(part.window_start for part in parts)
    end = max(part.window_start + part.window_s for part in parts)
    energies = [part.energy_j for part in parts]
    return msgspec.structs.replace(
        parts[-1],
        window_start=start,
        window_s=end - start,
        latency=histogram.merge(part.latency for part in parts),
        failures=sum(part.failures for part in parts),
        not_finite=sum(part.not_finite for part in parts),
        bad_inputs=sum(part.bad_inputs for part in parts),
        bad_input=next((p.bad_input for p in reversed(parts) if p.bad_input), ""),
        memory_bytes=max((part.memory_bytes or 0 for part in parts), default=0) or None,
        temperature_c=max((t for p in parts if (t := p.temperature_c) is not None), default=None),
        drift=next((p.drift for p in reversed(parts) if p.drift is not None), None),
        shadow_count=sum(part.shadow_count for part in parts),
        shadow_agreed=sum(part.shadow_agreed for part in parts),
        energy_j=None if None in energies else math.fsum(filter(None, energies)),
        throttled_s=math.fsum(part.throttled_s for part in parts),
        first_tokens=histogram.merge_present(part.first_tokens for part in parts),
    )


def release_of(window: Telemetry) -> tuple[str, str, str]:
    """Return digest, variant and provider of a window."""
    return window.digest, window.variant, window.provider


def _new_name() -> str:
    return secrets.token_hex(8)


class TelemetryJournal:
    """Journal on the disk, with the windows that the fleet does not have.

    Args:
        state_dir: The agent's state folder.
        max_bytes: Bound of the windows that were not sent, encoded.
        write: Writes the file durably.

    Attributes:
        dropped: Inferences of windows that were dropped because of too many releases.
    """

    def __init__(self, state_dir: Path, *, max_bytes: int, write: Write = write_file) -> None:
        self._file = StateFile(state_dir / JOURNAL_FILE, STORED, write=write)
        self._max_bytes = max_bytes
        self._stored = self._file.load_when_disk_works() or Stored(journal=_new_name())
        self._loaded = self._stored.acknowledged + len(self._stored.windows)
        self.dropped = 0

    @property
    def stored(self) -> Stored:
        """The content as stored, but for acknowledged windows."""
        return self._stored

    @property
    def under_way(self) -> Numbered | None:
        """The windows to send, until the fleet acknowledges them; None without any."""
        stored = self._stored
        count = stored.sealed - stored.acknowledged
        if not count:
            return None
        return Numbered(stored.journal, stored.acknowledged + 1, stored.windows[:count])

    @property
    def is_waiting(self) -> bool:
        """True if windows wait to be sealed."""
        return not self.under_way and bool(self._stored.windows)

    def commit(
        self,
        windows: Sequence[Telemetry] = (),
        *,
        files: Mapping[str, Spooled] | None = None,
        features: tuple[ReleaseState, ...] | None = None,
        paces: Mapping[str, Pace] | None = None,
        totals: tuple[ReleaseTotal, ...] | None = None,
        seals: bool,
    ) -> None:
        """Store new windows with the counts that the windows stand for.

        Args:
            windows: New windows.
            files, features, paces, totals: See `Stored`; None keeps the stored ones.
            seals: Whether the next windows may be sent.

        Raises:
            OSError: Nothing is stored, and nothing changed.
        """
        before = self._stored
        count = before.sealed - before.acknowledged
        sealed, free = before.windows[:count], self._bounded([*before.windows[count:], *windows])
        if seals and not sealed and free:
            sealed = next(group_messages(free[:MAX_BATCH]))
            free = free[len(sealed) :]
        after = msgspec.structs.replace(
            before,
            sealed=before.acknowledged + len(sealed),
            windows=(*sealed, *free),
            files=before.files if files is None else dict(files),
            features=before.features if features is None else features,
            paces=before.paces if paces is None else dict(paces),
            totals=before.totals if totals is None else totals,
        )
        if after != before:
            if not self._file.is_sealed:
                self._file.save(after)
            self._stored = after

    def acknowledge(self, journal: str, until: int, newest: int) -> None:
        """Note that the fleet has the windows up to a number; stored with the next commit.

        A fleet that has windows beyond all sent windows knows a later state: this file is an older
        copy, such as a restored backup. New numbers would then count as sent before, so a new
        journal begins. The windows of the copy, and those under way, are not sent again: nothing
        counts twice.

        Args:
            journal: Name of the journal.
            until: The fleet has the windows up to this number.
            newest: Highest number that the fleet has.
        """
        stored = self._stored
        if journal != stored.journal:
            return
        if newest > stored.sealed:
            log.warning("telemetry begins a new journal because=the state folder is an older copy")
            known = max(stored.sealed, self._loaded) - stored.acknowledged
            self._loaded = 0
            self._stored = msgspec.structs.replace(
                stored,
                journal=_new_name(),
                acknowledged=0,
                sealed=0,
                windows=stored.windows[known:],
            )
        elif stored.acknowledged < until <= stored.sealed:
            self._stored = msgspec.structs.replace(
                stored, acknowledged=until, windows=stored.windows[until - stored.acknowledged :]
            )

    def _bounded(self, windows: list[Telemetry]) -> list[Telemetry]:
        """Merge the windows of a release that take the shortest time, down to the bound."""
        sizes = [len(encode(window)) for window in windows]
        while sum(sizes) > self._max_bytes or len(windows) > MAX_WINDOWS:
            last: dict[tuple[str, str, str], int] = {}
            pairs = []
            for i, window in enumerate(windows):
                if (j := last.get(release_of(window))) is not None:
                    pairs.append((windows[j].window_s + window.window_s, j, i))
                last[release_of(window)] = i
            if pairs:
                _, j, i = min(pairs)
                windows[j] = join_windows((windows[j], windows[i]))
                sizes[j] = len(encode(windows[j]))
            else:
                i = 0
                count = windows[0].latency.count
                self.dropped += count
                log.warning("%d inferences dropped because=too many releases", count)
            del windows[i], sizes[i]
        return windows
