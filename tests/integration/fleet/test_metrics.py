"""Metrics from real inferences to what a user reads: real agents, applications, broker, collector.

No machine of the tests has a sensor: the agents read a folder instead of `/sys`.
"""

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from edgepack.agent.serving import following
from edgepack.agent.serving.model import Model
from tests.integration.fleet.applications import (
    CAMERA_NAMES,
    applications_of,
    gate_of,
    start_cameras,
)
from tests.integration.fleet.conftest import (
    CAMERAS,
    FleetProcess,
    Mosquitto,
    Serve,
    StartAgent,
    edgepack,
)
from tests.integration.fleet.dashboard import Visitor
from tests.simulators.bundles import WIDTH
from tests.simulators.collector import collecting

SETTINGS = """
[telemetry]
interval_s = 0.2
sysfs_dir = "sys"
[metrics]
listen = "unix:metrics.sock"
[watch]
slowdown = 0
[otlp]
endpoint = "{}"
interval_s = 0.3
proxy = "direct"
"""
DURATION, VERSION = "edgepack_inference_duration_seconds", "edgepack_version"
OTLP_DURATION = "edgepack.inference.duration"
USUAL_W, WASTEFUL_W = 2, 100
HOT = 51.5
Samples = list[Any]
Counts = Counter[tuple[str, str]]
"""Inferences by version and bound of a bucket; "" for all."""


def parse(text: str) -> Samples:
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return [sample for family in families for sample in family.samples]


def counts_of(samples: Iterable[Any]) -> Counts:
    found: Counts = Counter()
    for one in samples:
        if one.name in (f"{DURATION}_bucket", f"{DURATION}_count"):
            found[one.labels[VERSION], one.labels.get("le", "")] += int(one.value)
    return found


def value_of(samples: Iterable[Any], name: str, **labels: str) -> float:
    (found,) = [
        one.value for one in samples if one.name == name and labels.items() <= one.labels.items()
    ]
    return float(found)


def plant(sysfs: Path, watts: float) -> None:
    """Write the power of a monitor as the kernel does, and a temperature."""
    for name, number in (
        ("class/hwmon/hwmon0/power1_input", watts * 1e6),
        ("class/thermal/thermal_zone0/temp", HOT * 1e3),
    ):
        path = sysfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(f"{number:.0f}\n")
        path.with_suffix(".new").rename(path)


class Site:
    """Cameras with planted sensors, and their fleet."""

    def __init__(self, fleet: FleetProcess, folder: Path) -> None:
        self.fleet, self._folder = fleet, folder
        self.bearer = f"Bearer {(fleet.data / 'token').read_text().strip()}"

    def device(self, name: str) -> Samples:
        """Read a device's own metrics."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(60)
            peer.connect(str(self._folder / name / "metrics.sock"))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            content = b""
            while piece := peer.recv(65536):
                content += piece
        return parse(content.decode().partition("\r\n\r\n")[2])

    def counts(self, name: str) -> Counts:
        """Read a device's inferences; none while its agent is away."""
        try:
            return counts_of(self.device(name))
        except OSError:
            return Counter()

    def devices(self) -> Counts:
        return sum(map(self.counts, CAMERA_NAMES), Counter())

    def metrics(self) -> Samples:
        """Read the fleet's metrics."""
        return parse(Visitor(self.fleet.url).get("/metrics", Authorization=self.bearer).text)

    def is_counted(self, made: int) -> bool:
        return sum(n for (_, le), n in counts_of(self.metrics()).items() if not le) == made

    def waste(self) -> None:
        """Let the devices with release 2 take much power."""
        for view in self.fleet.client.devices():
            if any(one.active and one.active.version == "1.2.0" for one in view.models):
                plant(self._folder / view.device / "sys", WASTEFUL_W)


