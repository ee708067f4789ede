"""Capture of inputs of a served model, if the device keeps inputs.

Plain samples are drawn by chance. For a request of the fleet, inputs are chosen for a reason:

    drift    the inference pushes features the way in which they differ from the build
    doubt    the task's own measure has little confidence in the answer
    shadow   the release in the shadow gave another answer

Near duplicates of a chosen input are left out. A chosen input is encrypted before a byte of the
input is written. An input that cannot be encrypted or written is dropped and counted.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.state.captured import (
    CaptureSettings,
    Dropped,
    SealedRequest,
    draw_priority,
    encode_sample,
    keep_content,
    keep_sample,
    kept_samples,
    note_dropped,
    rank_priority,
    read_capture,
    sealed_pool,
)
from edgepack.agent.state.pointer import pointer_path
from edgepack.agent.telemetry.sketches import SketchRecorder
from edgepack.bundle.sealed_samples import seal_sample
from edgepack.errors import EdgepackError
from edgepack.tasks.arrays import Floats
from edgepack.tasks.sketch import thin_input
from edgepack.wire.transfers import MAX_SAMPLE_BYTES

log = logging.getLogger(__name__)

OFFER_S = 1.0
"""Seconds between two inferences that are offered, at least."""

MAX_WAITING = 16
"""Inferences that wait for the choice; the oldest go first."""

NEAR = 0.1
"""Difference of two near duplicates, at most: root mean square, as a share of the spread of values
within an input."""

_TEXTS = "the model's inputs are texts, and [capture] texts on the device does not name the model"
_PRINT_VALUES = 256
_SEAL_BYTES = 8 * 1024
"""Bytes by which encryption makes a sample longer, at most."""


class Candidate(NamedTuple):
    """Copied tensors of an inference that may be chosen.

    Attributes:
        feeds: Inputs.
        outputs: Outputs of which the task makes a confidence; empty for the reason `shadow`.
        sketches: Features of the release that ran; None for the reason `shadow`.
    """

    feeds: dict[str, Tensor]
    outputs: dict[str, Tensor]
    sketches: SketchRecorder | None


class SampleKeeper:
    """Copies inputs in the thread that runs an inference; another thread writes the copies.

    Args:
        state_dir: The state folder.
        model: The model's name.

    Attributes:
        next_at: When the next inference is looked at, monotonic clock, seconds.
        are_texts: Whether inputs are texts: kept only if the device's settings name the model.
    """

    def __init__(self, state_dir: Path, model: str) -> None:
        self._state_dir, self._model = state_dir, model
        self._settings = read_capture(state_dir)
        self._waiting: tuple[int, dict[str, Tensor]] | None = None
        self._candidates: deque[Candidate] = deque(maxlen=MAX_WAITING)
        self.next_at = 0.0
        self.are_texts = False
        self._least = 0
        """What a sample must rank above to be kept."""
        self._fails = False
        self._prints: dict[Path, Floats] = {}
        self._writer = secrets.token_hex(8)
        self._request, self._dropped = "", Dropped()

    def offer(
        self,
        feeds: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        sketches: SketchRecorder,
    ) -> None:
        """Copy an inference if due; keep only the latest copy that is drawn by chance."""
        settings = self._settings
        if time.monotonic() < self.next_at:
            return
        self.next_at = time.monotonic() + OFFER_S
        if settings is None or not self._may_keep(settings) or not _is_numeric(feeds):
            return
        priority, waiting = draw_priority(), self._waiting
        least = self._least if waiting is None else max(self._least, waiting[0])
        copy: dict[str, Tensor] | None = None
        if settings.samples and priority > least:
            copy = _copy(feeds)
            self._waiting = priority, copy
        request = settings.requests.get(self._model)
        if request is not None and {"drift", "doubt"} & set(request.of):
            if copy is None:
                copy = _copy(feeds)
            self._candidates.append(Candidate(copy, sketches.copy_outputs(outputs), sketches))

    def _may_keep(self, settings: CaptureSettings) -> bool:
        return not self.are_texts or self._model in settings.texts

    def note_disagreement(self, feeds: dict[str, Tensor]) -> None:
        """Take the inputs of an inference with another answer in the shadow; in any thread."""
        settings = self._settings
        if settings is None or not self._may_keep(settings):
            return
        request = settings.requests.get(self._model)
        if request is not None and "shadow" in request.of and _is_numeric(feeds):
            self._candidates.append(Candidate(feeds, {}, None))

    def write(self) -> None:
        """Write the waiting samples, and check whether capture is still enabled."""
        settings = self._settings = read_capture(self._state_dir)
        waiting, self._waiting = self._waiting, None
        candidates = [self._candidates.popleft() for _ in range(len(self._candidates))]
        is_active = pointer_path(self._state_dir, self._model).exists()
        if settings is None or not is_active:
            return
        if waiting is not None and settings.samples:
            self._write_plain(settings, *waiting)
        request = settings.requests.get(self._model)
        if request is None:
            self._prints.clear()
            return
        if request.request != self._request:
            self._request, self._dropped = request.request, Dropped()
        before = self._dropped
        if not self._may_keep(settings) and not self._dropped.because:
            self._dropped = Dropped(because=_TEXTS)
        for candidate in candidates:
            self._choose(candidate, settings, request)
        if self._dropped != before:
            try:
                note_dropped(
                    self._state_dir, self._model, request.request, self._writer, self._dropped
                )
            except OSError as error:
                log.warning("model=%s dropped samples are not noted: %s", self._model, error)

    def _write_plain(
        self, settings: CaptureSettings, priority: int, feeds: dict[str, Tensor]
    ) -> None:
        try:
            keep_sample(self._state_dir, self._model, feeds, settings, priority=priority)
            kept = kept_samples(self._state_dir, self._model)
            self._least = kept[0].priority if len(kept) >= settings.samples else 0
            self._fails = False
        except OSError as error:
            if not self._fails:
                log.warning("model=%s an input cannot be kept: %s", self._model, error)
            self._fails = True

    def _choose(
        self, candidate: Candidate, settings: CaptureSettings, request: SealedRequest
    ) -> None:
        """Keep an input for the first reason that holds, unless better or similar ones are kept."""
        feeds = candidate.feeds
        if sum(array.nbytes for array in feeds.values()) > MAX_SAMPLE_BYTES - _SEAL_BYTES:
            self._drop(f"an input has more than {MAX_SAMPLE_BYTES / 2**20:.0f} MB")
            return
        if not all(np.isfinite(array).all() for array in feeds.values()):
            self._drop("an input has NaN or infinity, which no build accepts")
            return
        found = _fingerprint(feeds)
        self._prints = {path: one for path, one in self._prints.items() if path.exists()}
        if any(_is_near(found, one) for one in self._prints.values()):
            return
        for reason, score in _scores(candidate):
            if reason not in request.of:
                continue
            pool, priority = sealed_pool(settings, request, reason), rank_priority(score)
            kept = kept_samples(self._state_dir, self._model, pool.suffix)
            if len(kept) >= pool.samples and (not kept or priority <= kept[0].priority):
                continue
            try:
                content = seal_sample(encode_sample(feeds), request.recipient, request.place)
                path = keep_content(self._state_dir, self._model, content, pool, priority)
            except (EdgepackError, OSError, ValueError, MemoryError) as error:
                problem = getattr(error, "problem", "") or str(error)
                self._drop(f"a sample cannot be encrypted or kept: {problem}")
                return
            if path is not None:
                self._prints[path] = found
                return

    def _drop(self, because: str) -> None:
        if not self._dropped.count:
            log.warning("model=%s request=%s %s", self._model, self._request, because)
        self._dropped = Dropped(count=self._dropped.count + 1, because=because[:400])


def _scores(candidate: Candidate) -> Iterator[tuple[str, float]]:
    """Yield each reason that an input may be chosen for, with its score 0…1."""
    if candidate.sketches is None:
        yield "shadow", 0.0
        return
    rank = candidate.sketches.rank(candidate.feeds, candidate.outputs)
    if rank.push > 0:
        yield "drift", rank.push / (1 + rank.push)
    if rank.confidence is not None:
        yield "doubt", 1 - rank.confidence


def _is_numeric(feeds: Mapping[str, Tensor]) -> bool:
    return all(
        isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in feeds.values()
    )


def _copy(feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: np.array(value) for name, value in feeds.items()}


def _fingerprint(feeds: Mapping[str, Tensor]) -> Floats:
    """Return some values of an input, float64 (n,), with n at most 256 for each tensor."""
    parts = []
    for name in sorted(feeds):
        flat = np.nan_to_num(thin_input(feeds[name]).astype(np.float64).ravel())
        parts.append(flat[:: max(1, -(-flat.size // _PRINT_VALUES))])
    return np.concatenate(parts) if parts else np.zeros(0)


def _is_near(one: Floats, other: Floats) -> bool:
    if one.shape != other.shape:
        return False
    apart = float(np.sqrt(np.mean((one - other) ** 2))) if one.size else 0.0
    return apart <= NEAR * max(float(one.std()), float(other.std())) if one.size else True
