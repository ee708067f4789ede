"""Latency reports between the moment they are collected and the moment they are sent."""

import logging
from pathlib import Path

import msgspec

from edgepack.agent.telemetry.collector import Collected, LatencyCollector
from edgepack.wire import histogram
from edgepack.wire.messages import Telemetry

log = logging.getLogger(__name__)


class TelemetryBuffer:
    """Collects what serving processes saw and adds it up until it is taken to be sent.

    A soak looks often and the broker may be away for long: reports on the same model merge, so
    the box stays small.

    Args:
        state_dir: The agent's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._collector = LatencyCollector(state_dir)
        self._waiting: dict[tuple[str, str, str], Telemetry] = {}

    def collect(self) -> Collected:
        """Takes what is new; it also waits to be sent.

        Raises:
            OSError: What was collected cannot be remembered.
        """
        collected = self._collector.collect()
        for one in collected.telemetry:
            key = (one.digest, one.variant, one.provider)
            waiting = self._waiting.get(key)
            self._waiting[key] = _add(waiting, one) if waiting else one
        for trouble in collected.troubles:
            log.warning("a serving process says: %s", trouble)
        return collected

    def take(self) -> tuple[Telemetry, ...]:
        """What waits to be sent; it does not wait any more.

        Raises:
            OSError: What was collected cannot be remembered.
        """
        self.collect()
        waiting = tuple(self._waiting.values())
        self._waiting.clear()
        return waiting


def _add(earlier: Telemetry, later: Telemetry) -> Telemetry:
    start = min(earlier.window_start, later.window_start)
    end = max(earlier.window_start + earlier.window_s, later.window_start + later.window_s)
    return msgspec.structs.replace(
        later,
        window_start=start,
        window_s=end - start,
        latency=histogram.merge((earlier.latency, later.latency)),
        failures=earlier.failures + later.failures,
    )