def test_device_fleet_and_collector_count_the_same_and_a_wasteful_release_is_stopped(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    release: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(following, "SPOOL_S", 0.1)
    made: Counter[int] = Counter()

    def infer(model: Model, rng: np.random.Generator, _: object) -> None:
        model.run({"x": rng.standard_normal((1, WIDTH)).astype(np.float32)})
        made[id(model)] += 1

    with collecting() as collector, applications_of("tiny", infer) as applications:
        export = ("--otlp-endpoint", collector.url, "--otlp-interval", "0.3")
        fleet = serve("--broker", mosquitto.url, "--value-seconds", "0.5", *export)
        site = Site(fleet, tmp_path)
        for name in CAMERA_NAMES:
            plant(tmp_path / name / "sys", USUAL_W)
        agents = start_cameras(fleet, start_agent, tmp_path, SETTINGS.format(collector.url))
        fleet.wait_for(fleet.roll_out(release(1), to=CAMERAS, waves="100%"), "FINISHED")
        for name in CAMERA_NAMES:
            applications.start(tmp_path / name / "state")
        fleet.wait_until(lambda: fleet.info().energy["inferences"] > 1500, "energy is known")

        # From the user's command to the verdict of the gate.
        done = edgepack(
            fleet,
            *("rollout", "start", str(release(2)), "--group", "cameras", "--waves", "100%"),
            *("--gate", "all=off", "--gate", "energy=1.5", "--on-breach", "abort"),
            *("--soak", "0.5", "--deadline", "240", "--first-look", "1", "--yes", "--json"),
        )
        assert done.returncode == 0, done.stderr
        name = json.loads(done.stdout)["rollout"]

        def is_over() -> bool:
            site.waste()
            return fleet.rollout(name).state in ("ABORTED", "FINISHED", "PAUSED")

        fleet.wait_until(is_over, "the gate decides")
        view = fleet.rollout(name)
        assert view.state == "ABORTED", view.because
        assert "energy" in view.because
        assert (gate_of(fleet, name, "energy").value or 0) > 5
        assert "energy" in edgepack(fleet, "rollout", "status", name).stdout

        applications.stop()
        total = sum(made.values())
        fleet.wait_until(lambda: site.is_counted(total), "the fleet has all inferences")
        by_version = counts_of(site.metrics())
        assert {version for version, _ in by_version} == {"1.1.0", "1.2.0"}
        fleet.wait_until(lambda: site.devices() == by_version, "devices count the same")

        def exported(service: str) -> Counter[str]:
            """Return the inferences by version of the newest exports, one of each sender."""
            return Counter(
                {
                    version: sum(
                        point.count
                        for series in collector.newest(service)
                        for (metric, attributes), point in series.items()
                        if metric == OTLP_DURATION
                        and dict(attributes)["edgepack.version"] == version
                    )
                    for version in ("1.1.0", "1.2.0")
                }
            )

        expected = Counter({version: by_version[version, ""] for version in ("1.1.0", "1.2.0")})
        for service in ("edgepack-agent", "edgepack-fleet"):
            is_all = partial(lambda name: exported(name) == expected, service)
            fleet.wait_until(is_all, f"{service} exports all")

        samples = site.device("cam-1")
        assert value_of(samples, "hw_temperature_celsius", hw_id="thermal_zone0") == HOT
        assert value_of(samples, "hw_host_power_watts", edgepack_power_source="hwmon") > 0
        assert value_of(samples, "process_memory_usage_bytes") > 1e6
        assert value_of(samples, "edgepack_broker_connected") == 1
        of_new = {VERSION: "1.2.0", "edgepack_statistic": "max"}
        fleet_samples = site.metrics()
        assert value_of(fleet_samples, "hw_temperature_celsius", **of_new) == HOT
        assert value_of(fleet_samples, "edgepack_model_memory_usage_bytes", **of_new) > 1e6
        assert "cam-1" not in str(fleet_samples)

        # The device's own counters survive the death of its agent.
        before = counts_of(samples)
        agents[0].kill()
        agents[0].wait(60)
        start_agent(fleet, CAMERA_NAMES[0])
        fleet.wait_until(lambda: site.counts(CAMERA_NAMES[0]) == before, "the agent is back")
