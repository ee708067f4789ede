"""Latency reports between collection and sending."""

import logging
import time
from pathlib import Path

import msgspec

from edgepack.agent.telemetry.collector import Collected, LatencyCollector, Trouble
from edgepack.agent.telemetry.outcomes import OutcomeWatch
from edgepack.agent.telemetry.pace import INTERVAL_S, PaceKeeper
from edgepack.agent.telemetry.readings import highest_temperature_c
from edgepack.agent.telemetry.shadowed import Shadowed, add_up
from edgepack.agent.telemetry.spool import open_spool
from edgepack.wire import histogram
from edgepack.wire.messages import Telemetry

log = logging.getLogger(__name__)


MAX_TROUBLES = 100

_Key = tuple[str, str, str]


class TelemetryBuffer:
    """Collects statistics of serving processes, for the fleet and for soaks.

    A soak looks often and the broker may be away for long: reports on the same model merge, so
    the box stays small.

    Args:
        state_dir: The agent's state folder.
        interval_s: Length of the intervals for comparisons of releases by latency, seconds.

    Attributes:
        paces: How fast each release serves.
        trouble: Why processes cannot write the spool, as a sentence; "" without a problem.
        outcomes: How the most recent inferences ended, by release.
        drift: How the most recent inferences differ from the build's samples, by release.
    """

    def __init__(self, state_dir: Path, *, interval_s: float = INTERVAL_S) -> None:
        self._state_dir = state_dir
        self.trouble = open_spool(state_dir)
        if self.trouble:
            log.warning("%s", self.trouble)
        self.outcomes = OutcomeWatch()
        self._collector = LatencyCollector(state_dir)
        self.drift = self._collector.drift
        self.paces = PaceKeeper(state_dir, interval_s)
        self._unsent: dict[_Key, Telemetry] = {}
        self._unseen: dict[_Key, Telemetry] = {}
        self._troubles: tuple[Trouble, ...] = ()
        self._shadowed: dict[str, Shadowed] = {}

    def collect(self) -> Collected:
        """Return the windows since the last call, sent or not.

        Raises:
            OSError: The collected data cannot be stored.
        """
        self.gather()
        collected = Collected(
            telemetry=tuple(self._unseen.values()),
            troubles=self._troubles,
            shadowed=self._shadowed,
        )
        self._unseen.clear()
        self._troubles, self._shadowed = (), {}
        return collected

    def take(self) -> tuple[Telemetry, ...]:
        """Remove and return the windows that wait to be sent.

        Raises:
            OSError: The collected data cannot be stored.
        """
        self.gather()
        temperature_c = highest_temperature_c()
        waiting = tuple(
            msgspec.structs.replace(window, temperature_c=temperature_c)
            for window in self._unsent.values()
        )
        self._unsent.clear()
        return waiting

    def gather(self) -> None:
        """Collect, and keep the windows until they are sent.

        Raises:
            OSError: The collected data cannot be stored.
        """
        if self.trouble:
            self.trouble = open_spool(self._state_dir)
        collected = self._collector.collect()
        self.paces.add(collected.telemetry)
        for one in collected.telemetry:
            self.outcomes.add(one, time.monotonic())
            for box in (self._unsent, self._unseen):
                key = (one.digest, one.variant, one.provider)
                box[key] = _add(box[key], one) if key in box else one
        self._shadowed = add_up(self._shadowed, collected.shadowed)
        for trouble in collected.troubles:
            log.warning("model=%s a serving process reports: %s", trouble.model, trouble.because)
        self._troubles = (*self._troubles, *collected.troubles)[-MAX_TROUBLES:]


def _add(earlier: Telemetry, later: Telemetry) -> Telemetry:
    start = min(earlier.window_start, later.window_start)
    end = max(earlier.window_start + earlier.window_s, later.window_start + later.window_s)
    return msgspec.structs.replace(
        later,
        window_start=start,
        window_s=end - start,
        latency=histogram.merge((earlier.latency, later.latency)),
        failures=earlier.failures + later.failures,
        not_finite=earlier.not_finite + later.not_finite,
        memory_bytes=later.memory_bytes or earlier.memory_bytes,
        drift=earlier.drift if later.drift is None else later.drift,
        shadow_count=earlier.shadow_count + later.shadow_count,
        shadow_agreed=earlier.shadow_agreed + later.shadow_agreed,
    )
