"""A rollout measures first tokens and tokens a second of texts, and stops a release by them."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.serving import following
from edgepack.agent.serving.model import Model
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from tests.integration.fleet.applications import (
    CAMERA_NAMES,
    Applications,
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
from tests.simulators.text_bundles import make_text_bundle
from tests.simulators.waiting import wait_until

SETTINGS = "\n[telemetry]\ninterval_s = 0.2\n[watch]\nslowdown = 0\n[probe]\nruns = 1\n"
"""The devices leave the decision to the fleet."""


def write(model: Model, rng: np.random.Generator, _: threading.Event) -> None:
    model.generate("Once upon a time", max_tokens=4, temperature=1.0).whole()


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applications]:
    monkeypatch.setattr(following, "SPOOL_S", 0.1)
    with applications_of("chat", write) as running:
        yield running


def test_release_with_slow_first_tokens_is_stopped_by_the_gate(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    applications: Applications,
    key_prefix: Path,
    tmp_path: Path,
) -> None:
    def archive(release: int, slow: str = "") -> Path:
        folder, key = tmp_path / f"chat-{release}", load_private_key(key_prefix.with_suffix(".key"))
        make_text_bundle(folder, key, release=release, variants={"cpu": slow})
        packed = folder.with_suffix(".edgepack")
        pack(folder, packed)
        return packed

    fleet: FleetProcess = serve("--broker", mosquitto.url, "--value-seconds", "0.5")
    start_cameras(fleet, start_agent, tmp_path, SETTINGS)
    first = fleet.roll_out(archive(1), to=CAMERAS, waves="100%", deadline_s=240.0)
    fleet.wait_for(first, "FINISHED")
    for device in CAMERA_NAMES:
        applications.start(tmp_path / device / "state")

    def texts() -> int:
        return sum(row.texts.texts for row in fleet.rollout(first).latency if row.texts)

    wait_until(lambda: texts() >= 600, "the fleet knows times of texts")
    (row,) = fleet.rollout(first).latency
    assert row.texts is not None
    assert row.texts.tokens_per_s > 0
    assert row.texts.first_p50_ms <= row.texts.first_p95_ms
    shown = edgepack(fleet, "rollout", "status", first).stdout
    assert "tokens/s" in shown
    found = edgepack(fleet, "fleet", "latency", "chat", "--json").stdout
    assert json.loads(found)["parts"][0]["texts"]["texts"] >= 600
    board = Visitor(fleet.url).log_in((fleet.data / "token").read_text())
    for path in (f"/rollouts/{first}", f"/devices/{CAMERA_NAMES[0]}"):
        assert "Tokens/s" in board.get(path).text
    token = (fleet.data / "token").read_text().strip()
    metrics = Visitor(fleet.url).get("/metrics", Authorization=f"Bearer {token}").text
    assert "edgepack_text_first_token_duration_seconds_count{" in metrics

    done = edgepack(
        fleet,
        *("rollout", "start", str(archive(2, "prompt")), "--group", "cameras", "--waves", "100%"),
        *("--soak", "0.5", "--deadline", "400", "--first-look", "1", "--yes", "--json"),
        *("--gate", "all=off", "--gate", "first_token=1.5"),
        *("--on-breach", "pause"),
    )
    assert done.returncode == 0, done.stderr
    slow: str = json.loads(done.stdout)["rollout"]
    view = fleet.wait_for(slow, "PAUSED", "FINISHED", "ABORTED")
    assert view.state == "PAUSED", view.because
    gate = gate_of(fleet, slow, "first_token")
    assert gate.verdict == "breach", gate
    assert "first_token" in edgepack(fleet, "rollout", "status", slow).stdout
