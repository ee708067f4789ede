"""A model, for an application: opened by name, swapped beneath it as updates come.

    with open_model("line-orientation") as model:
        outputs = model.run({"x": pixels})

A thread watches the pointer. A new model is opened and run once beside the old one, then takes
over between two inferences: no inference waits for it, and none fails because of it.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.agent.serving.capture import SampleKeeper
from edgepack.agent.serving.opened import OpenedModel, open_release
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.agent.state.pointer import (
    ActivePointer,
    active_models,
    pointer_path,
    read_pointer,
)
from edgepack.agent.telemetry.spool import Record
from edgepack.errors import BundleError, DeviceError
from edgepack.wire.messages import BundleRef, Choice

logger = logging.getLogger(__name__)

STATE_DIR_VARIABLE = "EDGEPACK_STATE_DIR"

POLL_S = 0.2
"""Seconds between looks at the pointer; a look is one `stat`."""

SPOOL_S = 5.0
"""Seconds between writes of what inferences took."""

FAILED_SPOOL_S = 0.5
"""The same once inferences failed: a soak must hear of that before it ends."""

RETRY_S = 10.0
"""Seconds until a new model that could not be opened is tried again."""

MAX_TROUBLES = 5
_OPENING_TRIES = 5


class Model:
    """The active model of a device; safe to use from several threads.

    Made by `open_model`. Use it as a context manager, or `close` it. An update swaps the model
    beneath it between two inferences: what it is now, `bundle` and `choice` say.

    Example:
        ```python
        import numpy as np

        from edgepack.agent import Model, open_model

        def score(model: Model, image: np.ndarray) -> np.ndarray:
            return model.run({"x": image})["y"]

        with open_model("defects") as model:
            print(score(model, np.zeros((1, 3, 8, 8), np.float32)), "by", model.bundle.version)
        ```
    """

    def __init__(self, name: str, state_dir: Path, *, threads: int, poll_s: float) -> None:
        self._name = name
        self._state_dir = state_dir
        self._pointer_path = _pointer_path(state_dir, name)
        self._threads = threads
        self._poll_s = poll_s
        self._keeper = SampleKeeper(state_dir, name)
        self._records: dict[tuple[str, str, str], Record] = {}
        self._troubles: tuple[str, ...] = ()
        self._spool_fails = False
        self._stop = threading.Event()
        self._stamp, self._serving = self._open_first()
        self._retry_at = 0.0
        self._watcher = threading.Thread(target=self._watch, name=f"edgepack-{name}", daemon=True)
        self._watcher.start()

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs one inference on the model that is active now.

        How long it took is counted, and told to the fleet by the agent.

        Args:
            feeds: A numpy array for every input, by its name, with the dtype and shape that
                `inputs` says, e.g. float32 (1, 3, 224, 224). What its numbers mean (layout, scale,
                labels) is in the bundle: `edgepack inspect` shows it.

        Returns:
            A numpy array for every output, by its name, as `outputs` says.

        Raises:
            ValueError: The feeds do not fit the inputs, or the model is closed.
            DeviceError: The provider failed; the model stays open.

        Example:
            ```python
            import numpy as np

            from edgepack.agent import open_model

            with open_model("defects") as model:
                outputs = model.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
                print({name: array.shape for name, array in outputs.items()})
            ```
        """
        if self._stop.is_set():
            raise ValueError("the model is closed")
        serving = self._serving
        started = time.perf_counter()
        try:
            outputs = serving.session.run(feeds)
        except DeviceError:
            serving.record.fail()
            raise
        serving.record.latency.record((time.perf_counter() - started) * 1000)
        serving.record.values.offer(feeds, outputs)
        self._keeper.offer(feeds)
        if (shadow := serving.shadow) is not None:
            shadow.offer(feeds, outputs)
        return outputs

    @property
    def bundle(self) -> BundleRef:
        """The bundle that serves now."""
        return self._serving.pointer.bundle

    @property
    def choice(self) -> Choice:
        """Which of its variants serves, and why."""
        return self._serving.pointer.choice

    @property
    def inputs(self) -> tuple[SessionTensor, ...]:
        """Inputs of the model that serves now, in its own order."""
        return self._serving.session.inputs

    @property
    def outputs(self) -> tuple[SessionTensor, ...]:
        """Outputs of the model that serves now, in its own order."""
        return self._serving.session.outputs

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why newer models could not be opened here, the last few; empty when all went well."""
        return self._troubles

    def close(self) -> None:
        """Stops watching, and writes what inferences took; running ones end undisturbed."""
        if not self._stop.is_set():
            self._stop.set()
            self._watcher.join()
            self._serving.end_shadow()
            self._keeper.write()
            self._spool(is_final=True)

    def __enter__(self) -> "Model":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_first(self) -> tuple[tuple[int, ...], OpenedModel]:
        """Opens the active model; when the pointer moves meanwhile, the newer one."""
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
                    self._troubles = (f"it cannot be opened: {error.problem}",)
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
        """What tells one pointer file from the next; empty when there is none."""
        try:
            status = self._pointer_path.stat()
        except FileNotFoundError:
            return ()
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    def _open(self, pointer: ActivePointer) -> OpenedModel:
        key = (pointer.digest, pointer.choice.chosen, pointer.choice.provider)
        if key not in self._records:
            digest, name, provider = key
            self._records[key] = Record(
                model=self._name, digest=digest, variant=name, provider=provider
            )
        return open_release(self._state_dir, pointer, self._records[key], threads=self._threads)

    def _watch(self) -> None:
        spooled_at = time.monotonic()
        while not self._stop.wait(self._poll_s):
            try:
                self._follow()
                if self._serving.shadow is not None:
                    self._serving.shadow.look()
                fails = any(record.has_new_failures for record in list(self._records.values()))
                if time.monotonic() - spooled_at >= (FAILED_SPOOL_S if fails else SPOOL_S):
                    spooled_at = time.monotonic()
                    self._spool()
                    self._keeper.write()
            except Exception:  # The outermost loop: serving goes on.
                logger.exception("watching the active model failed, trying on")

    def _follow(self) -> None:
        """Swaps in another model when the pointer names one."""
        stamp = self._look()
        is_known = not stamp or stamp == self._stamp
        if is_known and (not self._retry_at or time.monotonic() < self._retry_at):
            return
        self._stamp, self._retry_at = stamp, 0.0
        old = self._serving.pointer
        try:
            new = read_pointer(self._state_dir, self._name)
            if new is None:
                return
            is_other = (new.digest, new.choice.chosen) != (old.digest, old.choice.chosen)
            if is_other or new.shadow is None:
                self._serving.end_shadow()
            if is_other:
                self._serving = self._open(new)
                logger.info(
                    "model=%s from=%s to=%s variant=%s",
                    self._name,
                    old.bundle.version,
                    new.bundle.version,
                    new.choice.chosen,
                )
            else:
                self._serving.pointer = new  # Committed now, or chosen anew with the same result.
        except (DeviceError, BundleError, OSError) as error:
            self._retry_at = time.monotonic() + RETRY_S
            problem = getattr(error, "problem", str(error))
            trouble = f"version {old.bundle.version} keeps serving, the new one failed: {problem}"
            self._troubles = (*self._troubles, trouble)[-MAX_TROUBLES:]
            logger.warning("model=%s %s", self._name, trouble)
            self._spool()

    def _spool(self, *, is_final: bool = False) -> None:
        """Writes every record that changed since it was written last."""
        try:
            for record in list(self._records.values()):
                record.write(self._state_dir, self._troubles, is_final=is_final)
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


def open_model(
    name: str,
    state_dir: Path | str | None = None,
    *,
    threads: int = 0,
    poll_s: float = POLL_S,
) -> Model:
    """Opens a model of this device and follows its releases from then on.

    One process may open several models, and several processes the same one. The name is never left
    out: what works while a device has one model would fail on the day that it gets a second.

    The agent need not run. The first inference is as fast as the others: the model runs once on
    one of its golden samples before this returns.

    Args:
        name: Name of the model, as the bundle states it.
        state_dir: The agent's state folder; None takes it from the environment variable
            `EDGEPACK_STATE_DIR`, else `/var/lib/edgepack`.
        threads: Threads within an operator; 0 leaves it to ONNX Runtime.
        poll_s: Seconds between looks at which model is active.

    Returns:
        The model, to be closed when it is no longer needed.

    Raises:
        DeviceError: No model of that name is active, or its provider fails here.
        BundleError: The files of the model are not what was installed.

    Example:
        ```python
        import numpy as np

        from edgepack.agent import open_model

        with open_model("defects", threads=1) as model:
            image = np.zeros((1, 3, 8, 8), np.float32)
            scores = model.run({"x": image})["y"]
        ```
    """
    folder = state_dir or os.environ.get(STATE_DIR_VARIABLE) or DEFAULT_STATE_DIR
    return Model(name, Path(folder), threads=threads, poll_s=poll_s)
