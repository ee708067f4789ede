"""Counts of inferences in memory that a process shares with the agent.

A process maps a small file of a runtime directory (tmpfs), and counts there. The counts outlive the
process, whatever ends the process: the agent reads the file. A lock on the file tells whether the
process still has the file open, also from inside a container.
"""

import fcntl
import math
import mmap
import os
import threading
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from edgepack.agent.state.state_file import open_shared, read_shared
from edgepack.errors import TransferError
from edgepack.wire.histogram import GROWTH, LEAST_MS, bucket_of
from edgepack.wire.telemetry import Histogram

_MAGIC = int.from_bytes(b"EPCOUNT2", "little")
_FIRST, _LAST = bucket_of(LEAST_MS, GROWTH), 400
"""Index of the first bucket, and of the last: 83 hours and more."""
_BOUNDS = [GROWTH**index for index in range(_FIRST, _LAST)]
"""Upper bounds of all buckets but the last: a search takes half the time of a logarithm."""
_FAILURES, _NOT_FINITE, _BAD_INPUTS, _NAME = range(1, 5)
"""Positions of 8-byte words after the magic number: three integers, the name of an input, the two
histograms."""
_NAME_BYTES = 128
_SUM, _LEAST, _MOST, _BUCKETS = range(4)
"""Positions of a histogram's words: three floats, the buckets."""
_HISTOGRAM = _BUCKETS + _LAST - _FIRST + 1
_LATENCY = _NAME + _NAME_BYTES // 8
_FIRST_TOKENS = _LATENCY + _HISTOGRAM
_WORDS = _FIRST_TOKENS + _HISTOGRAM
_BYTES = 8 * _WORDS
_TRIES = 5


class Counted(NamedTuple):
    """Counts of a process for a release, since the process opened the release."""

    latency: Histogram
    failures: int
    not_finite: int
    bad_inputs: int
    bad_input: str
    first_tokens: Histogram


class Counts:
    """Counts of a release's inferences in this process; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place(memoryview(bytearray(_BYTES)))
        self._integers[0] = _MAGIC
        for histogram in (_LATENCY, _FIRST_TOKENS):
            self._floats[histogram + _LEAST] = math.inf
        self._shared: tuple[int, int] | None = None
        self._descriptor: int | None = None

    def record(self, latency_ms: float) -> None:
        """Count an inference.

        Args:
            latency_ms: Its duration, milliseconds.

        Raises:
            ValueError: The latency is negative, infinite or not a number.
        """
        self._add(_LATENCY, latency_ms)

    def record_text(self, first_token_ms: float, token_ms: float) -> None:
        """Count a text as an inference that takes the time of a token.

        The time of a whole text depends on its length, which the application chooses: watch and
        gates could not compare releases by it.

        Args:
            first_token_ms: Time to the first token, milliseconds.
            token_ms: Mean time of a further token, milliseconds; without a further token, that of
                a token of the prompt.

        Raises:
            ValueError: A time is negative, infinite or not a number.
        """
        self._add(_LATENCY, token_ms)
        self._add(_FIRST_TOKENS, first_token_ms)

    def record_first_token(self, first_token_ms: float) -> None:
        """Count the time to the first token of a text that is counted as an inference.

        Raises:
            ValueError: The time is negative, infinite or not a number.
        """
        self._add(_FIRST_TOKENS, first_token_ms)

    def _add(self, histogram: int, latency_ms: float) -> None:
        if not LEAST_MS <= latency_ms < math.inf:
            if not 0 <= latency_ms < LEAST_MS:
                raise ValueError(f"a latency is a finite number of milliseconds, not {latency_ms}")
            latency_ms = LEAST_MS
        position = bisect_left(_BOUNDS, latency_ms) + histogram + _BUCKETS
        with self._lock:
            self._integers[position] += 1
            self._floats[histogram + _SUM] += latency_ms
            if latency_ms < self._floats[histogram + _LEAST]:
                self._floats[histogram + _LEAST] = latency_ms
            if latency_ms > self._floats[histogram + _MOST]:
                self._floats[histogram + _MOST] = latency_ms

    def fail(self) -> None:
        """Count an inference that raised."""
        with self._lock:
            self._integers[_FAILURES] += 1

    def count_not_finite(self) -> None:
        """Count an inference with NaN or infinity where the golden outputs have none."""
        with self._lock:
            self._integers[_NOT_FINITE] += 1

    def count_bad_input(self, name: str) -> None:
        """Count an inference with NaN or infinity in the input `name` and in an output."""
        with self._lock:
            self._words[8 * _NAME : 8 * _LATENCY] = name.encode(errors="replace")[
                :_NAME_BYTES
            ].ljust(_NAME_BYTES, b"\0")
            self._integers[_BAD_INPUTS] += 1

    @property
    def sum_ms(self) -> float:
        """Return the sum of all latencies, milliseconds: it changes with each inference."""
        return self._floats[_LATENCY + _SUM]

    def snapshot(self) -> Counted:
        """Return the counts as an unchanging copy."""
        with self._lock:
            return _read(bytes(self._words))

    def share(self, path: Path) -> None:
        """Count in a file from now on; a file that was removed is made again, with all counts.

        Raises:
            OSError: The file cannot be made; counting continues in memory.
        """
        if self._shared is not None and _identity(path) == self._shared:
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, _BYTES)  # A full disk is found here, not at a count.
            mapped = memoryview(mmap.mmap(descriptor, _BYTES))
            status = os.fstat(descriptor)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        with self._lock:
            mapped[:] = self._words
            self._place(mapped)
        self.close()
        self._shared, self._descriptor = (status.st_dev, status.st_ino), descriptor

    def close(self) -> None:
        """Let the agent remove the file; counting continues."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _place(self, words: memoryview) -> None:
        self._words = words
        self._integers, self._floats = words.cast("Q"), words.cast("d")


