"""Metrics of a fleet, for `/metrics` and OTLP.

All numbers are read on request, from counters and indexes; no number carries a device's name, so
that the size does not grow with the fleet.
"""

import importlib.metadata
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from edgepack.agent.telemetry.readings import memory_bytes
from edgepack.errors import FleetError
from edgepack.fleet.database.standing import OTHER, SYMPTOMS
from edgepack.fleet.documents.wording import STATES
from edgepack.fleet.server.fleet import Fleet
from edgepack.fleet.server.queries import FleetQueries
from edgepack.metrics.exporter import Exporter
from edgepack.metrics.settings import OtlpConfig
from edgepack.metrics.table import RELEASE, Family, Point, family
from edgepack.metrics.text import render
from edgepack.text import printable


def render_metrics(queries: FleetQueries, form: str) -> bytes:
    """Return the fleet's current numbers as text.

    Args:
        queries: Looks at the fleet.
        form: Format of `edgepack.metrics.text`.
    """
    return render(collect(queries), form, resource_of(queries.fleet))


def resource_of(fleet: Fleet) -> dict[str, str]:
    """Return the attributes of the controller that answers."""
    return {
        "service.name": "edgepack-fleet",
        "service.namespace": fleet.tenant,
        "service.instance.id": fleet.name,
        "service.version": importlib.metadata.version("edgepack"),
    }


def collect(queries: FleetQueries) -> tuple[Family, ...]:
    """Return all metrics of a fleet."""
    fleet = queries.fleet
    exporter = fleet.exporter
    return (
        *fleet.inbox.totals.families(),
        *_devices(queries),
        *_rollouts(queries),
        *_traffic(fleet),
        *_files(fleet),
        family("process.memory.usage", memory_bytes()),
        family("process.cpu.time", time.process_time()),
        *([] if exporter is None else [exporter.family()]),
    )


def with_exporter(fleet: Fleet, config: OtlpConfig) -> Fleet:
    """Return a fleet that exports its metrics, if the settings name a collector.

    Raises:
        FleetError: A setting makes no sense, or a file cannot be used.
    """
    if not config.endpoint:
        return fleet

    def collect_all() -> tuple[Family, ...]:
        return collect(FleetQueries(exporting))

    try:
        exporter = Exporter(config, collect_all, resource_of(fleet))
    except (ValueError, OSError) as error:
        raise FleetError(
            f"the metrics cannot be exported: {error}",
            found_in="--otlp-endpoint",
            remedy="--otlp-endpoint http://127.0.0.1:4318",
        ) from error
    exporting = msgspec.structs.replace(fleet, exporter=exporter)
    return exporting


def _devices(queries: FleetQueries) -> Iterator[Family]:
    overview = queries.overview()
    counts = overview.counts
    for name in ("enrolled", "online", "behind", "failing", "warned", "unheard"):
        yield family(f"edgepack.devices.{name}", getattr(counts, name))
    symptoms = {one: counts.symptoms.get(one, 0) for one in sorted({*SYMPTOMS, OTHER})}
    yield _by("edgepack.devices.degraded", "edgepack.symptom", symptoms)
    yield family(
        "edgepack.release.devices",
        (
            _point(RELEASE[:3], (one.model, one.version, one.digest[:12]), one.devices)
            for one in overview.releases
        ),
    )


def _rollouts(queries: FleetQueries) -> Iterator[Family]:
    states = {state.lower(): count for state, count in queries.count_rollouts().items()}
    yield _by("edgepack.rollouts", "edgepack.state", states)
    names = ("edgepack.rollout", "edgepack.model", "edgepack.state")
    yield family(
        "edgepack.rollout.devices",
        (
            _point(names, (one.rollout, one.bundle.name, state.lower()), one.counts.get(state, 0))
            for one in queries.open_rollouts()
            for state in STATES
        ),
    )


def _traffic(fleet: Fleet) -> Iterator[Family]:
    connections = fleet.connections
    yield family("edgepack.broker.connected", float(fleet.link.is_connected))
    messages = fleet.inbox.counters + fleet.depot.counters
    yield _by("edgepack.messages", "edgepack.outcome", messages)
    yield _by("edgepack.depot.sent", "edgepack.way", fleet.depot.sent_bytes)
    yield family("edgepack.connections", connections.count)
    yield _by("edgepack.connections.dropped", "edgepack.because", connections.dropped.copy())


def _files(fleet: Fleet) -> Iterator[Family]:
    yield _by("edgepack.expiring", "edgepack.kind", fleet.expiries.count())
    yield family("edgepack.releases.unavailable", len(fleet.releases.problems))
    yield family("edgepack.releases.damaged", fleet.releases.damaged_count)


def _by(name: str, attribute: str, counts: Mapping[Any, int]) -> Family:
    """Return a metric with one attribute."""
    return family(name, (_point((attribute,), (one,), n) for one, n in sorted(counts.items())))


def _point(names: Sequence[str], values: Iterable[str], number: float) -> Point:
    return Point(dict(zip(names, map(printable, values), strict=True)), number)
