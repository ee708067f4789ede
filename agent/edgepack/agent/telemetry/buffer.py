"""Telemetry between the spool and the fleet, and for soaks."""

import contextlib
import logging
import math
import time
from pathlib import Path

import msgspec

from edgepack.agent.config import TelemetryConfig
from edgepack.agent.state.state_file import Write
from edgepack.agent.telemetry.collector import MAX_WAITING, Collected, LatencyCollector, Trouble
from edgepack.agent.telemetry.drift import Release
from edgepack.agent.telemetry.energy import EnergyMeter
from edgepack.agent.telemetry.heat import HeatWatch
from edgepack.agent.telemetry.journal import TelemetryJournal, join_windows, release_of
from edgepack.agent.telemetry.outcomes import OutcomeWatch
from edgepack.agent.telemetry.pace import INTERVAL_S, PaceKeeper
from edgepack.agent.telemetry.readings import highest_temperature_c
from edgepack.agent.telemetry.shadowed import Shadowed, add_up
from edgepack.agent.telemetry.spool import open_spool
from edgepack.agent.telemetry.totals import ReleaseTotal, add_windows
from edgepack.durable import write_file
from edgepack.wire.telemetry import Telemetry

log = logging.getLogger(__name__)


MAX_TROUBLES = 100


class TelemetryBuffer:
    """Collects statistics of serving processes, for the fleet and for soaks.

    Args:
        state_dir: The agent's state folder.
        interval_s: Length of the intervals for comparisons of releases by latency, seconds.
        settings: Settings of telemetry.

    Attributes:
        paces: How fast each release serves.
        trouble: Why processes cannot write the spool, as a sentence; "" without a problem.
        outcomes: How the most recent inferences ended, by release.
        drift: How the most recent inferences differ from the build's samples, by release.
        journal: Windows until the fleet has them.
        heat: Signs of a device that slows down for heat.
        energy: Energy of the device.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        interval_s: float = INTERVAL_S,
        settings: TelemetryConfig = TelemetryConfig(),  # noqa: B008 (it cannot be changed)
        write: Write = write_file,
    ) -> None:
        self._state_dir, self._runtime_dir = state_dir, settings.runtime_dir
        self.trouble = open_spool(state_dir, self._runtime_dir)
        if self.trouble:
            log.warning("%s", self.trouble)
        self.outcomes = OutcomeWatch()
        self.journal = TelemetryJournal(state_dir, max_bytes=settings.journal_bytes, write=write)
        stored = self.journal.stored
        self._collector = LatencyCollector(
            state_dir, stored, drift_window_s=settings.drift_window_s
        )
        self.drift = self._collector.drift
        self._sysfs = Path(settings.sysfs_dir)
        self.heat, self.energy = HeatWatch(self._sysfs), EnergyMeter(self._sysfs)
        self._throttled_s = 0.0
        self.paces = PaceKeeper(interval_s, stored.paces)
        self._open: dict[Release, Telemetry] = {}
        self._unseen: tuple[Telemetry, ...] = ()
        self._troubles: tuple[Trouble, ...] = ()
        self._shadowed: dict[str, Shadowed] = {}

    def collect(self) -> Collected:
        """Return the windows since the last call, sent or not."""
        self.gather()
        collected = Collected(
            telemetry=self._unseen,
            troubles=self._troubles,
            shadowed=self._shadowed,
        )
        self._unseen, self._troubles, self._shadowed = (), (), {}
        return collected

    @property
    def totals(self) -> tuple[ReleaseTotal, ...]:
        """Inferences of each release so far; energy and heat up to the last stored window."""
        stored = self.journal.stored.totals
        return add_windows(stored, self._open.values(), self._collector.names)

    def commit(self, *, seals: bool) -> None:
        """Gather, and store the windows since the last commit.

        Args:
            seals: Whether stored windows may be sent.

        Raises:
            OSError: The windows cannot be stored now; the next commit takes them along.
        """
        self._gather()
        temperature_c, energy_j = highest_temperature_c(self._sysfs), self.energy.energy_j
        throttled_s = self.heat.throttled_s
        busy_ms = math.fsum(window.latency.sum_ms for window in self._open.values())
        windows = [
            msgspec.structs.replace(
                window,
                temperature_c=temperature_c,
                throttled_s=throttled_s - self._throttled_s,
                energy_j=energy_j * window.latency.sum_ms / busy_ms
                if energy_j is not None and busy_ms
                else None,
            )
            for window in self._open.values()
        ]
        self.journal.commit(
            windows,
            files=self._collector.files,
            features=self._collector.drift.states,
            paces=self.paces.paces,
            totals=add_windows(self.journal.stored.totals, windows, self._collector.names),
            seals=seals,
        )
        self._open.clear()
        self._throttled_s = throttled_s
        self.energy.begin()
        self._collector.clean()

    def gather(self) -> None:
        """Collect, and keep the windows until they are stored: soon if many processes ended."""
        self._gather()
        if self._collector.has_many_finished:
            with contextlib.suppress(OSError):
                self.commit(seals=False)

    def _gather(self) -> None:
        if self.trouble:
            self.trouble = open_spool(self._state_dir, self._runtime_dir)
        self.energy.look()
        collected = self._collector.collect()
        self.paces.add(collected.telemetry)
        for one in collected.telemetry:
            self.outcomes.add(one, time.monotonic())
            key, box = release_of(one), self._open
            box[key] = join_windows((box[key], one)) if key in box else one
        self._unseen = (*self._unseen, *collected.telemetry)[-MAX_WAITING:]
        self._shadowed = add_up(self._shadowed, collected.shadowed)
        for trouble in collected.troubles:
            log.warning("model=%s a serving process reports: %s", trouble.model, trouble.because)
        self._troubles = (*self._troubles, *collected.troubles)[-MAX_TROUBLES:]
