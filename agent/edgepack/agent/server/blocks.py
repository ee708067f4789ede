"""Large blocks of memory, which wait a while for the next request of about their size.

The kernel clears each new page: for an input of 10 MB that takes longer than its copy.
"""

import sys

import numpy as np
import numpy.typing as npt

from edgepack.agent.runtime.heap import LARGE_BYTES

MOST_KEPT_BYTES = 32 * 1024 * 1024
_UNUSED = 3
"""References to a block that nothing uses: the list, the loop and the question itself."""


class Blocks:
    """Blocks of memory; used by the event loop's thread alone."""

    def __init__(self) -> None:
        self._blocks: list[npt.NDArray[np.uint8]] = []
        self._is_used = False

    def take(self, length: int) -> memoryview:
        """Return memory of some length, whose content is undefined.

        The block is free again once nothing refers to the memory, or to an array in it.

        Raises:
            MemoryError: There is no memory.
        """
        if length < LARGE_BYTES:
            return np.empty(length, np.uint8).data
        self._is_used = True
        for block in self._blocks:
            if length <= block.size <= 2 * length and sys.getrefcount(block) == _UNUSED:
                return block[:length].data
        block = np.empty(length, np.uint8)
        if sum(one.size for one in self._blocks) + length <= MOST_KEPT_BYTES:
            self._blocks.append(block)
        return block.data

    def free_unused(self) -> bool:
        """Free all blocks unless one was taken since the last call; return whether any is kept.

        Arrays in use stay.
        """
        if not self._is_used:
            self._blocks.clear()
        self._is_used = False
        return bool(self._blocks)
