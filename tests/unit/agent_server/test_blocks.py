"""Large blocks of memory between requests."""

import numpy as np

from edgepack.agent.runtime.heap import LARGE_BYTES
from edgepack.agent.server.blocks import MOST_KEPT_BYTES, Blocks


def test_a_block_serves_the_next_request_only_once_nothing_refers_to_it() -> None:
    blocks = Blocks()
    array = np.frombuffer(blocks.take(2 * LARGE_BYTES), np.float32)[:4]
    array[...] = 1.0
    other = np.frombuffer(blocks.take(2 * LARGE_BYTES), np.float32)
    other[...] = 2.0
    assert array.tolist() == [1.0] * 4
    address = other.ctypes.data
    del other
    again = np.frombuffer(blocks.take(LARGE_BYTES + 1), np.uint8)
    assert again.ctypes.data == address
    assert again.size == LARGE_BYTES + 1


def test_blocks_are_bounded_and_freed_when_no_request_comes() -> None:
    blocks = Blocks()
    held = [np.frombuffer(blocks.take(MOST_KEPT_BYTES // 2), np.uint8) for _ in range(3)]
    assert len({array.ctypes.data for array in held}) == 3
    assert blocks.free_unused()
    assert not blocks.free_unused()
    assert held[0].size == MOST_KEPT_BYTES // 2
    assert len(blocks.take(10)) == 10
