"""Capture of inputs of a served model, if the device keeps inputs."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.state.captured import (
    draw_priority,
    keep_sample,
    kept_samples,
    read_capture,
)
from edgepack.agent.state.pointer import pointer_path

log = logging.getLogger(__name__)

OFFER_S = 1.0
"""Seconds between two inferences that are offered, at least."""


class SampleKeeper:
    """Copies inputs in the thread that runs an inference; another thread writes the copies.

    Args:
        state_dir: The state folder.
        model: The model's name.
    """

    def __init__(self, state_dir: Path, model: str) -> None:
        self._state_dir, self._model = state_dir, model
        self._settings = read_capture(state_dir)
        self._waiting: tuple[int, dict[str, Tensor]] | None = None
        self._next_at = 0.0
        self._least = 0
        """What a sample must rank above to be kept."""
        self._fails = False

    def offer(self, feeds: Mapping[str, Tensor]) -> None:
        """Copy the inputs of an inference if due and selected; keep only the latest copy."""
        if self._settings is None or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + OFFER_S
        priority = draw_priority()
        is_kept = priority > self._least and all(
            isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in feeds.values()
        )
        waiting = self._waiting
        if is_kept and (waiting is None or priority > waiting[0]):
            self._waiting = priority, {name: np.array(value) for name, value in feeds.items()}

    def write(self) -> None:
        """Write the waiting sample, and check whether capture is still enabled."""
        self._settings = read_capture(self._state_dir)
        waiting, self._waiting = self._waiting, None
        is_active = pointer_path(self._state_dir, self._model).exists()
        if self._settings is None or waiting is None or not is_active:
            return
        priority, feeds = waiting
        try:
            keep_sample(self._state_dir, self._model, feeds, self._settings, priority=priority)
            kept = kept_samples(self._state_dir, self._model)
            self._least = kept[0].priority if len(kept) >= self._settings.samples else 0
            self._fails = False
        except OSError as error:
            if not self._fails:
                log.warning("model=%s an input cannot be kept: %s", self._model, error)
            self._fails = True
