"""The spool: files with statistics of inferences, from serving processes to the agent.

Each process keeps a small file per served model, under `<state_dir>/latency/`, and rewrites the
file every few seconds. The counts only grow, so the agent may read a file at any time, and a
process never needs to know whether the agent runs.
"""

import os
import secrets
import threading
import time
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import put_aside, read_shared
from edgepack.agent.telemetry.readings import memory_bytes
from edgepack.agent.telemetry.shadowed import Shadowed, ShadowRecorder, check_shadowed
from edgepack.agent.telemetry.sketches import SketchRecorder, check_sums
from edgepack.bundle.drift import FeatureSum
from edgepack.durable import write_file
from edgepack.errors import TransferError
from edgepack.versions import Format, Version
from edgepack.wire import histogram
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import Histogram

SPOOL_FOLDER = "latency"
SPOOL_MODE = 0o2775
MAX_SPOOL_BYTES = 256 * 1024


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a process for a model since the process opened the model.

    Attributes:
        token: Random id of the process's record: another token under the same file name is new.
        pid: The process.
        model: The model's name.
        digest, variant, provider: Release that ran.
        since, written_at: When counting began, and when this was written; seconds since the epoch.
        latency: Of all its inferences so far.
        failures: Inferences that raised, but for mistakes of the application.
        not_finite: Inferences with NaN or infinity in an output that has none in the golden
            samples.
        is_final: Whether the process closed the model: the file will not change any more.
        troubles: Why the process could not follow the pointer to a newer model, a sentence each.
        memory_bytes: Memory of the process at the write; 0 if unknown, or if the process held
            another release of the model, too.
        features: Sums of features, of the inferences that were sketched.
        shadowed: Inferences that the release before computed, too.
    """

    token: str
    pid: int
    model: str
    digest: str
    variant: str
    provider: str
    since: float
    written_at: float
    latency: Histogram
    failures: int = 0
    not_finite: int = 0
    is_final: bool = False
    troubles: tuple[str, ...] = ()
    memory_bytes: int = 0
    features: tuple[FeatureSum, ...] = ()
    shadowed: Shadowed = Shadowed()


SPOOLED = Format("latency file", Spooled, Version(1, 0))


def spool_folder(state_dir: Path) -> Path:
    """Return the folder of spool files."""
    return state_dir / SPOOL_FOLDER


def open_spool(state_dir: Path) -> str:
    """Create the spool folder, writable by the state folder's group. For the agent.

    Applications usually run as other users than the agent; applications that report statistics
    belong to that group.

    Returns:
        Why applications cannot write, as a sentence; "" without a problem.
    """
    folder = spool_folder(state_dir)
    try:
        if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
            put_aside(folder)
        folder.mkdir(exist_ok=True)
        os.chown(folder, -1, state_dir.stat().st_gid)
        folder.chmod(SPOOL_MODE)
    except OSError as error:
        return f"processes cannot hand over what inferences took: {error.strerror} ({folder})"
    return ""


def write_spooled(state_dir: Path, spooled: Spooled) -> Path:
    """Write a process's counts over its previous counts.

    Raises:
        OSError: The folder cannot be made or written.
    """
    folder = spool_folder(state_dir)
    folder.mkdir(exist_ok=True)
    path = folder / f"{spooled.pid}-{spooled.digest[:16]}-{spooled.token}.json"
    write_file(path, SPOOLED.encode(spooled))
    return path


def read_spooled(path: Path) -> Spooled:
    """Read and check a spool file; any process of the device may have written the file.

    Raises:
        TransferError: The file is malformed, or its numbers contradict each other.
        NewerVersionError: A newer edgepack wrote the file.
        OSError: The file is too long, not regular, or cannot be read.
    """
    content = read_shared(path, limit_bytes=MAX_SPOOL_BYTES)
    try:
        spooled = SPOOLED.decode(content or b"").value
    except ValueError as error:
        raise TransferError(f"malformed spool file: {error}", found_in=str(path)) from error
    histogram.check(spooled.latency)
    if min(spooled.failures, spooled.not_finite, spooled.memory_bytes) < 0 or spooled.pid <= 0:
        raise TransferError("malformed spool file: a count is negative", found_in=str(path))
    check_sums(spooled.features, found_in=str(path))
    check_shadowed(spooled.shadowed, found_in=str(path))
    return spooled


class Record:
    """Record of a model's inferences in this process, with the part already spooled."""

    def __init__(self, *, model: str, digest: str, variant: str, provider: str) -> None:
        self.token = secrets.token_hex(8)
        self.model = model
        self.digest = digest
        self.variant = variant
        self.provider = provider
        self.since = time.time()
        self.latency = LatencyRecorder()
        self.sketches = SketchRecorder()
        self.shadowed = ShadowRecorder()
        self.failures = 0
        self.not_finite = 0
        self._written = (0, 0, 0, 0, Shadowed(), False)
        self._lock = threading.Lock()

    def fail(self) -> None:
        """Count an inference that raised."""
        with self._lock:
            self.failures += 1

    def count_not_finite(self) -> None:
        """Count an inference with NaN or infinity where the golden outputs have none."""
        with self._lock:
            self.not_finite += 1

    def spooled(self, troubles: tuple[str, ...], *, is_final: bool, is_alone: bool) -> Spooled:
        """Return all counts, in the agent's format."""
        return Spooled(
            token=self.token,
            pid=os.getpid(),
            model=self.model,
            digest=self.digest,
            variant=self.variant,
            provider=self.provider,
            since=self.since,
            written_at=time.time(),
            latency=self.latency.snapshot(),
            failures=self.failures,
            not_finite=self.not_finite,
            troubles=troubles,
            is_final=is_final,
            memory_bytes=memory_bytes() if is_alone else 0,
            features=self.sketches.snapshot(),
            shadowed=self.shadowed.snapshot(),
        )

    def write(
        self,
        state_dir: Path,
        troubles: tuple[str, ...],
        *,
        is_final: bool = False,
        is_alone: bool = True,
    ) -> None:
        """Write the record if anything changed since the last write.

        Args:
            state_dir: The agent's state folder.
            troubles: See `Spooled`.
            is_final: See `Spooled`.
            is_alone: Whether the process holds no other release of the model, which would add to
                the measured memory.

        Raises:
            OSError: The spool cannot be written; the next write takes everything along.
        """
        spooled = self.spooled(troubles, is_final=is_final, is_alone=is_alone)
        counts = (spooled.latency.count, spooled.failures, spooled.not_finite, len(troubles))
        state = (*counts, spooled.shadowed, is_final)
        if state != self._written and (any(counts) or spooled.shadowed != Shadowed()):
            write_spooled(state_dir, spooled)
            self._written = state

    @property
    def has_new_failures(self) -> bool:
        """True if inferences failed, or gave no finite outputs, since the last write."""
        return (self.failures, self.not_finite) != self._written[1:3]
