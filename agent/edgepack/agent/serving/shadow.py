"""Shadow inferences: some real inferences, computed again by the previous release during a soak.

The thread that runs an inference decides by chance whether to copy the inference, and continues;
during a shadow inference the thread copies nothing, and counts the skipped inference. A separate
thread has a child process compute and compare the copy. So a previous release that hangs, crashes
or grows harms no inference; and all of its memory is returned at the end of the soak.

A single process of a device shadows a model: the process that locked the slot of the previous
release.
"""

import contextlib
import logging
import math
import queue
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np

from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.runtime.shadow import ShadowRequest
from edgepack.agent.runtime.slot_opening import OpenedSlot
from edgepack.agent.serving.shadow_process import ShadowProcess
from edgepack.agent.state.pointer import Shadow
from edgepack.agent.state.slot_lock import lock_for_comparison
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.telemetry.shadowed import ShadowRecorder
from edgepack.errors import DeviceError

log = logging.getLogger(__name__)

LOCKED_S = 5.0
"""How long to wait while another process does it."""
MAX_BYTES = 64 * 1024 * 1024
"""Of the tensors of one inference, which are copied."""
_CLOSE_S = 5.0


class ShadowRunner:
    """Has the previous release compute some of the inferences of a soaking release.

    Args:
        state_dir: The state folder.
        shadow: Release to run, and share of inferences.
        opened: The release that soaks.
        recorder: Counts the results.
    """

    def __init__(
        self,
        state_dir: Path,
        shadow: Shadow,
        opened: OpenedSlot,
        recorder: ShadowRecorder,
    ) -> None:
        self._folder = slot_folder(state_dir, shadow.bundle.digest)
        self._shadow = shadow
        self._recorder = recorder
        self._spaced_at = -math.inf
        self._process = ShadowProcess(shadow.memory_bytes)
        self._request = ShadowRequest(
            state_dir=str(state_dir),
            digest=shadow.bundle.digest,
            variant=shadow.variant,
            inputs=opened.session.inputs,
            outputs=opened.session.outputs,
            tolerances=opened.variant.facts.tolerances,
            agreements=opened.variant.facts.agreements,
        )
        self._is_free = threading.Semaphore()
        self._queue: queue.SimpleQueue[tuple[dict[str, Tensor], dict[str, Tensor]] | None]
        self._queue = queue.SimpleQueue()
        self._stop = threading.Event()
        title = f"edgepack-shadow-{shadow.bundle.name}"
        self._thread = threading.Thread(target=self._work, name=title, daemon=True)
        self._thread.start()

    def offer(self, feeds: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Copy an inference, if selected; never wait."""
        if random.random() >= self._shadow.share or self._stop.is_set():
            return
        if not self._is_free.acquire(blocking=False):
            self._recorder.drop()
            return
        judged = {name: outputs[name] for name in sorted(self._request.judged) if name in outputs}
        both = (*feeds.values(), *judged.values())
        if not all(isinstance(one, np.ndarray) and one.dtype.kind in "biuf" for one in both):
            self._end("its tensors are not numbers")
        elif sum(one.nbytes for one in both) > MAX_BYTES:
            self._end(f"the tensors of one inference have more than {MAX_BYTES / 1e6:.0f} MB")
        else:
            try:
                self._queue.put((_copy(feeds), _copy(judged)))
            except MemoryError:
                self._end("no memory is left to copy an inference")

    def look(self) -> None:
        """End a process that takes too long or too much; to be called now and then."""
        self._process.look()

    def close(self) -> None:
        """End the runner with its process."""
        self._stop.set()
        self._queue.put(None)
        self._process.end("it was closed")
        self._thread.join(_CLOSE_S)

    def _end(self, because: str) -> None:
        self._recorder.end(f"{self._shadow.bundle.version}: {because}")
        self._stop.set()
        self._queue.put(None)

    def _work(self) -> None:
        try:
            with TemporaryFile() as errors, contextlib.ExitStack() as held:
                self._run(errors, held)
        except DeviceError as error:
            if not self._stop.is_set():
                self._end(error.problem)
        except Exception:  # The outermost loop: serving goes on.
            log.exception("model=%s shadow inferences failed", self._shadow.bundle.name)
            self._end("they failed, see the log of the process that serves")
        finally:
            self._process.close()

    def _run(self, errors: BinaryIO, held: contextlib.ExitStack) -> None:
        """Run shadow inferences until closed; open the previous release with the first
        inference.
        """
        is_open = False
        while (taken := self._queue.get()) is not None and not self._stop.is_set():
            if not is_open and not _lock(self._folder, held):
                self._recorder.drop()
                self._stop.wait(LOCKED_S)
            else:
                if not is_open:
                    self._process.open(self._request, errors)
                    is_open = True
                began = time.monotonic()
                agreed = self._process.ask(*taken)
                is_spaced = began - self._spaced_at >= self._shadow.spacing_s
                if is_spaced:
                    self._spaced_at = began
                self._recorder.add(agreed=agreed, is_spaced=is_spaced)
                busy_s = time.monotonic() - began
                self._stop.wait(busy_s / self._shadow.busy_share - busy_s)
            del taken
            self._is_free.release()


def _lock(folder: Path, held: contextlib.ExitStack) -> bool:
    """Lock a slot for this process, until `held` ends; return False if another process holds the
    lock.

    Raises:
        DeviceError: The slot is missing, or may not be read.
    """
    try:
        lock = lock_for_comparison(folder)
    except OSError as error:
        raise DeviceError(f"its slot cannot be read: {error.strerror}") from error
    if lock is not None:
        held.callback(lock.release)
    return lock is not None


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: np.array(value) for name, value in tensors.items()}
