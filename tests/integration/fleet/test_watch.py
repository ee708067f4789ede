"""Releases that go wrong after the commit are left, and reported: real builds, agents, processes.

Release 1.1.0 is right on its golden samples. An input tells it to fail, to give NaN or to be slow,
as a device's own inputs may do. Other applications die, hang, or have a bit flipped in memory.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from edgepack.fleet.documents.devices import ModelView
from edgepack.wire.reports import Watched
from tests.integration.fleet.conftest import (
    CAMERAS,
    FleetProcess,
    Mosquitto,
    Serve,
    StartAgent,
    edgepack,
)
from tests.integration.fleet.dashboard import Visitor
from tests.integration.test_agent_holders import serving
from tests.simulators.waiting import PATIENCE_S
from tests.simulators.watched_application import DYING, FLIPPING, HANGING, Application
from tests.simulators.watched_model import FAULTS, build

PROCESSES = {"hang": HANGING, "healed": FLIPPING}
DEVICES = (*FAULTS, *PROCESSES, "damage", "dying")
SETTINGS = (
    "\n[probe]\ntimeout_s = 400"
    "\n[telemetry]\ninterval_s = 0.5\nsysfs_dir = 'sys'\n[limits]\ncheck_interval_s = 1\n"
    "[verification]\ninterval_s = 1\nshare = 0.05\n"
    "[watch]\nlook_s = 0.5\nlasting_s = 1\ncalm_s = 1\n"
)


Applications = dict[str, Application]


@pytest.fixture
def applications() -> Iterator[Applications]:
    running: Applications = {}
    yield running
    for one in running.values():
        one.stop()


def model_of(fleet: FleetProcess, device: str) -> ModelView:
    return fleet.client.device(device).models[0]


def watch_of(fleet: FleetProcess, device: str) -> Watched:
    return model_of(fleet, device).watch or Watched()


def test_release_that_goes_wrong_after_the_commit_is_left_and_the_fleet_shows_the_reason(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    applications: Applications,
    browser: Browser,
    key_prefix: Path,
    tmp_path: Path,
) -> None:
    fleet: Any = serve("--broker", mosquitto.url)
    for device in DEVICES:
        place = tmp_path / device
        fleet.client.enroll(device, group="cameras", folder=place, state_dir=place / "state")
        interval_s = 1.2 if device == "slow" else 60
        own = f"interval_s = {interval_s}\nslowdown = {2 if device == 'slow' else 0}\n"
        with (place / "agent.toml").open("a") as settings:
            settings.write(SETTINGS + own)
        monitor = place / "sys" / "class" / "hwmon" / "hwmon0"
        monitor.mkdir(parents=True)
        (monitor / "power1_input").write_text("5000000\n")
        start_agent(fleet, device)
    built = [build(tmp_path / "built", key_prefix.with_suffix(".key"), n) for n in (0, 1)]
    fleet.wait_until(lambda: fleet.info().online == len(DEVICES), "the agents are online")
    first = fleet.roll_out(built[0], to=CAMERAS, waves="100%", deadline_s=400.0)
    fleet.wait_for(first, "FINISHED")
    applications |= {device: Application(tmp_path / device, 0.02) for device in DEVICES}
    states = [tmp_path / device / "state" for device in DEVICES]
    fleet.wait_until(lambda: all(any(serving(state)) for state in states), "all serve")
    applications["dying"].fault = DYING
    asked = {"soak_s": 1, "max_failed_share": 1.0, "deadline_s": 400.0}
    second = fleet.roll_out(built[1], to=CAMERAS, waves="100%", **asked)
    fleet.wait_for(second, "FINISHED", "PAUSED", "ABORTED")

    # On a busy machine, the application dies the third time after the soak.
    fleet.wait_until(lambda: model_of(fleet, "dying").state == "ROLLED_BACK", "it is left")
    dying = model_of(fleet, "dying")
    assert (dying.state, dying.active and dying.active.version) == ("ROLLED_BACK", "1.0.0")
    assert "processes that held it died" in dying.because
    assert 3 <= applications["dying"].deaths <= 13
    others = DEVICES[:-1]
    assert {model_of(fleet, device).active.version for device in others} == {"1.1.0"}  # type: ignore[union-attr]
    fleet.wait_until(lambda: fleet.info().inferences.get("finished", 0) > 2000, "all serve")

    for symptom, fault in (FAULTS | PROCESSES).items():
        applications[symptom].fault = fault
    slots = tmp_path / "damage" / "state" / "slots"
    digest = model_of(fleet, "damage").active.digest  # type: ignore[union-attr]
    (model,) = (slots / digest).glob("model/*/*.onnx")
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)

    for symptom in FAULTS | PROCESSES:
        fleet.wait_until(lambda s=symptom: watch_of(fleet, s).state == "DEGRADED", symptom)
        is_left = symptom != "healed"
        if is_left:
            fleet.wait_until(lambda s=symptom: model_of(fleet, s).state == "ROLLED_BACK", symptom)
        told, serves = watch_of(fleet, symptom), model_of(fleet, symptom).active
        assert told.symptom == symptom
        assert serves is not None
        assert serves.version == ("1.0.0" if is_left else "1.1.0")
        assert (told.wanted[-5:], told.chosen[-5:]) == ("1.1.0", serves.version)
    words = {
        "failed": "real inferences failed",
        "not_finite": "real inferences gave NaN",
        "slow": "times as long as before",
        "hang": "no heartbeat for",
        "healed": "as at first since the release was opened again",
    }
    reasons = {symptom: watch_of(fleet, symptom).because for symptom in words}
    assert all(said in reasons[symptom] for symptom, said in words.items()), reasons

    def has_told(state: str) -> bool:
        events = fleet.client.events(limit=1000)
        told = (one for one in events if one.device == "damage" and one.kind == "watch")
        return any(one.to_state == state for one in told)

    fleet.wait_until(lambda: has_told("DEGRADED") and has_told("WATCHING"), "the file is repaired")
    assert model_of(fleet, "damage").state == "COMMITTED"
    assert bytes(content) != model.read_bytes()

    page = browser.new_context().new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    expect.set_options(timeout=1000 * PATIENCE_S)
    page.goto(fleet.client.login_link().url)
    for said in words.values():
        expect(page.locator(".needs")).to_contain_text(said)
    for symptom, said in words.items():
        page.goto(f"{fleet.url}/devices/{symptom}")
        expect(page.locator("main")).to_contain_text(said)
        expect(page.locator("main")).to_contain_text(f"Wanted: {watch_of(fleet, symptom).wanted}")
    page.context.close()
    visitor = Visitor(fleet.url).log_in((fleet.data / "token").read_text())
    bearer = f"Bearer {(fleet.data / 'token').read_text().strip()}"

    def metrics() -> str:
        return visitor.get("/metrics", Authorization=bearer).text

    for symptom in words:
        line = f'edgepack_devices_degraded{{edgepack_symptom="{symptom}"}} 1.0'
        fleet.wait_until(lambda line=line: line in metrics(), f"{symptom}: one is degraded")
    failed = re.findall(r'edgepack_inference_errors_total{.*error_type="failed"} (.+)', metrics())
    assert sum(map(float, failed)) > 0
    energy = fleet.info().energy
    assert 0 < energy["inferences"] <= sum(fleet.info().inferences.values())
    assert 0 < energy["millijoules"] < 5 * len(DEVICES) * 600 * 1000
    assert " J an inference" in edgepack(fleet, "fleet", "info").stdout
    shown = edgepack(fleet, "fleet", "devices", "show", "failed").stdout
    assert "DEGRADED" in shown
    as_json = json.loads(edgepack(fleet, "fleet", "devices", "show", "slow", "--json").stdout)
    assert as_json["models"][0]["watch"]["symptom"] == "slow"
