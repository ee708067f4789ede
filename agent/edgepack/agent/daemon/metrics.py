"""Metrics of a device: for Prometheus at `/metrics`, and sent by OTLP; both only if asked for."""

import contextlib
import importlib.metadata
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.agent.broker.report import report_model
from edgepack.agent.config import AgentConfig
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.readings import available_bytes, memory_bytes, read_temperatures
from edgepack.agent.telemetry.totals import by_release
from edgepack.agent.update.models import Models
from edgepack.errors import DeviceError
from edgepack.metrics.settings import OtlpConfig, read_address
from edgepack.metrics.sums import sum_families
from edgepack.metrics.table import Family, Point, family

if TYPE_CHECKING:
    from edgepack.metrics.exporter import Exporter
    from edgepack.metrics.listener import MetricsListener


class DeviceMetrics:
    """Metrics of a device.

    The agent's thread takes snapshots of its own state; the threads that answer or export add what
    the system reports at that moment.

    Args:
        config: The agent's settings.
        telemetry: Statistics of serving processes.

    Raises:
        DeviceError: A setting makes no sense, or names an unusable file.
    """

    def __init__(self, config: AgentConfig, telemetry: TelemetryBuffer) -> None:
        self._sysfs = Path(config.telemetry.sysfs_dir)
        self._telemetry = telemetry
        self._snapshot: tuple[Family, ...] = ()
        self._resource = {
            "service.name": "edgepack-agent",
            "service.namespace": config.tenant,
            "service.instance.id": config.device,
            "service.version": importlib.metadata.version("edgepack"),
            "host.arch": platform.machine(),
        }
        with _named("metrics.listen", '"9464" or "unix:/run/edgepack/metrics.sock"'):
            self._listener = self._make_listener(config.metrics.listen)
        with _named("otlp", 'endpoint = "http://127.0.0.1:4318"'):
            self._exporter = self._make_exporter(config.otlp)

    def _make_listener(self, listen: str) -> "MetricsListener | None":
        if not listen:
            return None
        from edgepack.metrics.listener import MetricsListener

        return MetricsListener(read_address(listen), self._render)

    def _make_exporter(self, config: OtlpConfig) -> "Exporter | None":
        if not config.endpoint:
            return None
        # Loaded where it is needed: the client of HTTP takes 14 MB.
        from edgepack.metrics.exporter import Exporter

        return Exporter(config, self._families, self._resource)

    @property
    def trouble(self) -> str:
        """Reason why nothing listens, as a sentence; "" without a problem."""
        return self._listener.trouble if self._listener else ""

    def start(self) -> None:
        """Listen and export from now on, as the settings say."""
        for part in (self._listener, self._exporter):
            if part is not None:
                part.start()

    def stop(self) -> None:
        """Stop both."""
        for part in (self._listener, self._exporter):
            if part is not None:
                part.stop()

    def update(self, models: Models, dropped: Mapping[str, int], *, is_connected: bool) -> None:
        """Take a snapshot, if anything asks for metrics.

        Args:
            models: The models.
            dropped: Received messages that the agent dropped, by reason.
            is_connected: Whether the broker is connected.
        """
        if self._listener is not None or self._exporter is not None:
            found = self._own(models, dropped, is_connected=is_connected)
            self._snapshot = tuple(found)

    def _own(
        self, models: Models, dropped: Mapping[str, int], *, is_connected: bool
    ) -> Iterator[Family]:
        totals, meter = self._telemetry.totals, self._telemetry.energy
        yield from sum_families(by_release(totals))
        for name, values in (
            ("edgepack.inference.drift", [(one, one.drift) for one in totals]),
            ("edgepack.model.memory.usage", [(one, one.memory_bytes) for one in totals]),
        ):
            yield family(name, (Point(one.attributes, x) for one, x in values if x is not None))
        source = {"edgepack.power.source": meter.source}
        if meter.source:
            yield family("hw.host.energy", (Point(source, meter.total_j),))
        if meter.power_w is not None:
            yield family("hw.host.power", (Point(source, meter.power_w),))
        yield family("edgepack.model.degraded", _degraded(models))
        journal = self._telemetry.journal
        yield family("edgepack.telemetry.windows", len(journal.stored.windows))
        yield family("edgepack.telemetry.dropped", journal.dropped)
        yield family(
            "edgepack.messages.dropped",
            (Point({"edgepack.because": why}, n) for why, n in sorted(dropped.items())),
        )
        yield family("edgepack.broker.connected", float(is_connected))

    def _families(self) -> tuple[Family, ...]:
        temperatures = read_temperatures(self._sysfs)
        available = available_bytes()
        return (
            *self._snapshot,
            family(
                "hw.temperature",
                (Point({"hw.id": name}, celsius) for name, celsius in temperatures.items()),
            ),
            *([] if available is None else [family("system.memory.linux.available", available)]),
            family("process.memory.usage", memory_bytes()),
            family("process.cpu.time", time.process_time()),
            *([] if self._exporter is None else [self._exporter.family()]),
        )

    def _render(self, form: str) -> bytes:
        from edgepack.metrics.text import render

        return render(self._families(), form, self._resource)


def _degraded(models: Models) -> Iterator[Point]:
    for updater in models:
        watch = report_model(updater).watch
        if watch is not None:
            is_degraded = watch.state != "WATCHING"
            symptom = watch.symptom if is_degraded else ""
            attributes = {"edgepack.model": updater.name, "edgepack.symptom": symptom}
            yield Point(attributes, float(is_degraded))


@contextlib.contextmanager
def _named(place: str, example: str) -> Iterator[None]:
    """Raise errors of settings with their place.

    Raises:
        DeviceError: See above.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        raise DeviceError(
            f"the agent's metrics cannot be set up: {error}", found_in=place, remedy=example
        ) from error
