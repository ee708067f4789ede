"""Shadow inferences: some real inferences, computed again by another release of the model.

Before a switch the next release computes them, and during a soak the previous release. The thread
that runs an inference decides by chance whether to copy the inference, and continues; during a
shadow inference the thread copies nothing, and counts the skipped inference. A separate thread has
a child process compute and compare the copy. So a shadow release that hangs, crashes or grows harms
no inference; and all of its memory is returned at the end.

A single process of a device shadows a model: the process that locked the slot of the shadow
release.
"""

import contextlib
import logging
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np

from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.agent.runtime.shadow import ShadowRequest
from edgepack.agent.serving.shadow_process import ShadowProcess
from edgepack.agent.state.pointer import Shadow
from edgepack.agent.state.slot_lock import lock_for_comparison
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.telemetry.correlation import CorrelationTime
from edgepack.agent.telemetry.shadowed import ShadowRecorder
from edgepack.bundle.manifest import Variant
from edgepack.errors import DeviceError
from edgepack.tasks.sketch import thin_input

log = logging.getLogger(__name__)

LOCKED_S = 5.0
"""How long to wait while another process does it."""
MAX_BYTES = 64 * 1024 * 1024
"""Of the tensors of one inference, which are copied."""
SPACING_S = 15.0
"""Seconds between two independent inferences while the correlation time is unknown: three times a
scene of 5 s."""
TIMES_APART = 3.0
"""Correlation times between two independent inferences."""
LEAST_SPACING_S, MOST_SPACING_S = 1.0, 120.0
LEAST_MS = 0.1
"""Durations below this are compared as this."""
_CLOSE_S = 5.0


_Taken = tuple[dict[str, Tensor], dict[str, Tensor] | None, float, dict[str, Tensor] | None]
"""Inputs, outputs and duration of an inference; of a text in place of outputs None, since it still
runs, and at last the inputs of its last token."""


class ShadowRunner:
    """Has the shadow release compute some of the inferences of the serving release.

    Args:
        state_dir: The state folder.
        shadow: Release to run, and share of inferences.
        session: The release that serves.
        newer: The variant of the newer release: its tolerances hold.
        recorder: Counts the results.
        note_disagreement: Takes the inputs of an inference with different answers.
        threads: Threads within an operator of the next release.

    Attributes:
        shadow: See above.
    """

    def __init__(
        self,
        state_dir: Path,
        shadow: Shadow,
        session: Session,
        newer: Variant,
        recorder: ShadowRecorder,
        *,
        note_disagreement: Callable[[dict[str, Tensor]], None] = lambda _: None,
        threads: int = 1,
    ) -> None:
        self._session = session
        self._folder = slot_folder(state_dir, shadow.bundle.digest)
        self.shadow = shadow
        self._recorder = recorder
        self._note_disagreement = note_disagreement
        self._spaced_at = -math.inf
        self._correlation = CorrelationTime()
        self._process = ShadowProcess(shadow.memory_bytes)
        self._request = ShadowRequest(
            state_dir=str(state_dir),
            digest=shadow.bundle.digest,
            variant=shadow.variant,
            is_next=shadow.is_next,
            threads=threads if shadow.is_next else 1,
            inputs=session.inputs,
            outputs=session.outputs,
            tolerances=newer.facts.tolerances,
            agreements=newer.facts.agreements,
        )
        self._is_free = threading.Semaphore()
        self._queue: queue.SimpleQueue[_Taken | None]
        self._queue = queue.SimpleQueue()
        self._stop = threading.Event()
        title = f"edgepack-shadow-{shadow.bundle.name}"
        self._thread = threading.Thread(target=self._work, name=title, daemon=True)
        self._thread.start()

    def offer_text(self, feeds: Mapping[str, Tensor], token: Mapping[str, Tensor]) -> None:
        """Take a text, if selected; never wait. Both releases then run the text at once.

        The inputs are never kept as a sample.

        Args:
            feeds: Inputs that have the text and an empty cache; nobody changes the arrays.
            token: The same of the last token alone, so that the time of a token is compared, too.
        """
        if self._stop.is_set():
            return
        self._observe(feeds)
        if random.random() >= self.shadow.share:
            return
        if self._is_free.acquire(blocking=False):
            self._queue.put((dict(feeds), None, 0.0, dict(token)))
        else:
            self._recorder.drop()

    def offer(
        self, feeds: Mapping[str, Tensor], outputs: Mapping[str, Tensor], taken_ms: float
    ) -> None:
        """Copy an inference, if selected; never wait.

        Args:
            feeds, outputs: Tensors of the inference.
            taken_ms: Its duration, milliseconds.
        """
        if self._stop.is_set():
            return
        self._observe(feeds)
        if random.random() >= self.shadow.share:
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
                self._queue.put((_copy(feeds), _copy(judged), taken_ms, None))
            except MemoryError:
                self._end("no memory is left to copy an inference")

    def _observe(self, feeds: Mapping[str, Tensor]) -> None:
        """Observe an input for the correlation time, a few times a second at most."""
        now = time.monotonic()
        if not self.shadow.spacing_s and self._correlation.is_due(now):
            value = next(iter(feeds.values()))
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                self._correlation.observe(thin_input(value), now)

    @property
    def spacing_s(self) -> float:
        """Seconds between two inferences that count as independent."""
        if self.shadow.spacing_s:
            return self.shadow.spacing_s
        known_s = self._correlation.seconds()
        if known_s is None:
            return SPACING_S
        return min(max(TIMES_APART * known_s, LEAST_SPACING_S), MOST_SPACING_S)

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
        self._recorder.end(f"{self.shadow.bundle.version}: {because}")
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
            log.exception("model=%s shadow inferences failed", self.shadow.bundle.name)
            self._end("they failed, see the log of the process that serves")
        finally:
            self._process.close()

    def _run(self, errors: BinaryIO, held: contextlib.ExitStack) -> None:
        """Run shadow inferences until closed; open the shadow release with the first inference."""
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
                feeds, outputs, serving_ms, token = taken
                if outputs is None:
                    outputs, serving_ms = self._session.run_timed(feeds)
                answer = self._process.ask(feeds, outputs)
                is_slow = self._is_slow(answer.taken_ms, serving_ms)
                if token is not None:
                    outputs, serving_ms = self._session.run_timed(token)
                    further = self._process.ask(token, outputs)
                    is_slow |= self._is_slow(further.taken_ms, serving_ms)
                is_spaced = began - self._spaced_at >= self.spacing_s
                if is_spaced:
                    self._spaced_at = began
                self._recorder.add(
                    agreed=answer.agreed and not answer.failed,
                    is_spaced=is_spaced,
                    failed=answer.failed,
                    is_slow=is_slow,
                )
                if not answer.agreed and token is None:
                    self._note_disagreement(feeds)
                busy_s = time.monotonic() - began
                self._stop.wait(busy_s / self.shadow.busy_share - busy_s)
            del taken
            self._is_free.release()

    def _is_slow(self, taken_ms: float, serving_ms: float) -> bool:
        """Check whether a shadow inference took too long beside that of the serving release."""
        limit_ms = self.shadow.slow_times * max(serving_ms, LEAST_MS)
        return 0 < limit_ms < taken_ms


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
