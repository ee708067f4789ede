"""A text's own inferences: prefill of the prompt, then a token each, over a cache.

Past and present of the cache are one buffer where the graph has GroupQueryAttention: an inference
writes the new keys and values in place, and nothing is copied. Other graphs return a longer cache
at each inference, which is the next one's past.
"""

import threading
import weakref
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.agent.generation.sampling import Logits
from edgepack.agent.generation.wiring import Wiring
from edgepack.agent.runtime.sessions import Session, SessionTensor, Tensor
from edgepack.agent.telemetry.readings import available_bytes
from edgepack.bundle.generation import GENAI_CONFIG
from edgepack.errors import BundleError, DeviceError

LOGITS_BYTES = 16 * 1024 * 1024
"""Logits of an inference, at most: a long prompt runs in parts."""
MOST_STEPS = 128
"""Tokens of an inference, at most. A prompt of 1,024 tokens took 170 ms in parts of 128, and 235 ms
in parts of 512, on AMD EPYC with 6 layers of 512 values. A slow board also shows its progress."""

_FEWER = "ask for fewer tokens, or run fewer texts at once"
_CACHE_DTYPES = ("float32", "float16")


class CacheMemoryError(DeviceError):
    """The device has no memory for the cache of a text."""


class TextCancelledError(Exception):
    """Nobody reads the text any more."""


_guard = threading.Lock()
_texts: "weakref.WeakSet[Decoding]" = weakref.WeakSet()
"""Texts in progress: the system gives memory to a cache as the text grows."""


def check_wiring(wiring: Wiring, session: Session) -> None:
    """Check that a graph has the tensors that its wiring names.

    Raises:
        BundleError: A tensor is missing, is not named, or has another dtype or size.
    """
    graph = wiring.graph
    inputs = {one.name: one for one in session.inputs}
    outputs = {one.name: one for one in session.outputs}
    names = graph.inputs
    ids = {name for name in (names.input_ids, names.attention_mask, names.position_ids) if name}
    cache = wiring.cache_names
    pasts, presents = {past for past, _ in cache}, {present for _, present in cache}
    for kind, named, have in (
        ("input", ids | pasts, inputs),
        ("output", {graph.outputs.logits} | presents, outputs),
    ):
        if len(pasts) < len(cache) or len(presents) < len(cache):
            raise _misfit("two tensors of the cache have the same name")
        for name in sorted(named - have.keys()):
            raise _misfit(f"the model has no {kind} {name!a:.120}")
        for name in sorted(have.keys() - named):
            raise _misfit(f"the model's {kind} '{name}' has no place in the decoder")
    sizes = (graph.num_key_value_heads, graph.head_size)
    for past, present in cache:
        for tensor in (inputs[past], outputs[present]):
            shape = tensor.shape
            own = (shape[1], shape[3]) if len(shape) == 4 else ()
            fits = own and all(
                isinstance(one, str) or one == size for one, size in zip(own, sizes, strict=True)
            )
            if not fits or tensor.dtype not in _CACHE_DTYPES:
                raise _misfit(
                    f"'{tensor.name}' is {tensor.dtype} {list(shape)}, and the cache has "
                    f"{sizes[0]} heads of {sizes[1]} values"
                )
    for name in ids:
        if inputs[name].dtype not in ("int64", "int32"):
            raise _misfit(f"input '{name}' is {inputs[name].dtype}, not int64 or int32")
    logits = outputs[graph.outputs.logits]
    is_free = len(logits.shape) == 3 and isinstance(logits.shape[2], str)
    if not is_free and logits.shape[2:] != (wiring.vocabulary,):
        raise _misfit(
            f"'{logits.name}' has the shape {list(logits.shape)}, and the vocabulary "
            f"{wiring.vocabulary} tokens"
        )


def _misfit(problem: str) -> BundleError:
    return BundleError(problem, found_in=GENAI_CONFIG, remedy="build the bundle again")