def is_in_use(path: Path) -> bool | None:
    """Return whether a process still counts in a file; None if there is no file.

    Raises:
        OSError: The file is not regular, or cannot be read.
    """
    if (descriptor := open_shared(path)) is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_counts(path: Path) -> Counted | None:
    """Return the counts in a file of any process of the device; None if there is no file.

    Raises:
        TransferError: The file is malformed.
        OSError: The file is too long, not regular, or cannot be read.
    """
    content = read_shared(path, limit_bytes=_BYTES)
    for _ in range(_TRIES):  # A count may lie between the reads of two words.
        before, content = content, read_shared(path, limit_bytes=_BYTES)
        if content == before:
            break
    return None if content is None else _read(content)


def _read(content: bytes) -> Counted:
    words = memoryview(content)
    if len(content) != _BYTES or (integers := words.cast("Q"))[0] != _MAGIC:
        raise TransferError("malformed file of counts")
    latency, first_tokens = (
        _read_histogram(words, histogram) for histogram in (_LATENCY, _FIRST_TOKENS)
    )
    name = content[8 * _NAME : 8 * _LATENCY].rstrip(b"\0").decode(errors="replace")
    failures, not_finite, bad_inputs = integers[_FAILURES:_NAME]
    return Counted(latency, failures, not_finite, bad_inputs, name, first_tokens)


def _read_histogram(words: memoryview, histogram: int) -> Histogram:
    start, end = histogram + _BUCKETS, histogram + _HISTOGRAM
    buckets = {i + _FIRST: n for i, n in enumerate(words.cast("Q")[start:end]) if n}
    count, floats = sum(buckets.values()), words.cast("d")
    return Histogram(
        growth=GROWTH,
        counts=buckets,
        count=count,
        sum_ms=floats[histogram + _SUM] if count else 0.0,
        min_ms=floats[histogram + _LEAST] if count else 0.0,
        max_ms=floats[histogram + _MOST] if count else 0.0,
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
