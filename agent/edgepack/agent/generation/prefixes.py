"""Kept keys and values of the beginnings of prompts: a prompt that begins alike skips them.

A beginning ends where an inference of the prompt ended. The rest of a prompt then runs in the same
inferences as without the kept beginning, so a text is equal, bit for bit.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgepack.agent.runtime.sessions import Tensor

MOST_PREFIXES = 8
"""Beginnings that are kept, at most: each new prompt is compared with all of them."""


class Prefix(NamedTuple):
    """Kept beginning of a prompt.

    Attributes:
        owner: The session that computed the cache, as an object of its own.
        steps: Tokens of an inference of the prompt.
        tokens: The beginning, int64 (n,); n is a multiple of `steps`.
        cache: Keys and values by name of the input, (1, heads, n, values).
    """

    owner: object
    steps: int
    tokens: npt.NDArray[np.int64]
    cache: Mapping[str, Tensor]

    @property
    def size_bytes(self) -> int:
        """Memory of keys and values."""
        return sum(one.nbytes for one in self.cache.values())


class Prefixes:
    """Kept beginnings of prompts, for any number of threads; the oldest make place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Prefix] = []

    @property
    def size_bytes(self) -> int:
        """Memory of all beginnings."""
        with self._lock:
            return sum(one.size_bytes for one in self._kept)

    def find(self, owner: object, steps: int, prompt: Sequence[int]) -> tuple[int, Prefix | None]:
        """Return the longest kept beginning of a prompt, without the prompt's last inference.

        Returns:
            Number of tokens that the prompt shares with the beginning, and the beginning.
        """
        tokens = np.array(prompt, np.int64)
        most = (tokens.size - 1) // steps * steps
        found: tuple[int, Prefix | None] = (0, None)
        with self._lock:
            for one in self._kept:
                if one.owner is owner and one.steps == steps:
                    length = min(most, one.tokens.size)
                    apart = np.flatnonzero(one.tokens[:length] != tokens[:length])
                    shared = int(apart[0]) if apart.size else length
                    found = max(found, (shared // steps * steps, one), key=lambda it: it[0])
            if found[1] is not None and found[0]:
                self._kept = [one for one in self._kept if one is not found[1]] + [found[1]]
        return found if found[0] else (0, None)

    def keep(self, prefix: Prefix, most_bytes: int) -> None:
        """Keep a beginning, in place of beginnings that it contains.

        Args:
            prefix: The beginning.
            most_bytes: Memory of all beginnings, at most.
        """
        with self._lock:
            size = prefix.tokens.size
            self._kept = [
                one
                for one in self._kept
                if one.owner is not prefix.owner
                or one.steps != prefix.steps
                or not np.array_equal(one.tokens, prefix.tokens[: min(size, one.tokens.size)])
            ]
            self._kept.append(prefix)
        self.shrink(most_bytes)

    def shrink(self, most_bytes: int) -> None:
        """Drop the oldest beginnings until the rest takes no more memory than allowed."""
        with self._lock:
            sizes = [one.size_bytes for one in self._kept]
            while sizes and (sum(sizes) > most_bytes or len(sizes) > MOST_PREFIXES):
                del sizes[0], self._kept[0]