class Decoding:
    """Inferences of a single text, for one thread at a time.

    Args:
        session: The decoder; `check_wiring` passed.
        wiring: Its wiring.
        capacity: Tokens of the text, at most.

    Attributes:
        length: Tokens so far.
        cached: Tokens of the prompt that were taken from a kept beginning.
        note_progress: Called before each inference.
        progress_ns: When the last inference began, nanoseconds of `time.perf_counter_ns`.
        is_cancelled: Whether the next inference raises; set by any thread.

    Raises:
        CacheMemoryError: There is no memory for the cache.
    """

    def __init__(self, session: Session, wiring: Wiring, capacity: int) -> None:
        self._wiring = wiring
        self._is_shared = wiring.sampling.past_present_share_buffer
        inputs = {one.name: one for one in session.inputs}
        logits = next(one for one in session.outputs if one.name == wiring.graph.outputs.logits)
        self._has_last_only = logits.shape[1] == 1
        self._logits_dtype = np.dtype(logits.dtype)
        self._most = count_steps(wiring, self._logits_dtype, capacity)
        self._dtypes = {name: np.dtype(one.dtype) for name, one in inputs.items()}
        cache = [(past, present, inputs[past]) for past, present in wiring.cache_names]
        self._begin(count_bytes(wiring, cache[0][2], self._logits_dtype, capacity), capacity)
        names = wiring.graph.inputs
        try:
            self._allocate(names.input_ids, names.attention_mask, names.position_ids)
            self._cache = {past: self._make_cache(past) for past, _, _ in cache}
        except MemoryError as error:
            raise CacheMemoryError(
                f"there is no memory for the cache of {capacity} tokens, {self._bytes} bytes",
                remedy=_FEWER,
            ) from error
        self._binding, self._run = session.open_binding()
        if self._is_shared:
            for past, present, _ in cache:
                self._bind_input(past, self._cache[past])
                self._bind_output(present, self._cache[past])

    def _begin(self, needed: int, capacity: int) -> None:
        """Reserve the memory of an empty text, in bytes."""
        self._capacity, self.length, self.is_cancelled = capacity, 0, False
        self.cached = 0
        self.note_progress: Callable[[], object] = lambda: None
        self.progress_ns = perf_counter_ns()
        self._bytes = needed
        with _guard:
            check_memory(needed, capacity)
            _texts.add(self)

    def fill(self) -> int:
        """Take all memory of the cache from the system, and return its bytes."""
        for array in self._cache.values():
            array.fill(0)
        return sum(array.nbytes for array in self._cache.values())

    @property
    def promised_bytes(self) -> int:
        """Memory that the text will take, and has not taken yet."""
        return self._bytes - self._bytes * self.length // self._capacity

    def _allocate(self, ids: str, mask: str, positions: str) -> None:
        self._ids = np.zeros(self._most, self._dtypes[ids])
        self._mask = np.ones(self._capacity if mask else 0, self._dtypes.get(mask))
        self._positions = np.arange(self._capacity if positions else 0).astype(
            self._dtypes.get(positions)
        )
        rows = 1 if self._has_last_only else self._most
        self._logits = np.empty((rows, self._wiring.vocabulary), self._logits_dtype)

    def _make_cache(self, name: str) -> Tensor:
        graph = self._wiring.graph
        length = self._capacity if self._is_shared else 0
        shape = (1, graph.num_key_value_heads, length, graph.head_size)
        return np.zeros(shape, self._dtypes[name])

    @property
    def size_bytes(self) -> int:
        """Memory of a text that fills the capacity."""
        return self._bytes

    @property
    def steps(self) -> int:
        """Tokens of an inference, at most."""
        return self._most

    def copy_cache(self, length: int) -> dict[str, Tensor]:
        """Return the keys and values of the first tokens, as copies."""
        return {past: array[:, :, :length].copy() for past, array in self._cache.items()}

    def take_cache(self, cache: Mapping[str, Tensor], length: int) -> None:
        """Begin the text with tokens whose keys and values are known.

        Args:
            cache: As of `copy_cache`, of at least `length` tokens.
            length: The tokens.
        """
        for past, array in cache.items():
            if self._is_shared:
                self._cache[past][:, :, :length] = array[:, :, :length]
            else:
                self._cache[past] = array[:, :, :length].copy()
        self.length = length

    def feed(self, tokens: list[int]) -> Logits:
        """Append tokens to the text.

        Args:
            tokens: At least one; with the tokens before, as many as the capacity at most.

        Returns:
            float32 (vocabulary,): the logits of the next token.

        Raises:
            DeviceError: The provider failed.
            TextCancelledError: The text is cancelled.
        """
        if self.length + len(tokens) > self._capacity or not tokens:
            raise ValueError(f"{len(tokens)} tokens do not fit behind {self.length}")
        last = 0
        for start in range(0, len(tokens), self._most):
            if self.is_cancelled:
                raise TextCancelledError
            self.note_progress()
            self.progress_ns = perf_counter_ns()
            last = self._infer(tokens[start : start + self._most])
        logits: Logits = self._logits[last].astype(np.float32)
        return logits

    def _infer(self, tokens: list[int]) -> int:
        """Run an inference; return the row of the last logits."""
        names, number = self._wiring.graph.inputs, len(tokens)
        total = self.length + number
        self._ids[:number] = tokens
        self._bind_input(names.input_ids, self._ids[None, :number])
        if names.attention_mask:
            self._bind_input(names.attention_mask, self._mask[None, :total])
        if names.position_ids:
            self._bind_input(names.position_ids, self._positions[None, self.length : total])
        rows = 1 if self._has_last_only else number
        self._bind_output(self._wiring.graph.outputs.logits, self._logits[None, :rows])
        grown = {} if self._is_shared else self._bind_longer(total)
        self._run()
        self._cache.update(grown)
        self.length = total
        return rows - 1

    def _bind_longer(self, total: int) -> dict[str, Tensor]:
        """Bind the cache, and a longer cache that takes its place."""
        grown = {}
        for past, present in self._wiring.cache_names:
            now = self._cache[past]
            self._bind_input(past, now)
            grown[past] = np.empty((1, now.shape[1], total, now.shape[3]), now.dtype)
            self._bind_output(present, grown[past])
        return grown

    def _bind_input(self, name: str, array: npt.NDArray[Any]) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, array: npt.NDArray[Any]) -> None:
        self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def running_bytes() -> int:
    """Return the memory of the texts in progress in this process."""
    with _guard:
        return sum(one._bytes for one in _texts)


