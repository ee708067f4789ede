"""Applications with a runtime of their own: their reports become what a serving process writes.

The agent keeps the spool files and the registration of each such process. So counts, soaks, gates
and the watch need not know in which language an application is written.
"""

import contextlib
import secrets
import time
from pathlib import Path

import msgspec

from edgepack.agent.state.holders import Registration
from edgepack.agent.state.pointer import pointer_path
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.state.state_file import read_regular
from edgepack.agent.telemetry.counts import Counts
from edgepack.agent.telemetry.readings import memory_bytes
from edgepack.agent.telemetry.spool import Spooled, write_spooled
from edgepack.agent.telemetry.submission import Submission
from edgepack.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, decode_manifest
from edgepack.errors import BundleError, TransferError

MAX_APPLICATIONS = 64
"""Pairs of a process and a model."""
MAX_RELEASES = 2
"""Releases that an application runs at the same time: the serving one, and the one before."""
MAX_TROUBLES = 5
TURN_S = 5.0
"""Seconds between heartbeats for processes that promise none, while the processes live."""


class _Record:
    """Counts of a release in a process, shared with the collector like those of a process."""

    def __init__(self, state_dir: Path, said: Submission, pid: int) -> None:
        version, provider = _find_release(state_dir, said)
        self._state_dir = state_dir
        self._about = Spooled(
            token=secrets.token_hex(8),
            pid=pid,
            model=said.model,
            digest=said.digest,
            version=version,
            variant=said.variant,
            provider=provider,
            since=time.time(),
            written_at=time.time(),
            latency=(counts := Counts()).snapshot().latency,
        )
        self._counts = counts
        self._written: tuple[object, ...] = ()
        self.write((), 0)

    def add(self, said: Submission) -> None:
        """Count the inferences of a submission."""
        for latency_ms in said.latencies_ms:
            self._counts.record(latency_ms)
        for first_token_ms in said.first_tokens_ms:
            self._counts.record_first_token(first_token_ms)
        for _ in range(said.failures):
            self._counts.fail()
        for _ in range(said.not_finite):
            self._counts.count_not_finite()
        for _ in range(said.bad_inputs):
            self._counts.count_bad_input(said.bad_input)

    def write(self, troubles: tuple[str, ...], memory: int, *, is_final: bool = False) -> None:
        """Write the spool file if anything changed; a folder that cannot be written is tried again
        at the next write.
        """
        counted = self._counts.snapshot()
        state = (counted, troubles, is_final)
        if state == self._written:
            return
        spooled = msgspec.structs.replace(
            self._about,
            troubles=troubles,
            memory_bytes=memory,
            is_final=is_final,
            written_at=time.time(),
            **counted._asdict(),
        )
        with contextlib.suppress(OSError):
            write_spooled(self._state_dir, spooled, self._counts)
            self._written = state
        if is_final:
            self._counts.close()


