"""A release opened by a process, with the shadow runner of another release."""

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from edgepack.agent.runtime.sessions import SessionTensor, Tensor, check_feeds
from edgepack.agent.runtime.slot_opening import OpenedSlot, open_slot
from edgepack.agent.serving.capture import SampleKeeper
from edgepack.agent.serving.shadow import ShadowRunner
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slot_lock import SlotLock, lock_for_session
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.telemetry.record import Record
from edgepack.bundle.features import shifted

_FEW = 4096
"""Values that are searched as bytes."""


class OpenedModel:
    """Opened model. A running inference holds the model, so that a swap never closes a model in
    use.

    Args:
        state_dir: The agent's state folder.
        pointer: Names the release.
        opened: The release.
        record: Counts inferences.
        keeper: Keeps samples of inputs, if the device keeps any.

    Attributes:
        shadow: Runs another release next to this release; None without shadow mode.
        inputs_before: Inputs with which the application ran the release before, in this process;
            empty if there is none.
    """

    def __init__(
        self,
        state_dir: Path,
        pointer: ActivePointer,
        opened: OpenedSlot,
        record: Record,
        keeper: SampleKeeper,
    ) -> None:
        self.pointer = pointer
        self.session = opened.session
        self.variant = opened.variant
        self.samples = opened.samples
        self.record = record
        self.shadow: ShadowRunner | None = None
        self.inputs_before: tuple[SessionTensor, ...] = ()
        self._has_run = False
        self._keeper = keeper
        self._finite_outputs = opened.finite_outputs
        self._slot = slot_folder(state_dir, pointer.digest)
        self._running: dict[int, float] = {}
        self._guard = threading.Lock()
        self._holders = 0
        self._lock: SlotLock | None = None

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run an inference and count the inference; see `Model.run`.

        Raises:
            ValueError: The feeds do not fit the inputs.
            DeviceError: The provider failed.
        """
        record, thread = self.record, threading.get_ident()
        started = self._running[thread] = time.monotonic()
        try:
            outputs = self.session.run(feeds)
        except ValueError:
            if self._is_fed_as_before(feeds):
                record.fail()
            raise
        except Exception:
            record.fail()
            raise
        finally:
            self._running.pop(thread, None)
        self._has_run = True
        taken_ms = (time.monotonic() - started) * 1000
        record.latency.record(taken_ms)
        bad_input = ""
        if not _are_finite(outputs, self._finite_outputs):
            if bad_input := _find_not_finite(feeds):
                record.count_bad_input(bad_input)
            else:
                record.count_not_finite()
        record.sketches.offer(feeds, outputs)
        self._keeper.offer(feeds, outputs, record.sketches)
        if (shadow := self.shadow) is not None and not bad_input:
            shadow.offer(feeds, outputs, taken_ms)
        return outputs

    @property
    def inputs_that_ran(self) -> tuple[SessionTensor, ...]:
        """Inputs of the newest release that the application has run in this process."""
        return self.session.inputs if self._has_run else self.inputs_before

    def _is_fed_as_before(self, feeds: Mapping[str, Tensor]) -> bool:
        """Check whether feeds fit the release before: the release is wrong, not the application."""
        if not self.inputs_before:
            return False
        try:
            check_feeds(self.inputs_before, feeds)
        except ValueError:
            return False
        return True

    @property
    def running_since(self) -> float:
        """Start of the oldest running inference, monotonic clock, seconds; 0 without one."""
        return min(tuple(self._running.values()), default=0.0)

    def hold(self) -> bool:
        """Keep the agent from removing the release's files; return True if the files are still
        there.
        """
        with self._guard:
            if self._lock is None:
                try:
                    self._lock = lock_for_session(self._slot)
                except FileNotFoundError:
                    return False
            if self._lock is None:
                return False
            self._holders += 1
        return True

    def let_go(self) -> None:
        """End a single `hold`."""
        with self._guard:
            self._holders -= 1
            if not self._holders and self._lock is not None:
                self._lock.release()
                self._lock = None

    def end_shadow(self) -> None:
        """Stop the shadow process."""
        shadow, self.shadow = self.shadow, None
        if shadow is not None:
            shadow.close()


def _are_finite(outputs: Mapping[str, Tensor], names: Iterable[str]) -> bool:
    """Return True without NaN and infinity; a search in few bytes takes half the time of `all`."""
    for name in names:
        flags = np.isfinite(outputs[name])
        if not (flags.all() if flags.size > _FEW else b"\0" not in flags.tobytes()):
            return False
    return True


def _find_not_finite(feeds: Mapping[str, Tensor]) -> str:
    """Return the name of an input with NaN or infinity; "" without one."""
    values = {name: np.asarray(value) for name, value in feeds.items()}
    floats = {name: value for name, value in values.items() if value.dtype.kind == "f"}
    return next((name for name, value in floats.items() if not np.isfinite(value).all()), "")


def open_release(
    state_dir: Path,
    pointer: ActivePointer,
    record: Record,
    keeper: SampleKeeper,
    *,
    threads: int,
) -> OpenedModel:
    """Open the release of a pointer.

    Args:
        state_dir: The agent's state folder.
        pointer: Names the release.
        record: Counts inferences.
        keeper: Keeps samples of inputs.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.

    Raises:
        BundleError: The files differ from the installed files.
        DeviceError: The provider is not here, or fails, or the files cannot be decrypted.
    """
    opened = open_slot(state_dir, pointer.digest, pointer.choice.chosen, threads=threads)
    facts = opened.manifest.facts
    reference = shifted(facts.reference, opened.variant.facts.confidence)
    record.sketches.expect(reference, facts.description)
    return OpenedModel(state_dir, pointer, opened, record, keeper)
