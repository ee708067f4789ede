"""A text's own inferences, on any decoder."""

from collections.abc import Mapping

import numpy as np

from edgepack.agent.generation.decoding import CacheMemoryError, Decoding
from edgepack.agent.generation.wiring import Wiring
from edgepack.agent.runtime.fixed_decoder import FixedCache, FixedDecoderSession
from edgepack.agent.runtime.sessions import Session, Tensor


def open_decoding(session: Session, wiring: Wiring, capacity: int) -> Decoding:
    """Return the cache of a text; see `Decoding`.

    Raises:
        CacheMemoryError: There is no memory for the cache.
    """
    if isinstance(session, FixedDecoderSession):
        return FixedDecoding(session, wiring, capacity)
    return Decoding(session, wiring, capacity)


class FixedDecoding(Decoding):
    """Inferences of a single text on a decoder with fixed shapes; see `Decoding`.

    The cache has the size of the context, whatever the text's capacity.
    """

    def __init__(self, session: FixedDecoderSession, wiring: Wiring, capacity: int) -> None:
        self._most = session.sizes.steps
        self._begin(session.count_bytes(), capacity)
        try:
            self._fixed = FixedCache(session)
        except MemoryError as error:
            raise CacheMemoryError(
                f"there is no memory for the cache of {session.sizes.context} tokens, "
                f"{self._bytes} bytes",
                remedy="run fewer texts at once",
            ) from error
        self._cache = self._fixed.arrays
        self._logits = np.empty((0, wiring.vocabulary), np.float32)

    def take_cache(self, cache: Mapping[str, Tensor], length: int) -> None:
        """Begin the text with tokens whose keys and values are known; see `Decoding`."""
        for past, array in cache.items():
            self._cache[past][:, :, :length] = array[:, :, :length]
        self.length = self._fixed.length = length

    def _infer(self, tokens: list[int]) -> int:
        """Run an inference; return the row of the last logits."""
        self._logits = self._fixed.feed(tokens)
        self.length = self._fixed.length
        return len(tokens) - 1
