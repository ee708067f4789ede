"""Follower of a model's releases in a process.

A thread watches the pointer. A new release is opened and run once next to the old release, then
takes over between two inferences. The thread also writes statistics of inferences and the heartbeat
of the process, ends sessions at their time limit, and returns the memory of replaced releases to
the system.
"""

import logging
import threading
import time
import weakref
from pathlib import Path
from typing import Protocol

from edgepack.agent.runtime.heap import give_memory_back
from edgepack.agent.serving.bound import BoundCall
from edgepack.agent.serving.capture import SampleKeeper
from edgepack.agent.serving.opened import OpenedModel, open_release
from edgepack.agent.serving.shadow import ShadowRunner
from edgepack.agent.serving.verification import Verifier
from edgepack.agent.state.changes import notifier
from edgepack.agent.state.holders import BEAT_S, MAX_TEXT, Registration
from edgepack.agent.state.pointer import (
    ActivePointer,
    Shadow,
    active_models,
    pointer_path,
    read_pointer,
)
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.state.verification_settings import read_verification
from edgepack.agent.telemetry.record import Record
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.durable import is_disk_fault
from edgepack.errors import BundleError, DeviceError
from edgepack.wire.orders import BundleRef

logger = logging.getLogger(__name__)

SPOOL_S = 5.0
"""Seconds between writes of what inferences took."""

POLL_S = 0.2
"""Seconds between looks at the pointer where the kernel does not tell of changes."""

IDLE_S = 5.0
"""Seconds between turns of a process that runs no inference, and has no other work."""

FAILED_SPOOL_S = 0.5
"""The same once inferences failed: a soak must hear of that before it ends."""

RETRY_S = 10.0
"""Seconds until a new model that could not be opened is tried again."""

MAX_TROUBLES = 5
_OPENING_TRIES = 5


class Holder(Protocol):
    """Holder of a possibly replaced release, such as a session."""

    def look(self, serving: OpenedModel, now: float) -> bool:
        """End the hold if its time is over; return whether anything is still held."""

    def close(self) -> None:
        """End the hold."""