class _Application:
    """A model in a process."""

    def __init__(self, state_dir: Path, model: str, pid: int) -> None:
        self._state_dir, self._pid = state_dir, pid
        self._records: dict[tuple[str, str], _Record] = {}
        self._troubles: tuple[str, ...] = ()
        self._promises = False
        self._registration = Registration(state_dir, model, pid=pid)

    def take(self, said: Submission) -> None:
        """Count a submission, and note the state of the process.

        Raises:
            TransferError: The release is not on this device.
        """
        if said.digest:
            self._find_record(said).add(said)
        if said.trouble:
            self._troubles = (*self._troubles, said.trouble)[-MAX_TROUBLES:]
            self.write()
        self._promises = said.every_s > 0
        now = time.monotonic()
        self._registration.update(
            digest=said.digest,
            variant=said.variant,
            opening=said.opening,
            every_s=said.every_s or TURN_S,
            running_since=0.0 if said.running_s is None else max(now - said.running_s, 1e-3),
        )

    def forget_running(self) -> None:
        """Assume that no inference runs, until the next submission."""
        self._registration.update(running_since=0.0)

    def turn(self) -> None:
        """Write a heartbeat for a living process that promised none, and the counts."""
        if not self._promises:
            self._registration.beat()
        self.write()

    def write(self, *, is_final: bool = False) -> None:
        """Write the counts."""
        is_alone = len(self._records) == 1
        memory = memory_bytes(Path(f"/proc/{self._pid}/statm")) if is_alone else 0
        for record in self._records.values():
            record.write(self._troubles, memory, is_final=is_final)

    def close(self, *, has_died: bool) -> None:
        """Write the counts for the last time, and end the registration."""
        self.write(is_final=True)
        if has_died:
            self._registration.note_death()
        else:
            self._registration.close()

    def _find_record(self, said: Submission) -> _Record:
        key = (said.digest, said.variant)
        if key not in self._records:
            made = _Record(self._state_dir, said, self._pid)
            self.write()
            self._troubles = ()  # Of an earlier release: the new one must not answer for it.
            self._records[key] = made
        record = self._records[key] = self._records.pop(key)  # The newest last.
        while len(self._records) > MAX_RELEASES:
            self._records.pop(next(iter(self._records))).write(self._troubles, 0, is_final=True)
        return record


class Applications:
    """The applications that report to the agent; used by a single thread.

    Args:
        state_dir: The agent's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._applications: dict[tuple[int, str], _Application] = {}

    def has(self, pid: int) -> bool:
        """Return whether a process holds a model."""
        return any(owner == pid for owner, _ in self._applications)

    def take(self, pid: int, said: Submission) -> None:
        """Count the submission of a process.

        Args:
            pid: The process, as the kernel names it.
            said: The submission.

        Raises:
            TransferError: The model or the release is not on this device, or there are too many
                applications.
        """
        key = (pid, said.model)
        application = self._applications.get(key)
        if application is None:
            if len(self._applications) >= MAX_APPLICATIONS:
                raise TransferError(f"more than {MAX_APPLICATIONS} applications")
            if not pointer_path(self._state_dir, said.model).is_file():
                raise TransferError("submission for a model that is not on this device")
            application = _Application(self._state_dir, said.model, pid)
        try:
            application.take(said)
        except TransferError:
            if key not in self._applications:
                application.close(has_died=False)
            raise
        self._applications[key] = application
        if said.closed:
            self._applications.pop(key).close(has_died=False)

    def end(self, pid: int, *, has_died: bool) -> None:
        """Forget the models of a process.

        Args:
            pid: The process.
            has_died: Whether the process ended without closing the models.
        """
        for key in [key for key in self._applications if key[0] == pid]:
            self._applications.pop(key).close(has_died=has_died)

    def forget_running(self) -> None:
        """Assume that no inference runs: submissions about ended ones may be lost."""
        for application in self._applications.values():
            application.forget_running()

    def turn(self) -> None:
        """Write heartbeats and counts that are due."""
        for application in self._applications.values():
            application.turn()

    def close(self) -> None:
        """Write all counts, for an agent that ends. The processes register again by a report."""
        for pid in {pid for pid, _ in self._applications}:
            self.end(pid, has_died=False)


def _find_release(state_dir: Path, said: Submission) -> tuple[str, str]:
    """Return version and provider of a release that is on this device.

    Raises:
        TransferError: The release, or its variant, is not there.
    """
    try:
        path = slot_folder(state_dir, said.digest) / MANIFEST_FILE
        content = read_regular(path, limit_bytes=MAX_MANIFEST_BYTES)
        manifest = decode_manifest(content or b"")
        if manifest.facts.name != said.model:
            raise TransferError("submission for a release of another model")
        return manifest.facts.version, manifest.variant(said.variant).provider
    except (OSError, BundleError, KeyError) as error:
        raise TransferError("submission for a release that is not on this device") from error
