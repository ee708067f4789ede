"""The API and its description: every route is described, and answers as described."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.responses import Response
from starlette.routing import Route

from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.server.api import Pages, make_app
from edgepack.fleet.server.operations import OPERATIONS
from edgepack.metrics.table import ATTRIBUTES, BY_NAME, TABLE, label
from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Serve, Simulate
from tests.integration.fleet.dashboard import Visitor

MONITORING = Path(__file__).parents[3] / "examples" / "monitoring"


def test_every_route_is_described() -> None:
    app = make_app(cast(Any, None), cast(Any, None), Pages((), lambda _: Response()))
    routes = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith("/v1/")
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {(one.method, one.path) for one in OPERATIONS}
    assert routes - described == {("GET", "/v1/openapi.json")}
    assert described <= routes


def test_no_request_that_can_be_made_up_is_answered_otherwise_than_described(
    serve: Serve, tmp_path: Path
) -> None:
    fleet = serve()
    token = (fleet.data / "token").read_text()
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "run"),
            f"{fleet.url}/v1/openapi.json",
            *("--header", f"Authorization: Bearer {token}", "--no-color", "--workers", "1"),
            *("--seed", "1", "--max-examples", "4", "--phases", "coverage,fuzzing"),
            # What is refused depends on the fleet, not on the form of a request alone.
            *("--exclude-checks", "positive_data_acceptance"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout
    assert f"Tested: {len(OPERATIONS)}" in done.stdout
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


@pytest.fixture
def rolled_out(serve: Serve, simulation: Simulate, make_bundle: MakeBundle) -> FleetProcess:
    fleet = serve()
    simulation(fleet, count=3)
    name = fleet.roll_out(make_bundle(), Selector(kind="group", group="simulated"))
    fleet.wait_for(name, "FINISHED")
    return fleet


def test_prometheus_reads_what_dashboard_and_alerts_ask_for(rolled_out: FleetProcess) -> None:
    visitor = Visitor(rolled_out.url)
    assert visitor.get("/metrics").status == 401
    token = rolled_out.client.make_token("prometheus", role="viewer").token
    answer = visitor.get("/metrics", Authorization=f"Bearer {token}")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = list(text_string_to_metric_families(answer.text))  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples]
    values = {sample.name: sample.value for sample in samples if not sample.labels}
    assert values["edgepack_devices_enrolled"] == values["edgepack_devices_online"] == 3
    assert values["edgepack_broker_connected"] == 1
    (runs,) = [sample for sample in samples if sample.name == "edgepack_release_devices"]
    assert (runs.labels["edgepack_version"], runs.value) == ("1.0.0", 3)
    emitted = {family.name for family in families} - {"target"}
    assert emitted <= {row.family for row in TABLE if row.fleet}
    durations = {
        f"{BY_NAME['edgepack.inference.duration'].family}_{part}"
        for part in ("bucket", "sum", "count")
    }
    known = {row.sample for row in TABLE if row.fleet} | durations | set(map(label, ATTRIBUTES))
    assert set(asked()) <= known
    health = visitor.get("/healthz")
    assert (health.status, json.loads(health.text)) == (200, {"healthy": True})


def asked() -> Iterator[str]:
    """Yield the metrics in the Grafana dashboard and the alert rules."""
    board = json.loads((MONITORING / "grafana-dashboard.json").read_bytes())
    words = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    words.append((MONITORING / "alerts.yml").read_text())
    for text in words:
        yield from re.findall(r"(?:edgepack|hw|error)_[a-z_]+", text)