class Follower:
    """The releases of a model in this process; `close` the follower after use.

    Args:
        name: The model.
        state_dir: The agent's state folder.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        poll_s: Seconds between turns of the thread; None for seldom turns, as the kernel tells
            when the pointer changes.

    Attributes:
        serving: The release that serves now.
        troubles: Why newer releases could not be opened here, the last few.
        is_foreign: Whether the parent of this process made the follower, before a fork.
        bound: Calls with fixed arrays.
        is_usable: Whether it is neither closed nor foreign.

    Raises:
        DeviceError: No model of that name is active, or its provider fails here.
        BundleError: The files differ from the installed files.
    """

    def __init__(self, name: str, state_dir: Path, *, threads: int, poll_s: float | None) -> None:
        self.is_foreign = False
        self.is_usable = True
        self._is_abandoned = False
        self.troubles: tuple[str, ...] = ()
        self.keeper = SampleKeeper(state_dir, name)
        self.bound: weakref.WeakSet[BoundCall] = weakref.WeakSet()
        self._name = name
        self._state_dir = state_dir
        self._pointer_path = _pointer_path(state_dir, name)
        self._threads = threads
        self._poll_s = poll_s
        self._records: dict[tuple[str, str, str], Record] = {}
        self._holders: set[Holder] = set()
        self._replaced: list[weakref.ref[OpenedModel]] = []
        self._spool_fails = False
        self._watch_error = ""
        self._unusable_shadow: Shadow | None = None
        self._stop, self._wake = threading.Event(), threading.Event()
        self._sum_ms = 0.0
        self._registration = Registration(state_dir, name)
        try:
            self._stamp, self.serving = self._open_first()
        except BaseException:
            self._registration.close()
            raise
        give_memory_back()
        self._verifier, self._suspicion = self._new_verifier(), ""
        self._retry_at = 0.0
        self._watcher = threading.Thread(target=self._watch, name=f"edgepack-{name}", daemon=True)
        self._watcher.start()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._stop.is_set()

    def hold(self, holder: Holder) -> OpenedModel:
        """Hold the release that serves now, until `let_go`, or until the holder's time is over.

        Raises:
            DeviceError: Its files are being removed.
        """
        for _ in range(_OPENING_TRIES):
            serving = self.serving
            if serving.hold():
                self._holders.add(holder)
                return serving
            self._wake.set()
            self._stop.wait(POLL_S)  # The agent has switched; the watcher follows soon.
        raise DeviceError(
            f"the files of {self._name} are being removed",
            found_in=str(self._state_dir),
            remedy="begin the session again once a release is active",
        )

    def let_go(self, holder: Holder) -> None:
        """Forget a holder."""
        self._holders.discard(holder)

    def leave_to_parent(self) -> None:
        """Release the parent's resources without use or cleanup, and report none of its counts. For
        a fork.
        """
        stop, self._stop = self._stop, threading.Event()  # Another thread may hold the old lock.
        if stop.is_set():
            self._stop.set()
        self.is_foreign, self.is_usable = True, False

    def close(self) -> None:
        """Stop watching, and write the statistics; running inferences end undisturbed."""
        if not self._stop.is_set():
            self._stop.set()
            self.is_usable = False
            if self.is_foreign:
                return
            self._wake.set()
            self._watcher.join()
            self._end()

    def abandon(self) -> None:
        """Have the thread close the follower: nobody refers to its model any more. Never wait."""
        if not self._stop.is_set() and not self.is_foreign:
            self._is_abandoned = True
            self._stop.set()
            self.is_usable = False
            self._wake.set()

    def _end(self) -> None:
        """Write the statistics, and leave all that is held."""
        if (changes := notifier()) is not None:
            changes.forget(self._wake)
        self._registration.close()
        for holder in tuple(self._holders):
            holder.close()
        self.serving.end_shadow()
        self.keeper.write()
        self._spool(is_final=True)

    def deregister(self) -> None:
        """Note that the process ends in order; it need not close the model."""
        if not self.is_foreign:
            self._registration.close()

    def _open_first(self) -> tuple[tuple[int, ...], OpenedModel]:
        """Open the active model; open the newer model if the pointer moves meanwhile."""
        for _ in range(_OPENING_TRIES):
            stamp = self._look()
            pointer = read_pointer(self._state_dir, self._name)
            if pointer is None:
                raise self._is_not_here()
            try:
                return stamp, self._open(pointer)
            except (DeviceError, BundleError) as error:
                if self._look() == stamp:
                    # The agent looks at the slot when it hears this, and mends it.
                    self.troubles = (f"it cannot be opened: {error.problem}",)
                    self._spool(is_final=True)
                    raise
        raise DeviceError(f"the active model changed {_OPENING_TRIES} times while it was opened")

    def _is_not_here(self) -> DeviceError:
        active = ", ".join(active_models(self._state_dir))
        return DeviceError(
            f"no model '{self._name}' is active on this device",
            found_in=f"{self._state_dir}, which has {active or 'no model'}",
            remedy="edgepack-agent install BUNDLE, or wait for a rollout",
        )

    def _look(self) -> tuple[int, ...]:
        """Return a fingerprint of the pointer file; empty without a file."""
        try:
            status = self._pointer_path.stat()
        except FileNotFoundError:
            return ()
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    def _open(self, pointer: ActivePointer) -> OpenedModel:
        choice = pointer.choice
        record = self._record(pointer.bundle, choice.chosen, choice.provider)
        self._registration.update(opening=pointer.digest)
        try:
            opened = open_release(
                self._state_dir,
                pointer,
                record,
                self.keeper,
                self._registration.marks,
                threads=self._threads,
                record_of=self._record,
            )
        except BaseException:
            self._registration.update(opening="")
            raise
        record.has_served = True
        self._registration.update(
            digest=pointer.digest, variant=choice.chosen, opening="", wrong="", healed=""
        )
        return opened

    def _record(self, bundle: BundleRef, variant: str, provider: str) -> Record:
        """Return the record of a variant of a release in this process."""
        key = (bundle.digest, variant, provider)
        if key not in self._records:
            self._records[key] = Record(
                self._state_dir,
                model=bundle.name,
                digest=bundle.digest,
                version=bundle.version,
                variant=variant,
                provider=provider,
            )
        return self._records[key]

    def _beat(self, pause_s: float) -> None:
        """Write the heartbeat, with the results of the verification; the next comes in a pause."""
        found = self._verifier
        self._registration.beat(
            every_s=max(BEAT_S, pause_s),
            running_since=self.serving.running_since,
            checked=found.checked,
            other=found.other,
        )

    def _new_verifier(self) -> Verifier:
        settings = read_verification(self._state_dir)
        return Verifier(self.serving.samples, settings, time.monotonic())

    def _verify(self) -> None:
        """Run a golden sample if due; open a release again whose answers changed.

        The answers of the release that was opened again are compared with the same first answers:
        if they are equal, the fault was in this process's memory and is gone.
        """
        with self._registration.marks.running():
            because = self._verifier.turn(self.serving.session)
        if because is None or (not because and not self._suspicion):
            return
        if not because:
            healed, self._suspicion = self._suspicion[:MAX_TEXT], ""
            self._registration.update(wrong="", healed=healed, healed_at=time.monotonic())
            logger.warning("model=%s opened again, answers are as at first", self._name)
            return
        logger.warning("model=%s %s", self._name, because)
        if self._suspicion:
            self._registration.update(wrong=because[:MAX_TEXT])
            return
        try:
            opened = self._open(self.serving.pointer)
        except (DeviceError, BundleError, OSError) as error:
            problem = getattr(error, "problem", str(error))
            because = f"{because}; the release cannot be opened again: {problem}"
            self._registration.update(wrong=because[:MAX_TEXT])
            return
        opened.accepted_before = self.serving.accepted_that_ran
        self._replaced.append(weakref.ref(self.serving))
        self.serving, self._suspicion = opened, because
        self._verifier.run_again()

    def _follow_shadow(self) -> None:
        """Run another release next to the serving release, if the pointer names one.

        The results are those of the newer release.
        """
        serving = self.serving
        asked, running = serving.pointer.shadow, serving.shadow
        if running is not None and running.shadow == asked:
            running.look()
            return
        serving.end_shadow()
        if asked is None or asked == self._unusable_shadow:
            return
        newer, recorder = serving.variant, serving.record.shadowed
        if asked.is_next:
            bundle, provider = asked.bundle, ""
            manifest = slot_folder(self._state_dir, bundle.digest) / MANIFEST_FILE
            try:
                newer = decode_manifest(manifest.read_bytes()).variant(asked.variant)
                provider = newer.provider
            except (OSError, BundleError, KeyError) as error:
                self._unusable_shadow = asked
                because = f"its manifest cannot be read here: {error}"
                recorder = self._record(bundle, asked.variant, provider).shadowed
                recorder.begin(asked.sequence)
                recorder.end(because)
                return
            recorder = self._record(bundle, asked.variant, provider).shadowed
        recorder.begin(asked.sequence)
        serving.shadow = ShadowRunner(
            self._state_dir,
            asked,
            serving.session,
            newer,
            recorder,
            note_disagreement=self.keeper.note_disagreement,
            threads=self._threads,
        )

    def _pause_s(self) -> float:
        """Return the seconds until the next turn, unless the pointer changes before."""
        if self._poll_s is not None:
            return self._poll_s
        changes = notifier()
        folder = self._pointer_path.parent
        if changes is None or not (
            changes.is_watching(self._wake) or changes.watch(folder, self._wake)
        ):
            return POLL_S
        if self._verifier.is_learning:
            return POLL_S
        serving = self.serving
        sum_ms, self._sum_ms = self._sum_ms, serving.record.latency.sum_ms
        is_idle = (
            sum_ms == self._sum_ms
            and not serving.running_since
            and serving.pointer.committed
            and serving.pointer.shadow is None
            and not (self._holders or self._replaced or self._retry_at)
        )
        return IDLE_S if is_idle else BEAT_S

    def _watch(self) -> None:
        spooled_at = time.monotonic()
        pause_s = POLL_S
        while not self._wait(pause_s):
            pause_s = self._pause_s()
            try:
                self._beat(pause_s)
                self._follow()
                self._look_after_replaced()
                self._follow_shadow()
                self._verify()
                fails = any(record.has_new_failures for record in list(self._records.values()))
                if time.monotonic() - spooled_at >= (FAILED_SPOOL_S if fails else SPOOL_S):
                    spooled_at = time.monotonic()
                    self._spool()
                    self.keeper.write()
                self._watch_error = ""
            except Exception as error:  # The outermost loop: serving goes on.
                if repr(error) != self._watch_error:  # It may fail each turn.
                    self._watch_error = repr(error)
                    is_known = isinstance(error, OSError) and is_disk_fault(error)
                    said = "watching model=%s failed, trying on: %s"
                    logger.warning(said, self._name, error, exc_info=not is_known)
        if self._is_abandoned:
            self._end()

    def _wait(self, pause_s: float) -> bool:
        """Wait for the next turn; return True if the follower is closed."""
        self._wake.wait(pause_s)
        self._wake.clear()
        return self._stop.is_set()

    def _follow(self) -> None:
        """Swap in another model if the pointer changes."""
        stamp = self._look()
        is_known = not stamp or stamp == self._stamp
        if is_known and (not self._retry_at or time.monotonic() < self._retry_at):
            return
        self._stamp, self._retry_at = stamp, 0.0
        old = self.serving.pointer
        try:
            new = read_pointer(self._state_dir, self._name)
            if new is None:
                return
            is_other = (new.digest, new.choice.chosen) != (old.digest, old.choice.chosen)
            if is_other:
                self.serving.end_shadow()
                opened = self._open(new)
                opened.accepted_before = self.serving.accepted_that_ran
                self._replaced.append(weakref.ref(self.serving))
                self.serving = opened
                self._verifier, self._suspicion = self._new_verifier(), ""
                logger.info(
                    "model=%s from=%s to=%s variant=%s",
                    self._name,
                    old.bundle.version,
                    new.bundle.version,
                    new.choice.chosen,
                )
            else:
                self.serving.pointer = new  # Committed now, or chosen anew with the same result.
        except (DeviceError, BundleError, OSError) as error:
            self._retry_at = time.monotonic() + RETRY_S
            problem = getattr(error, "problem", str(error))
            trouble = f"version {old.bundle.version} keeps serving, the new one failed: {problem}"
            self.troubles = (*self.troubles, trouble)[-MAX_TROUBLES:]
            logger.warning("model=%s %s", self._name, trouble)
            self._spool()

    def _look_after_replaced(self) -> None:
        """End holders of replaced releases after their time limit, and free releases without
        holders.
        """
        now = time.monotonic()
        for holder in tuple(self._holders):
            if not holder.look(self.serving, now):
                self._holders.discard(holder)
        for bound in tuple(self.bound):
            bound.leave(self.serving)
        held = [one for one in self._replaced if one() is not None]
        if len(held) < len(self._replaced):
            self._replaced = held
            give_memory_back()
            self._spool()

    def _is_over(self, record: Record) -> bool:
        """Check that no release counts in a record any more, and none is about to."""
        shadow = self.serving.pointer.shadow
        opened = (self.serving, *(one() for one in self._replaced))
        next_one = shadow.bundle.digest if shadow is not None and shadow.is_next else ""
        is_used = any(one is not None and one.counts_in(record) for one in opened)
        return record.has_served and not is_used and record.digest != next_one

    def _spool(self, *, is_final: bool = False) -> None:
        """Write every record that changed since the last write."""
        try:
            is_swapping = any(one() is not None for one in self._replaced)
            serving = getattr(self, "serving", None)  # None when the first one cannot be opened
            for key, record in list(self._records.items()):
                is_alone = serving is not None and serving.record is record and not is_swapping
                is_over = serving is not None and self._is_over(record)
                troubles = self.troubles if record.model == self._name else record.troubles
                record.write(troubles, is_final=is_final or is_over, is_alone=is_alone)
                if is_over:
                    del self._records[key]
            self._spool_fails = False
        except OSError as error:
            if not self._spool_fails:
                logger.warning(
                    "latencies cannot be handed to the agent, so no soak sees them: %s; may this "
                    "process's user write there?",
                    error,
                )
            self._spool_fails = True


def _pointer_path(state_dir: Path, name: str) -> Path:
    try:
        return pointer_path(state_dir, name)
    except ValueError as error:
        raise DeviceError(str(error), remedy="edgepack-agent status lists the models") from error
