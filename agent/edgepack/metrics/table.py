"""Table of all metrics of devices and fleets.

Names follow OpenTelemetry's semantic conventions (1.37); metrics without a convention begin with
`edgepack.`. The text for Prometheus, OTLP and the page of the reference come from this table.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from edgepack.wire.histogram import GROWTH
from edgepack.wire.messages import Histogram

Kind = Literal["counter", "gauge", "updown", "histogram"]
"""A counter grows; an `updown` is a sum that also falls."""
UNITS = {"s": "seconds", "By": "bytes", "Cel": "celsius", "J": "joules", "W": "watts"}
"""Words of Prometheus for units of UCUM; units in braces have none."""

_BUCKETS = range(-70, 197, 14)
"""Indexes of `wire.histogram` whose upper bounds are the bounds of metrics: a fine bucket lies in
exactly one of the buckets. 33 µs to 14 s, each 1.98 times the previous; the sixth is 1 ms."""
BOUNDS_S = tuple(GROWTH**index / 1000 for index in _BUCKETS)

RELEASE = ("edgepack.model", "edgepack.version", "edgepack.digest", "edgepack.provider")
"""Attributes of a release; the fleet adds `CLASS`."""
CLASS = ("edgepack.hardware.class", "edgepack.simulator")
STATISTIC = "edgepack.statistic"
OVERFLOW = "otel.metric.overflow"
"""Attribute of the series that takes all beyond the bound, as OpenTelemetry's SDKs name it."""

