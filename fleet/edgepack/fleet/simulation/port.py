"""Interface of a simulated device to its environment."""

from collections.abc import Callable

import msgspec

from edgepack.fleet.simulation.chunk_store import ChunkStore


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated device's connection to the broker.

    Attributes:
        publish: Topic, payload, QoS and retained flag.
        subscribe, unsubscribe: A topic.
        chunks: Verified chunks of devices.
    """

    publish: Callable[[str, bytes, int, bool], None]
    subscribe: Callable[[str], None]
    unsubscribe: Callable[[str], None]
    chunks: ChunkStore
