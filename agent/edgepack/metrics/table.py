"""Table of all metrics of devices and fleets.

Names follow OpenTelemetry's semantic conventions (1.37); metrics without a convention begin with
`edgepack.`. The text for Prometheus, OTLP and the page of the reference come from this table.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Literal, NamedTuple

import msgspec

from edgepack.decoding import convert_value
from edgepack.wire.histogram import GROWTH
from edgepack.wire.telemetry import Histogram

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
    "edgepack.outcome": "Outcome of a message, or of a request.",
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
        device_attributes, fleet_attributes: Names of the attributes.
        device, fleet: Source of the numbers; "" where the metric does not exist.
    """

    name: str
    kind: Kind
    unit: str
    text: str
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


_SOURCES = {
    "spool": "spool of serving processes",
    "windows": "windows of telemetry",
    "reports": "reports of devices",
    "power": "RAPL, hwmon or battery",
    "journal": "journal of telemetry",
    "heat": "kernel's counters, trip points and cooling devices",
    "otlp": "exporter",
    "-": "",
}
_ROWS = """
edgepack.inference.duration | histogram | s | release | spool | windows
    Duration of real inferences that finished; of a text, the mean time of a token after the first.
edgepack.text.first_token.duration | histogram | s | release | spool | windows
    Time of inference until the first token of a text.
edgepack.inference.errors | counter | {inference} | release error.type | spool | windows
    Inferences that raised, or gave NaN or infinity.
edgepack.shadow.inferences | counter | {inference} | release agreed | spool | windows
    Inferences that a second release computed, too.
edgepack.inference.energy | counter | J | release | power | windows
    Energy of devices while they ran inferences, idle power included.
edgepack.inference.metered | counter | {inference} | release | spool | windows
    Inferences that the energy stands for.
edgepack.inference.throttled.time | counter | s | release | heat | windows
    Time in which the device slowed down for heat while the release served.
edgepack.inference.drift | gauge | {standard_deviation} | release | sketches of inferences | windows
    Greatest difference of a feature of inferences from the build's samples.
edgepack.model.memory.usage | gauge | By | release | /proc of serving processes | windows
    Memory of the largest process that serves the release.
hw.temperature | gauge | Cel | hw.id / release | /sys/class/thermal | windows
    Temperature of a sensor; of the fleet, the hottest sensor of each device.
hw.host.energy | counter | J | edgepack.power.source | power | -
    Energy of the device since the agent started, as far as the source reports.
hw.host.power | gauge | W | edgepack.power.source | power | -
    Power of the device over the last seconds.
system.memory.linux.available | updown | By | - | /proc/meminfo | -
    Memory that new processes can have without swapping.
process.memory.usage | updown | By | - | /proc/self/statm | /proc/self/statm
    Physical memory of the process that answers: agent, model server or controller.
process.cpu.time | counter | s | - | operating system | operating system
    Processor time of the process that answers: agent, model server or controller.
edgepack.model.degraded | gauge | {model} | model symptom | the watch | -
    Models that serve with a symptom, or not as wanted.
edgepack.telemetry.windows | updown | {window} | - | journal | -
    Windows of telemetry that wait for the fleet.
edgepack.telemetry.dropped | counter | {inference} | - | journal | windows
    Inferences that telemetry dropped because of too many releases.
edgepack.messages.dropped | counter | {message} | because | the agent | -
    Received messages that the agent dropped.
edgepack.broker.connected | gauge | {connection} | - | the agent | the controller
    Connections to the broker: 0 or 1.
edgepack.server.requests | counter | {request} | model outcome | model server | -
    Inference requests to the model server, by outcome.
edgepack.server.active | updown | {request} | model | model server | -
    Inference requests that run or wait in the model server.
gen_ai.server.time_to_first_token | histogram | s | model | model server | -
    Time from a request for a text to its first token, with the wait in the queue.
gen_ai.server.time_per_output_token | histogram | s | model | model server | -
    Mean time of a token of a text after the first.
otel.sdk.exporter.metric_data_point.exported | counter | {data_point} | error.type | otlp | otlp
    Data points that were sent by OTLP, or that failed.
edgepack.devices.enrolled | gauge | {device} | - | - | database
    Devices of the fleet.
edgepack.devices.online | gauge | {device} | - | - | reports
    Devices that are connected to the broker.
edgepack.devices.behind | gauge | {device} | - | - | reports
    Devices that have not carried out their newest orders.
edgepack.devices.failing | gauge | {device} | - | - | reports
    Devices whose last update of a model failed.
edgepack.devices.warned | gauge | {device} | - | - | reports
    Devices that warn of something.
edgepack.devices.unheard | gauge | {device} | - | - | reports
    Devices that never reported.
edgepack.devices.degraded | gauge | {device} | symptom | - | reports
    Devices of which a model serves with a symptom, or not as wanted.
edgepack.release.devices | gauge | {device} | model version digest | - | reports
    Devices that run a release; the most frequent ones.
edgepack.rollouts | gauge | {rollout} | state | - | database
    Rollouts by their state.
edgepack.rollout.devices | gauge | {device} | rollout model state | - | database
    Devices of the open rollouts by their state; the newest rollouts.
edgepack.messages | counter | {message} | outcome | - | the controller
    Messages of devices by outcome.
edgepack.depot.sent | counter | By | way | - | depot
    Bytes of bundles that the depot sent.
edgepack.connections | updown | {connection} | - | model server | API
    Connections of clients of the API, or of the model server.
edgepack.connections.dropped | counter | {connection} | because | - | API
    Connections that were dropped: too many, or too slow.
edgepack.expiring | gauge | {object} | kind | - | data folder and database
    Metadata, certificates and tokens that expire within 30 days, or have expired.
edgepack.releases.unavailable | gauge | {release} | - | - | data folder
    Releases whose files the controller needs and does not have, or has damaged.
edgepack.releases.damaged | counter | {release} | - | - | data folder
    How often a file of a release was found damaged.
"""
"""Name, kind, unit, attributes, source on the device, source in the fleet; the next line has the
description. `release` are the attributes of a release; a slash parts device and fleet; a word
without a dot is short for `edgepack.` and the word."""


def _read(line: str, text: str) -> Row:
    name, kind, unit, attributes, device, fleet = (part.strip() for part in line.split("|"))
    of_device, _, of_fleet = attributes.partition(" / ")
    by_class = (*CLASS, STATISTIC) if kind == "gauge" else CLASS
    row = {
        "name": name,
        "kind": kind,
        "unit": unit,
        "text": text.strip(),
        "device": _SOURCES.get(device, device),
        "fleet": _SOURCES.get(fleet, fleet),
        "device_attributes": _attributes(of_device, RELEASE),
        "fleet_attributes": _attributes(of_fleet or of_device, (*RELEASE, *by_class)),
    }
    return convert_value(row, Row)


def _attributes(words: str, release: tuple[str, ...]) -> tuple[str, ...]:
    found = (release if word == "release" else (_named(word),) for word in words.strip("-").split())
    return tuple(chain.from_iterable(found))


def _named(word: str) -> str:
    return word if "." in word else f"edgepack.{word}"


_LINES = _ROWS.strip().splitlines()
TABLE = tuple(map(_read, _LINES[::2], _LINES[1::2]))
BY_NAME = {row.name: row for row in TABLE}