def count_steps(wiring: Wiring, logits: np.dtype[Any], capacity: int) -> int:
    """Return how many tokens an inference takes at most."""
    fitting = LOGITS_BYTES // (wiring.vocabulary * logits.itemsize)
    return max(1, min(MOST_STEPS, fitting, capacity))


def count_bytes(wiring: Wiring, cache: SessionTensor, logits: np.dtype[Any], capacity: int) -> int:
    """Return the memory of a text: its cache, twice if it grows, and its logits.

    Args:
        wiring: The decoder's.
        cache: A tensor of the cache.
        logits: Dtype of the logits.
        capacity: Tokens of the text.
    """
    graph = wiring.graph
    times = 1 if wiring.sampling.past_present_share_buffer else 2
    token = graph.num_key_value_heads * graph.head_size * np.dtype(cache.dtype).itemsize
    rows = count_steps(wiring, logits, capacity)
    number = 2 * graph.num_hidden_layers * token * capacity * times
    return number + rows * wiring.vocabulary * logits.itemsize


def check_memory(needed: int, tokens: int) -> None:
    """Check that the device has the memory of a text besides that of the texts in progress.

    Raises:
        CacheMemoryError: Too little is free.
    """
    available = available_bytes()
    free = None if available is None else available - sum(one.promised_bytes for one in _texts)
    if free is not None and needed > free:
        raise CacheMemoryError(
            f"the cache of a text of {tokens} tokens needs {needed} bytes of memory, "
            f"{max(0, free)} are free",
            remedy=_FEWER,
        )
