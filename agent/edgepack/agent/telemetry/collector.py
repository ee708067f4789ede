"""The agent's side of latency: spooled counts become telemetry, once each.

Spool files hold counts that only grow. The already collected counts are stored on the disk before
the new counts are returned, so that a restart counts no inference twice; a crash in between loses a
window at most.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import StateFile, read_regular, remove
from edgepack.agent.telemetry.drift import DriftWatch, Release, ReleaseState
from edgepack.agent.telemetry.shadowed import Shadowed, add_up, shadowed_since
from edgepack.agent.telemetry.sketches import sums_since
from edgepack.agent.telemetry.spool import Spooled, read_spooled, spool_folder
from edgepack.bundle.drift import FeatureSum
from edgepack.errors import TransferError
from edgepack.versions import Format, NewerVersionError, Version
from edgepack.wire import histogram
from edgepack.wire.messages import Drift, Telemetry

logger = logging.getLogger(__name__)

COLLECTED_FILE = "latency-collected.json"

FORGET_S = 7 * 24 * 3600.0
"""What was collected of a file that is gone is remembered this long: a process in a container,
whose id means nothing to the agent, may write it again."""


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


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """Collected data.

    Attributes:
        files: Data already collected, by the name of the spool file.
        features: Features by release, with their windows.
    """

    files: dict[str, Spooled]
    features: tuple[ReleaseState, ...] = ()


KNOWN = Format("list of what was collected", _Known, Version(1, 0))


def read_drift(state_dir: Path, digest: str) -> Drift | None:
    """Return the last stored drift of a release; None without any."""
    try:
        content = read_regular(state_dir / COLLECTED_FILE)
        found = KNOWN.decode(content).value if content else None
    except (OSError, ValueError, NewerVersionError):
        return None
    watch = DriftWatch()
    watch.load(found.features if found else ())
    return watch.recent(digest)


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class LatencyCollector:
    """Collects the spool of serving processes; a single collector per device.

    Args:
        state_dir: The agent's state folder.
        is_running: Whether a process is alive, by its id.

    Attributes:
        drift: Differences of the releases' features from the build.
    """

    def __init__(self, state_dir: Path, *, is_running: Callable[[int], bool] = _is_running) -> None:
        self._state_dir = state_dir
        self._is_running = is_running
        self._file = StateFile(state_dir / COLLECTED_FILE, KNOWN)
        self._known: dict[str, Spooled] = {}
        self._is_loaded = False
        self.drift = DriftWatch()

    def collect(self) -> Collected:
        """Read the spool, and return new counts.

        Files of closed models and of ended processes are removed after collection; files that
        cannot be read are removed at once.

        Raises:
            OSError: The collected counts cannot be read or stored; nothing is returned then.
        """
        if not self._is_loaded:
            found = self._file.load()
            self._known, self._is_loaded = found.files if found else {}, True
            self.drift.load(found.features if found else ())
        fresh: dict[Release, list[Telemetry]] = {}
        sums: dict[Release, list[FeatureSum]] = {}
        troubles: list[Trouble] = []
        dropped: list[str] = []
        shadowed: dict[str, Shadowed] = {}
        finished: list[Path] = []
        known = dict(self._known)
        for path in sorted(spool_folder(self._state_dir).glob("*.json")):
            try:
                spooled = read_spooled(path)
                earlier = known.get(path.name)
                is_same = earlier is not None and earlier.token == spooled.token
                earlier = earlier if is_same else None
                shadow = shadowed_since(
                    earlier.shadowed if earlier else Shadowed(), spooled.shadowed
                )
                part = _since(earlier, spooled, shadow)
                features = sums_since(earlier.features if earlier else (), spooled.features)
            except NewerVersionError as error:
                dropped.append(f"{path.name}: {error.problem}")
                continue
            except (TransferError, OSError) as error:
                problem = error.problem if isinstance(error, TransferError) else error.strerror
                reason = f"{path.name}: {problem}"
                logger.warning("spool file dropped: %s", reason)
                dropped.append(reason)
                finished.append(path)
                continue
            heard = set(earlier.troubles) if earlier else set()
            said = (
                Trouble(model=spooled.model, because=one)
                for one in spooled.troubles
                if one not in heard
            )
            troubles += [one for one in said if one not in troubles]
            known[path.name] = spooled
            shadowed = add_up(shadowed, {part.digest: shadow})
            if part.latency.count or part.failures or part.shadow_count:
                release = (part.digest, part.variant, part.provider)
                fresh.setdefault(release, []).append(part)
                sums.setdefault(release, []).extend(features)
            if spooled.is_final or not self._is_running(spooled.pid):
                finished.append(path)
        drifts = {release: self.drift.add(release, part) for release, part in sums.items()}
        self._remember(known)
        for path in finished:
            with contextlib.suppress(OSError):  # Another user's folder; what it says is known.
                remove(path)
        return Collected(
            telemetry=tuple(
                msgspec.structs.replace(
                    _merge(parts), drift=drift.difference if (drift := drifts[release]) else None
                )
                for release, parts in fresh.items()
            ),
            troubles=tuple(troubles),
            dropped=tuple(dropped),
            shadowed=shadowed,
        )

    def _remember(self, known: dict[str, Spooled]) -> None:
        newest = max((spooled.written_at for spooled in known.values()), default=0.0)
        folder = spool_folder(self._state_dir)
        kept = {
            name: spooled
            for name, spooled in known.items()
            if newest - spooled.written_at < FORGET_S or (folder / name).exists()
        }
        if kept != self._known and not self._file.is_sealed:
            self._file.save(_Known(files=kept, features=self.drift.states))
        self._known = kept


def _since(earlier: Spooled | None, spooled: Spooled, shadow: Shadowed) -> Telemetry:
    """Return the difference between a spool file and its already collected counts."""
    latency, failures, start = spooled.latency, spooled.failures, spooled.since
    not_finite = spooled.not_finite
    if earlier is not None:
        try:
            latency = histogram.subtract(spooled.latency, earlier.latency)
        except ValueError as error:
            raise TransferError(f"its counts went down: {error}") from error
        failures = max(0, spooled.failures - earlier.failures)
        not_finite = max(0, spooled.not_finite - earlier.not_finite)
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
        memory_bytes=spooled.memory_bytes or None,
        shadow_count=shadow.count,
        shadow_agreed=shadow.agreed,
    )


def _merge(parts: list[Telemetry]) -> Telemetry:
    """Merge the windows of several processes of a model into a single message."""
    start = min(part.window_start for part in parts)
    end = max(part.window_start + part.window_s for part in parts)
    return msgspec.structs.replace(
        parts[0],
        window_start=start,
        window_s=end - start,
        latency=histogram.merge(part.latency for part in parts),
        failures=sum(part.failures for part in parts),
        not_finite=sum(part.not_finite for part in parts),
        memory_bytes=max((part.memory_bytes or 0 for part in parts), default=0) or None,
        shadow_count=sum(part.shadow_count for part in parts),
        shadow_agreed=sum(part.shadow_agreed for part in parts),
    )
