"""Metrics of a fleet for Prometheus: `/metrics`, in the OpenMetrics format.

All numbers are read on request, from counters and indexes; no number carries a device's name, so
that the size does not grow with the fleet.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from edgepack.fleet.database.standing import OTHER, SYMPTOMS
from edgepack.fleet.documents.wording import STATES
from edgepack.fleet.server.queries import FleetQueries
from edgepack.text import printable

__all__ = ["CONTENT_TYPE_LATEST", "render_metrics"]


def render_metrics(queries: FleetQueries) -> bytes:
    """Return the fleet's current numbers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(queries))
    content: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return content


class _Collector(Collector):
    """Reads a fleet's numbers."""

    def __init__(self, queries: FleetQueries) -> None:
        self._queries = queries

    def collect(self) -> Iterable[Metric]:
        yield from self._devices()
        yield from self._rollouts()
        yield from self._traffic()
        yield from self._connections()
        yield from self._expiries()
        yield from self._files()

    def _devices(self) -> Iterator[Metric]:
        overview = self._queries.overview()
        counts = overview.counts
        for name, said, value in (
            ("enrolled", "Devices of the fleet.", counts.enrolled),
            ("online", "Devices that are connected to the broker.", counts.online),
            ("behind", "Devices that have not carried out their newest orders.", counts.behind),
            ("failing", "Devices whose last update of a model failed.", counts.failing),
            ("warned", "Devices that warn of something.", counts.warned),
            ("unheard", "Devices that never reported.", counts.unheard),
        ):
            yield GaugeMetricFamily(f"edgepack_devices_{name}", said, value)
        degraded = GaugeMetricFamily(
            "edgepack_devices_degraded",
            "Devices of which a model serves with a symptom, or not as wanted, by symptom.",
            labels=("symptom",),
        )
        for symptom in sorted({*SYMPTOMS, OTHER}):
            degraded.add_metric([symptom], counts.symptoms.get(symptom, 0))
        yield degraded
        runs = GaugeMetricFamily(
            "edgepack_release_devices",
            "Devices that run a release; the most frequent ones.",
            labels=("model", "version", "digest"),
        )
        for share in overview.releases:
            labels = (share.model, share.version, share.digest[:12])
            runs.add_metric([printable(label) for label in labels], share.devices)
        yield runs

    def _rollouts(self) -> Iterator[Metric]:
        by_state = GaugeMetricFamily(
            "edgepack_rollouts", "Rollouts by their state.", labels=("state",)
        )
        for state, count in self._queries.count_rollouts().items():
            by_state.add_metric([state.lower()], count)
        yield by_state
        parts = GaugeMetricFamily(
            "edgepack_rollout_devices",
            "Devices of the open rollouts by the state of their part; the newest rollouts.",
            labels=("rollout", "model", "state"),
        )
        overview = self._queries.open_rollouts()
        for rollout in overview:
            for state in STATES:
                labels = [rollout.rollout, printable(rollout.bundle.name), state.lower()]
                parts.add_metric(labels, rollout.counts.get(state, 0))
        yield parts

    def _traffic(self) -> Iterator[Metric]:
        info = self._queries.fleet.info()
        yield GaugeMetricFamily(
            "edgepack_broker_connected",
            "Whether the controller is connected to the broker.",
            float(info.is_connected),
        )
        messages = CounterMetricFamily(
            "edgepack_messages", "Messages of devices by what became of them.", labels=("outcome",)
        )
        for outcome, count in sorted(info.counters.items()):
            messages.add_metric([printable(outcome)], count)
        yield messages
        inferences = CounterMetricFamily(
            "edgepack_inferences",
            "Real inferences that devices reported; those with NaN or infinity finished, too.",
            labels=("outcome",),
        )
        for outcome in ("finished", "failed", "not_finite", "bad_inputs"):
            inferences.add_metric([outcome], info.inferences.get(outcome, 0))
        yield inferences
        yield CounterMetricFamily(
            "edgepack_energy_joules",
            "Energy of devices while they ran inferences, idle power included.",
            info.energy.get("millijoules", 0) / 1000,
        )
        yield CounterMetricFamily(
            "edgepack_energy_inferences",
            "Inferences that the energy stands for.",
            info.energy.get("inferences", 0),
        )
        sent = CounterMetricFamily(
            "edgepack_depot_sent_bytes", "Bytes of bundles that the depot sent.", labels=("way",)
        )
        for way, count in sorted(info.sent_bytes.items()):
            sent.add_metric([way], count)
        yield sent

    def _connections(self) -> Iterator[Metric]:
        connections = self._queries.fleet.connections
        yield GaugeMetricFamily(
            "edgepack_connections", "Connections of the API's clients.", connections.count
        )
        dropped = CounterMetricFamily(
            "edgepack_connections_dropped",
            "Connections that were dropped: too many, or too slow.",
            labels=("because",),
        )
        for because, count in sorted(connections.dropped.copy().items()):
            dropped.add_metric([printable(because)], count)
        yield dropped

    def _expiries(self) -> Iterator[Metric]:
        expiring = GaugeMetricFamily(
            "edgepack_expiring",
            "Metadata, certificates and tokens that expire within 30 days, or have expired.",
            labels=("kind",),
        )
        for kind, count in self._queries.fleet.expiries.count().items():
            expiring.add_metric([kind], count)
        yield expiring

    def _files(self) -> Iterator[Metric]:
        releases = self._queries.fleet.releases
        yield GaugeMetricFamily(
            "edgepack_releases_unavailable",
            "Releases whose files the controller needs and does not have, or has damaged.",
            len(releases.problems),
        )
        yield CounterMetricFamily(
            "edgepack_releases_damaged",
            "How often a file of a release was found damaged.",
            releases.damaged_count,
        )
