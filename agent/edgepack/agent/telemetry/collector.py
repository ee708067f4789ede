"""The agent's side of the spool: spooled counts become telemetry, once each.

Spool files hold counts that only grow. The journal (`journal.py`) stores the collected counts with
the telemetry made of them.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from edgepack.agent.telemetry.counts import is_in_use
from edgepack.agent.telemetry.drift import DriftWatch, Release
from edgepack.agent.telemetry.drift_windows import WINDOW_S
from edgepack.agent.telemetry.journal import Stored, join_windows
from edgepack.agent.telemetry.shadowed import Shadowed, add_up, shadowed_since
from edgepack.agent.telemetry.spool import (
    COUNTS,
    Spooled,
    is_over,
    read_spooled,
    remove_spooled,
    spooled_files,
)
from edgepack.agent.telemetry.totals import Named
from edgepack.bundle.features import FeatureSum, sums_since
from edgepack.errors import TransferError
from edgepack.text import printable
from edgepack.versions import NewerVersionError
from edgepack.wire import histogram
from edgepack.wire.telemetry import Telemetry

logger = logging.getLogger(__name__)

MAX_FINISHED = 64
"""Files of ended processes that wait for a commit of the journal, at most."""
MAX_GONE = 16
"""Counts of files that vanished and were not removed here are remembered for so many files: their
processes may write them again."""

MAX_NAMES = 256
"""Names of releases that are remembered."""


MAX_WAITING = 256
"""Reports that wait for the update or watch of another model."""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a process could not follow a model to a newer release.

    Attributes:
        model: Its name.
        because: Reason, as a sentence.
    """

    model: str
    because: str


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """Data since the last collection.

    Attributes:
        telemetry: Message of each bundle, variant and provider that ran.
        troubles: Problems reported by processes; see `Spooled`.
        dropped: Spool files that could not be read, with the reason.
        shadowed: Shadow results, by digest of the release.
    """

    telemetry: tuple[Telemetry, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    dropped: tuple[str, ...] = ()
    shadowed: Mapping[str, Shadowed] = {}

    def joined(self, later: "Collected") -> "Collected":
        """Return both collections together, the newest that somebody may wait for."""
        return Collected(
            telemetry=(self.telemetry + later.telemetry)[-MAX_WAITING:],
            troubles=(self.troubles + later.troubles)[-MAX_WAITING:],
            dropped=(self.dropped + later.dropped)[-MAX_WAITING:],
            shadowed=add_up(self.shadowed, later.shadowed),
        )


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class LatencyCollector:
    """Collects the spool of serving processes; a single collector per device.

    Args:
        state_dir: The agent's state folder.
        stored: Collected counts and sums of features, as stored.
        drift_window_s: Seconds over which features are averaged to decide changes.
        is_running: Whether a process is alive, by its id.

    Attributes:
        drift: Differences of the releases' features from the build.
        files: Collected counts, by the name of the spool file.
        names: Names of the releases that ran of late, by digest.
    """

    def __init__(
        self,
        state_dir: Path,
        stored: Stored | None = None,
        *,
        drift_window_s: float = WINDOW_S,
        is_running: Callable[[int], bool] = _is_running,
    ) -> None:
        self._state_dir = state_dir
        self._is_running = is_running
        self.files: dict[str, Spooled] = dict(stored.files) if stored else {}
        self._finished: dict[str, Path] = {}
        self.names = {one.digest: _name_of(one) for one in self.files.values()}
        self.drift = DriftWatch(drift_window_s)
        self.drift.load(stored.features if stored else ())

    @property
    def has_many_finished(self) -> bool:
        """True if many files wait for `clean`."""
        return len(self._finished) > MAX_FINISHED

    def collect(self) -> Collected:
        """Read the spool, and return new counts.

        Files that cannot be read are removed at once.
        """
        fresh: dict[Release, list[Telemetry]] = {}
        sums: dict[Release, list[FeatureSum]] = {}
        troubles: list[Trouble] = []
        dropped: list[str] = []
        shadowed: dict[str, Shadowed] = {}
        for name, path in spooled_files(self._state_dir).items():
            try:
                spooled = read_spooled(path)
                is_finished = is_over(path, spooled, self._is_running)
                if is_finished:
                    spooled = read_spooled(path)  # It may have counted until it ended.
                earlier = self.files.get(name)
                is_same = earlier is not None and earlier.token == spooled.token
                earlier = earlier if is_same else None
                spooled = _stamped(path, earlier, spooled)
                shadow = shadowed_since(
                    earlier.shadowed if earlier else Shadowed(), spooled.shadowed
                )
                part = _since(earlier, spooled, shadow)
                features = sums_since(earlier.features if earlier else (), spooled.features)
            except NewerVersionError as error:
                dropped.append(printable(f"{name}: {error.problem}"))
                continue
            except (TransferError, OSError) as error:
                problem = error.problem if isinstance(error, TransferError) else error.strerror
                reason = printable(f"{name}: {problem}")
                logger.warning("spool file dropped: %s", reason)
                dropped.append(reason)
                with contextlib.suppress(OSError):
                    remove_spooled(path)
                continue
            # A release does not answer for what the process reported with an earlier release.
            heard = {
                trouble
                for known in self.files.values()
                if (known.pid, known.model) == (spooled.pid, spooled.model)
                for trouble in known.troubles
            }
            said = (
                Trouble(model=spooled.model, because=one)
                for one in spooled.troubles
                if one not in heard
            )
            troubles += [one for one in said if one not in troubles]
            self.files[name] = spooled
            shadowed = add_up(shadowed, {part.digest: shadow})
            if part.latency.count or part.failures or part.shadow_count:
                self.names[part.digest] = _name_of(spooled)
                release = (part.digest, part.variant, part.provider)
                fresh.setdefault(release, []).append(part)
                sums.setdefault(release, []).extend(features)
            if is_finished:
                self._finished[name] = path
        drifts = {release: self.drift.add(release, part) for release, part in sums.items()}
        return Collected(
            telemetry=tuple(
                msgspec.structs.replace(
                    join_windows(parts),
                    drift=drift.difference if (drift := drifts[release]) else None,
                )
                for release, parts in fresh.items()
            ),
            troubles=tuple(troubles),
            dropped=tuple(dropped),
            shadowed=shadowed,
        )

    def clean(self) -> None:
        """Remove the files of ended processes, whose counts are stored now."""
        for name, path in self._finished.items():
            with contextlib.suppress(OSError):  # Another user's folder; what it says is known.
                remove_spooled(path)
                del self.files[name]
        self._finished.clear()
        present = spooled_files(self._state_dir).keys()
        gone = [name for name in self.files if name not in present]
        for name in gone[:-MAX_GONE]:
            del self.files[name]
        for digest in [*self.names][:-MAX_NAMES]:
            del self.names[digest]


def _name_of(spooled: Spooled) -> Named:
    return Named(model=spooled.model, version=spooled.version)


def _stamped(path: Path, earlier: Spooled | None, spooled: Spooled) -> Spooled:
    """Return a spool file with the time of its counts.

    A running process counts in memory, so new counts may be newer than the file.
    """
    known = (earlier.latency.count, earlier.failures) if earlier else (0, 0)
    written_at = max(spooled.written_at, earlier.written_at if earlier else 0.0)
    is_new = (spooled.latency.count, spooled.failures) != known
    if is_new and is_in_use(path.with_suffix(COUNTS)):
        written_at = max(written_at, time.time())
    return msgspec.structs.replace(spooled, written_at=written_at)


def _since(earlier: Spooled | None, spooled: Spooled, shadow: Shadowed) -> Telemetry:
    """Return the difference between a spool file and its already collected counts."""
    latency, failures, start = spooled.latency, spooled.failures, spooled.since
    not_finite, bad_inputs = spooled.not_finite, spooled.bad_inputs
    first_tokens = spooled.first_tokens
    if earlier is not None:
        try:
            latency = histogram.subtract(spooled.latency, earlier.latency)
            first_tokens = histogram.subtract(first_tokens, earlier.first_tokens)
        except ValueError as error:
            raise TransferError(f"its counts went down: {error}") from error
        failures = spooled.failures - earlier.failures
        not_finite = spooled.not_finite - earlier.not_finite
        bad_inputs = spooled.bad_inputs - earlier.bad_inputs
        if min(failures, not_finite, bad_inputs) < 0:
            raise TransferError("its counts went down")
        start = earlier.written_at
    return Telemetry(
        digest=spooled.digest,
        variant=spooled.variant,
        provider=spooled.provider,
        window_start=start,
        window_s=max(0.0, spooled.written_at - start),
        latency=latency,
        failures=failures,
        not_finite=min(not_finite, latency.count),
        bad_inputs=min(bad_inputs, latency.count - min(not_finite, latency.count)),
        bad_input=spooled.bad_input if bad_inputs else "",
        memory_bytes=spooled.memory_bytes or None,
        shadow_count=shadow.count,
        shadow_agreed=shadow.agreed,
        first_tokens=first_tokens if first_tokens.count else None,
    )
