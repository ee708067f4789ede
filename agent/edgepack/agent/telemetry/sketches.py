"""Sketches of a served model's inferences, added up by feature.

An inference a second is sketched at most. The thread that runs an inference only copies its
tensors; another thread sketches the copies when the spool file is written. Of a text only its
sketch is kept: numbers, and no tokens.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from edgepack.bundle.drift import (
    add_sketch,
    sketch_outputs,
    sketch_tensor,
    sketched_parts,
)
from edgepack.bundle.features import FEWEST_INFERENCES, FeatureSum
from edgepack.bundle.metadata import Feature
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.description import ModelDescription, TaskOutputs
from edgepack.tasks.sketch import Sketch, sketch_input, thin_input
from edgepack.tasks.tokens.sketch import PROMPT, TEXT, sketch_prompt, sketch_surprisals

log = logging.getLogger(__name__)

SAMPLE_S = 1.0
"""Seconds between two inferences that are sketched, at least."""

BYTES_PER_S = 8_000_000
"""Copied outputs per second, at most; larger outputs are sketched less often."""

_MOST_PUSH = 10.0
"""Standard deviations as which a difference counts at most."""

_MAX_WAITING = 32
_MAX_WAITING_BYTES = 64_000_000


class _Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Copied tensors of an inference: thinned inputs, and outputs; or sketches of a text."""

    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    texts: dict[str, Sketch] = {}
    size_bytes: int = 0


class Rank(NamedTuple):
    """Worth of an inference for the next build.

    Attributes:
        confidence: The least confidence of its answers, 0…1; None if the task has none.
        push: Sum over features that differ from the build of the inference's own difference in the
            same direction, weighted by the feature's difference; 0 without any.
    """

    confidence: float | None
    push: float


class SketchRecorder:
    """Adds up features of a model's inferences in this process, in any thread.

    Attributes:
        next_at: When the next inference is sketched, monotonic clock, seconds.
    """

    def __init__(self) -> None:
        self._features: dict[str, list[Feature]] = {}
        self._parts: tuple[TaskOutputs, ...] = ()
        self._inputs: tuple[str, ...] = ()
        self._sums: dict[str, FeatureSum] = {}
        self._waiting: deque[_Taken] = deque()
        self._waiting_bytes = 0
        self.next_at = math.inf
        self._lock = threading.Lock()

    def expect(self, reference: Iterable[Feature], description: ModelDescription) -> None:
        """Set the features to add up, and the tasks that sketch the features."""
        self._features = {}
        for feature in reference:
            self._features.setdefault(feature.tensor, []).append(feature)
        self.next_at = 0.0 if self._features else math.inf
        self._parts = tuple(
            part for part in sketched_parts(description) if part.outputs[0] in self._features
        )
        firsts = {part.outputs[0] for part in self._parts}
        self._inputs = tuple(name for name in self._features if name not in firsts)

    def offer(self, feeds: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Copy an inference for a sketch, if due."""
        if time.monotonic() < self.next_at:
            return
        copied = self._numeric(outputs)
        size = sum(value.nbytes for value in copied.values())
        with self._lock:
            if time.monotonic() < self.next_at:
                return
            self.next_at = time.monotonic() + max(SAMPLE_S, SAMPLE_S * size / BYTES_PER_S)
        inputs = {
            name: thin_input(np.asarray(feeds[name]))
            for name in self._inputs
            if _is_numeric(feeds.get(name))
        }
        taken = _Taken(
            inputs=inputs,
            outputs={name: value.copy() for name, value in copied.items()},
            size_bytes=size,
        )
        self._wait(taken)

    def offer_text(self, prompt: Sequence[int], surprisals: Sequence[float]) -> None:
        """Sketch a text, if due.

        Args:
            prompt: Tokens of the prompt.
            surprisals: Of the first tokens of the text; empty where they do not compare.
        """
        with self._lock:
            if time.monotonic() < self.next_at:
                return
            self.next_at = time.monotonic() + SAMPLE_S
        texts = {PROMPT: sketch_prompt(prompt), TEXT: sketch_surprisals(surprisals)}
        self._wait(_Taken(texts=texts))

    def _wait(self, taken: _Taken) -> None:
        with self._lock:
            self._waiting.append(taken)
            self._waiting_bytes += taken.size_bytes
            while len(self._waiting) > 1 and (
                len(self._waiting) > _MAX_WAITING or self._waiting_bytes > _MAX_WAITING_BYTES
            ):
                self._waiting_bytes -= self._waiting.popleft().size_bytes

    def _numeric(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = {name for part in self._parts for name in part.outputs}
        return {name: outputs[name] for name in names if _is_numeric(outputs.get(name))}

    def copy_outputs(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of the outputs that `rank` needs."""
        return {name: value.copy() for name, value in self._numeric(outputs).items()}

    def rank(self, feeds: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Rank:
        """Return the confidence of an inference, and its push on features that differ."""
        sums: dict[str, FeatureSum] = {}
        confidences = []
        for part in self._parts:
            if (sketch := sketch_outputs(part, outputs)) is not None:
                sums = add_sketch(sums, self._features[part.outputs[0]], sketch)
                if sketch.confidence is not None:
                    confidences.append(sketch.confidence)
        for name in self._inputs:
            if _is_numeric(feeds.get(name)):
                sums = add_sketch(sums, self._features[name], sketch_tensor(feeds[name]))
        push = 0.0
        for key, one in sums.items():
            known, feature = self._sums.get(key), one.feature
            if known is None or known.count < FEWEST_INFERENCES or feature.kind == "spread":
                continue
            away = (one.value - feature.mean) / feature.spread
            if away * (known.value - feature.mean) > 0:
                push += min(abs(away), _MOST_PUSH) * min(known.difference, _MOST_PUSH)
        return Rank(confidence=min(confidences, default=None), push=push)

    def snapshot(self) -> tuple[FeatureSum, ...]:
        """Compute the sketches of waiting inferences, and return all sums."""
        while True:
            with self._lock:
                if not self._waiting:
                    return tuple(self._sums.values())
                taken = self._waiting.popleft()
                self._waiting_bytes -= taken.size_bytes
            self._add(taken)

    def _add(self, taken: _Taken) -> None:
        for part in self._parts:
            sketch = sketch_outputs(part, taken.outputs)
            if sketch is None:
                log.warning("task=%s output=%s has no sketch", part.task, ascii(part.outputs[0]))
            else:
                self._sums = add_sketch(self._sums, self._features[part.outputs[0]], sketch)
        sketches = {name: sketch_input(value) for name, value in taken.inputs.items()}
        for name, sketch in (sketches | taken.texts).items():
            self._sums = add_sketch(self._sums, self._features.get(name, ()), sketch)


def _is_numeric(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