ATTRIBUTES = {
    "edgepack.model": "Name of the model; `other` if the fleet has no such release.",
    "edgepack.version": "Version of the release.",
    "edgepack.digest": "First 12 digits of the release's root digest.",
    "edgepack.provider": "ONNX Runtime's name of the execution provider.",
    "edgepack.hardware.class": "Hardware class of the devices.",
    "edgepack.simulator": "`true` if the provider is a simulator.",
    STATISTIC: "`mean` or `max` over the windows of the last 10 to 20 minutes.",
    OVERFLOW: "`true` for all series beyond the bound together.",
    "error.type": (
        "`failed`: the inference raised. `not_finite`: NaN or infinity where the golden outputs "
        "have none. `bad_inputs`: the same, with NaN or infinity in an input. Of exports: "
        "`queue_full`, `rejected`, or a status of HTTP."
    ),
    "hw.id": "Name of the sensor below `/sys/class/thermal`.",
    "edgepack.power.source": "`RAPL`, `hwmon` or `battery`.",
    "edgepack.agreed": "`true` if both releases gave the same answer.",
    "edgepack.symptom": "Row of the watch; `other` if unknown.",
    "edgepack.outcome": "Outcome of a message.",
    "edgepack.because": "Reason of the drop.",
    "edgepack.state": "State of the rollout, or of the device in the rollout.",
    "edgepack.rollout": "Id of the rollout.",
    "edgepack.way": "`broadcast`, `coded` or `repair`.",
    "edgepack.kind": "Kind of the expiring object.",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Metric.

    Attributes:
        name: Name of OpenTelemetry.
        kind: Instrument.
        unit: Unit of UCUM.
        text: Description.
        attributes: Names of the attributes, on the device and in the fleet.
        device_attributes, fleet_attributes: Further ones of only the device or the fleet.
        device, fleet: Source of the numbers; "" where the metric does not exist.
    """

    name: str
    kind: Kind
    unit: str
    text: str
    attributes: tuple[str, ...] = ()
    device_attributes: tuple[str, ...] = ()
    fleet_attributes: tuple[str, ...] = ()
    device: str = ""
    fleet: str = ""

    @property
    def family(self) -> str:
        """Name of Prometheus, without the endings of samples."""
        name, unit = label(self.name), UNITS.get(self.unit, "")
        return name if not unit or name.endswith(f"_{unit}") else f"{name}_{unit}"

    @property
    def sample(self) -> str:
        """Name of Prometheus in queries; a histogram has `_bucket`, `_sum` and `_count`."""
        return self.family + ("_total" if self.kind == "counter" else "")


class Distribution(NamedTuple):
    """Latencies in buckets.

    Attributes:
        counts: Inferences by bucket of `BOUNDS_S`, and those above the last bound.
        sum_s: Sum, seconds.
    """

    counts: tuple[int, ...]
    sum_s: float


class Point(NamedTuple):
    """Value of a series.

    Attributes:
        attributes: By name.
        value: A finite number, or a distribution.
        since: Start of a sum, seconds since the epoch; None for the start of the process.
    """

    attributes: Mapping[str, str]
    value: float | Distribution
    since: float | None = None


class Family(NamedTuple):
    """Metric with all its series."""

    row: Row
    points: tuple[Point, ...]


def label(name: str) -> str:
    """Return Prometheus' form of a name of OpenTelemetry."""
    return name.replace(".", "_")


def family(name: str, points: Iterable[Point] | float) -> Family:
    """Return a metric; a number is the value of the only series. NaN and infinity are left out.

    Raises:
        KeyError: The table has no such metric.
    """
    found = (Point({}, points),) if isinstance(points, int | float) else points
    return Family(BY_NAME[name], tuple(one for one in found if _is_finite(one.value)))


def _is_finite(value: float | Distribution) -> bool:
    return math.isfinite(value.sum_s if isinstance(value, Distribution) else value)


def bucket_counts(histogram: Histogram) -> list[int]:
    """Return the inferences of a histogram by bucket of `BOUNDS_S`."""
    counts = [0] * (len(_BUCKETS) + 1)
    for index, number in histogram.counts.items():
        place = math.ceil((index - _BUCKETS.start) / _BUCKETS.step)
        counts[min(max(place, 0), len(_BUCKETS))] += number
    return counts


_WINDOWS = "windows of telemetry"
_SPOOL = "spool of serving processes"
_REPORTS = "reports of devices"

TABLE = (
    Row(
        name="edgepack.inference.duration",
        kind="histogram",
        unit="s",
        text="Duration of real inferences that finished.",
        attributes=RELEASE,
        fleet_attributes=CLASS,
        device=_SPOOL,
        fleet=_WINDOWS,
    ),
    Row(
        name="edgepack.inference.errors",
        kind="counter",
        unit="{inference}",
        text="Inferences that raised, or gave NaN or infinity.",
        attributes=(*RELEASE, "error.type"),
        fleet_attributes=CLASS,
        device=_SPOOL,
        fleet=_WINDOWS,
    ),
    Row(
        name="edgepack.shadow.inferences",
        kind="counter",
        unit="{inference}",
        text="Inferences that a second release computed, too.",
        attributes=(*RELEASE, "edgepack.agreed"),
        fleet_attributes=CLASS,
        device=_SPOOL,
        fleet=_WINDOWS,
    ),
    Row(
        name="edgepack.inference.energy",
        kind="counter",
        unit="J",
        text="Energy of devices while they ran inferences, idle power included.",
        attributes=RELEASE,
        fleet_attributes=CLASS,
        device="RAPL, hwmon or battery",
        fleet=_WINDOWS,
    ),
    Row(
        name="edgepack.inference.metered",
        kind="counter",
        unit="{inference}",
        text="Inferences that the energy stands for.",
        attributes=RELEASE,
        fleet_attributes=CLASS,
        device=_SPOOL,
        fleet=_WINDOWS,
    ),
    Row(
        name="edgepack.inference.throttled.time",
        kind="counter",
        unit="s",
        text="Time in which the device slowed down for heat while the release served.",
        attributes=RELEASE,
        fleet_attributes=CLASS,
        device="kernel's counters, trip points and cooling devices",
        fleet=_WINDOWS,
    ),
    Row(
        name="edgepack.inference.drift",
        kind="gauge",
        unit="{standard_deviation}",
        text="Greatest difference of a feature of inferences from the build's samples.",
        attributes=RELEASE,
        fleet_attributes=(*CLASS, STATISTIC),
        device="sketches of inferences",
        fleet=_WINDOWS,
    ),
    Row(
        name="edgepack.model.memory.usage",
        kind="gauge",
        unit="By",
        text="Memory of the largest process that serves the release.",
        attributes=RELEASE,
        fleet_attributes=(*CLASS, STATISTIC),
        device="/proc of serving processes",
        fleet=_WINDOWS,
    ),
    Row(
        name="hw.temperature",
        kind="gauge",
        unit="Cel",
        text="Temperature of a sensor; of the fleet, the hottest sensor of each device.",
        device_attributes=("hw.id",),
        fleet_attributes=(*RELEASE, *CLASS, STATISTIC),
        device="/sys/class/thermal",
        fleet=_WINDOWS,
    ),
    Row(
        name="hw.host.energy",
        kind="counter",
        unit="J",
        text="Energy of the device since the agent started, as far as the source reports.",
        attributes=("edgepack.power.source",),
        device="RAPL, hwmon or battery",
    ),
    Row(
        name="hw.host.power",
        kind="gauge",
        unit="W",
        text="Power of the device over the last seconds.",
        attributes=("edgepack.power.source",),
        device="RAPL, hwmon or battery",
    ),
    Row(
        name="system.memory.linux.available",
        kind="updown",
        unit="By",
        text="Memory that new processes can have without swapping.",
        device="/proc/meminfo",
    ),
    Row(
        name="process.memory.usage",
        kind="updown",
        unit="By",
        text="Physical memory of the process that answers: agent or controller.",
        device="/proc/self/statm",
        fleet="/proc/self/statm",
    ),
    Row(
        name="process.cpu.time",
        kind="counter",
        unit="s",
        text="Processor time of the process that answers: agent or controller.",
        device="operating system",
        fleet="operating system",
    ),
    Row(
        name="edgepack.model.degraded",
        kind="gauge",
        unit="{model}",
        text="Models that serve with a symptom, or not as wanted.",
        attributes=("edgepack.model", "edgepack.symptom"),
        device="the watch",
    ),
    Row(
        name="edgepack.telemetry.windows",
        kind="updown",
        unit="{window}",
        text="Windows of telemetry that wait for the fleet.",
        device="journal of telemetry",
    ),
    Row(
        name="edgepack.telemetry.dropped",
        kind="counter",
        unit="{inference}",
        text="Inferences that telemetry dropped because of too many releases.",
        device="journal of telemetry",
        fleet=_WINDOWS,
    ),
    Row(
        name="edgepack.messages.dropped",
        kind="counter",
        unit="{message}",
        text="Received messages that the agent dropped.",
        attributes=("edgepack.because",),
        device="the agent",
    ),
    Row(
        name="edgepack.broker.connected",
        kind="gauge",
        unit="{connection}",
        text="Connections to the broker: 0 or 1.",
        device="the agent",
        fleet="the controller",
    ),
    Row(
        name="otel.sdk.exporter.metric_data_point.exported",
        kind="counter",
        unit="{data_point}",
        text="Data points that were sent by OTLP, or that failed.",
        attributes=("error.type",),
        device="exporter",
        fleet="exporter",
    ),
    *(
        Row(
            name=f"edgepack.devices.{name}",
            kind="gauge",
            unit="{device}",
            text=text,
            fleet=source,
        )
        for name, text, source in (
            ("enrolled", "Devices of the fleet.", "database"),
            ("online", "Devices that are connected to the broker.", _REPORTS),
            ("behind", "Devices that have not carried out their newest orders.", _REPORTS),
            ("failing", "Devices whose last update of a model failed.", _REPORTS),
            ("warned", "Devices that warn of something.", _REPORTS),
            ("unheard", "Devices that never reported.", _REPORTS),
        )
    ),
    Row(
        name="edgepack.devices.degraded",
        kind="gauge",
        unit="{device}",
        text="Devices of which a model serves with a symptom, or not as wanted.",
        attributes=("edgepack.symptom",),
        fleet=_REPORTS,
    ),
    Row(
        name="edgepack.release.devices",
        kind="gauge",
        unit="{device}",
        text="Devices that run a release; the most frequent ones.",
        attributes=RELEASE[:3],
        fleet=_REPORTS,
    ),
    Row(
        name="edgepack.rollouts",
        kind="gauge",
        unit="{rollout}",
        text="Rollouts by their state.",
        attributes=("edgepack.state",),
        fleet="database",
    ),
    Row(
        name="edgepack.rollout.devices",
        kind="gauge",
        unit="{device}",
        text="Devices of the open rollouts by their state; the newest rollouts.",
        attributes=("edgepack.rollout", "edgepack.model", "edgepack.state"),
        fleet="database",
    ),
    Row(
        name="edgepack.messages",
        kind="counter",
        unit="{message}",
        text="Messages of devices by outcome.",
        attributes=("edgepack.outcome",),
        fleet="the controller",
    ),
    Row(
        name="edgepack.depot.sent",
        kind="counter",
        unit="By",
        text="Bytes of bundles that the depot sent.",
        attributes=("edgepack.way",),
        fleet="depot",
    ),
    Row(
        name="edgepack.connections",
        kind="updown",
        unit="{connection}",
        text="Connections of the API's clients.",
        fleet="API",
    ),
    Row(
        name="edgepack.connections.dropped",
        kind="counter",
        unit="{connection}",
        text="Connections that were dropped: too many, or too slow.",
        attributes=("edgepack.because",),
        fleet="API",
    ),
    Row(
        name="edgepack.expiring",
        kind="gauge",
        unit="{object}",
        text="Metadata, certificates and tokens that expire within 30 days, or have expired.",
        attributes=("edgepack.kind",),
        fleet="data folder and database",
    ),
    Row(
        name="edgepack.releases.unavailable",
        kind="gauge",
        unit="{release}",
        text="Releases whose files the controller needs and does not have, or has damaged.",
        fleet="data folder",
    ),
    Row(
        name="edgepack.releases.damaged",
        kind="counter",
        unit="{release}",
        text="How often a file of a release was found damaged.",
        fleet="data folder",
    ),
)
BY_NAME = {row.name: row for row in TABLE}
