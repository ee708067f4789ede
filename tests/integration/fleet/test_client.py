"""`FleetClient` against a real fleet: programs can do the same as users."""

import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from edgepack.agent.config import read_config
from edgepack.agent.enrolment.identity import make_key, make_signing_request
from edgepack.bundle.archive import unpack
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import FleetError
from edgepack.fleet import DeviceView, FleetClient, RolloutSettings, Selector
from edgepack.fleet.enrolment.authority import Authority
from tests.integration.api_pages import run_examples
from tests.integration.fleet.conftest import MakeBundle, Serve, Simulate
from tests.simulators import warm_programs
from tests.simulators.pointers import write_pointer
from tests.unit.agent_runtime.examples import install_model

CAMERAS = Selector(kind="group", group="cameras")
QUICK = RolloutSettings(waves="1,100%", soak_s=0.2, deadline_s=400.0, gate_evidence="optional")


def running_versions(views: Iterable[DeviceView]) -> set[str]:
    return {model.active.version for view in views for model in view.models if model.active}


def test_a_watcher_outlives_a_restart_of_the_fleet(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    served = serve()
    fleet = FleetClient(served.url, data=served.data)
    simulation(served, count=2, group="cameras", prefix="cam")
    settings = msgspec.structs.replace(QUICK, approve_waves=True)
    started = fleet.start_rollout(fleet.publish(make_bundle("1.0.0", 1)), CAMERAS, settings)
    words = ("rollout", "watch", started.rollout, "--url", served.url, "--data", str(served.data))
    command = [sys.executable, "-m", "edgepack.cli", *words]
    watcher = warm_programs.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    assert watcher.stderr is not None
    assert started.rollout in watcher.stdout.readline()
    served.wait_until(lambda: "COMMITTED" in fleet.rollout(started.rollout).counts, "wave 1")
    served.kill()
    assert "no fleet answers" in watcher.stderr.readline()
    served.start()
    fleet.approve_rollout(started.rollout)
    said, _ = watcher.communicate(timeout=400)
    assert (watcher.returncode, "FINISHED" in said) == (0, True), said


def test_a_program_rolls_a_bundle_out_watches_it_and_takes_it_back(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    served = serve()
    fleet = FleetClient(served.url, data=served.data)
    simulation(served, count=3, group="cameras", prefix="cam")
    assert [view.device for view in fleet.devices("cameras")] == ["cam-1", "cam-2", "cam-3"]
    assert fleet.devices("doors") == ()

    first = fleet.publish(make_bundle("1.0.0", 1))
    *_, last = fleet.watch_rollout(fleet.start_rollout(first, CAMERAS, QUICK).rollout)
    assert (last.state, last.counts) == ("FINISHED", {"COMMITTED": 3})

    folder = tmp_path / "digits-2.0.0"
    unpack(make_bundle("2.0.0", 2), folder)
    second = fleet.publish(folder)
    assert fleet.releases() == (second, first)
    started = fleet.start_rollout(second, CAMERAS, QUICK)
    assert [part.state for part in started.assignments] == ["WAITING"] * 3
    seen = list(fleet.watch_rollout(started.rollout, every_s=0.05))
    assert seen[-1].state == "FINISHED"
    assert all(before != after for before, after in pairwise(seen))
    assert running_versions([fleet.device("cam-2")]) == {"2.0.0"}

    (back,) = fleet.rollback(started.rollout, settings=QUICK)
    *_, last = fleet.watch_rollout(back.rollout)
    assert (last.state, last.counts) == ("FINISHED", {"COMMITTED": 3})
    assert last.takes_back == second.bundle
    models = [model for view in fleet.devices() for model in view.models]
    assert {model.active.version for model in models if model.active} == {"1.0.0"}
    assert [view.state for view in fleet.rollouts()] == ["FINISHED", "ABORTED", "FINISHED"]
    told = [event for event in fleet.events(limit=1000) if event.rollout == "r2"]
    of_rollout = [event.to_state for event in told if event.kind == "rollout"]
    assert of_rollout == ["RUNNING", "RUNNING", "RUNNING", "FINISHED", "ABORTED"]
    committed = {event.device for event in told if event.to_state == "COMMITTED"}
    assert {"cam-1", "cam-2", "cam-3"} <= committed
    newest = fleet.events(limit=1000)[-1].id
    assert fleet.events(after=newest) == ()


def test_a_rollout_is_paused_and_resumed_by_a_program(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    served = serve()
    fleet = served.client
    simulation(served, count=2, group="cameras")
    slow = RolloutSettings(waves="100%", soak_s=3.0, deadline_s=400.0)
    rollout = fleet.start_rollout(fleet.publish(make_bundle()), CAMERAS, slow).rollout
    assert fleet.pause_rollout(rollout).because == "paused by a person"
    assert [view.state for view in fleet.watch_rollout(rollout)] == ["PAUSED"]
    assert fleet.resume_rollout(rollout).because == "resumed by a person, 0 failures accepted"
    assert fleet.rollout(rollout).state == "RUNNING"


def test_what_a_fleet_refuses_reaches_a_program_as_the_error_that_a_person_reads(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    fleet = FleetClient(served.url, data=served.data)
    with pytest.raises(FleetError, match="not enrolled: nobody") as refusal:
        fleet.device("nobody")
    assert refusal.value.remedy == "edgepack fleet enroll nobody --group GROUP -o FOLDER"
    with pytest.raises(FleetError, match="there is no such bundle"):
        fleet.publish(tmp_path / "none.edgepack")
    with pytest.raises(FleetError, match="there is no rollout r9"):
        next(fleet.watch_rollout("r9"))
    enrolled = fleet.enroll("cam-1", group="cameras", folder=str(tmp_path / "cam-1"))
    assert enrolled.config == tmp_path / "cam-1" / "agent.toml"
    assert read_config(enrolled.config).state_dir == "/var/lib/edgepack"
    monkeypatch.chdir(tmp_path)
    named = fleet.enroll("cam-2", group="cameras", folder="cam-2", state_dir='a "state" here')
    (tmp_path / "moved").mkdir()
    moved = named.config.rename(tmp_path / "moved" / "agent.toml")
    assert read_config(moved).state_dir == str(tmp_path / 'a "state" here')
    with pytest.raises(FleetError, match="holds a device's settings already"):
        fleet.enroll("cam-1", group="cameras", folder=tmp_path / "cam-1")
    monkeypatch.setenv("EDGEPACK_FLEET_URL", served.url)
    with pytest.raises(FleetError, match="does not know this token"):
        FleetClient(token="wrong").info()
    monkeypatch.setenv("EDGEPACK_FLEET_DATA", str(served.data))
    assert FleetClient().info().devices == 2


def test_the_page_of_the_python_api_runs_from_top_to_bottom(
    serve: Serve,
    simulation: Simulate,
    make_bundle: MakeBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served = serve()
    simulation(served, count=7, group="cameras", prefix="cam")
    monkeypatch.chdir(tmp_path)
    write_key_pair(generate_key(), Path("release"))
    make_bundle("1.2.0", 1).rename("model-1.2.0.edgepack")
    make_bundle("1.3.0", 2).rename("model-1.3.0.edgepack")
    monkeypatch.setenv("EDGEPACK_FLEET_URL", served.url)
    monkeypatch.setenv("EDGEPACK_FLEET_DATA", str(served.data))
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0, name="defects"))
    monkeypatch.setenv("EDGEPACK_STATE_DIR", str(tmp_path))
    (tmp_path / "cam-8").mkdir()
    request = make_signing_request(make_key(), "cam-8").decode()
    certificate = Authority(served.data / "pki").sign_client(request, "cam-8")
    (tmp_path / "cam-8" / "device.crt").write_text(certificate)
    names = run_examples("fleet")
    printed = capsys.readouterr().out
    assert "FINISHED {'COMMITTED': 7}" in printed
    # The page removed cam-7 and enrolled cam-8, which never connects.
    assert "6 of 7 devices are online" in printed
    states = [view.state for view in names["fleet"].rollouts()]
    assert states == ["ABORTED", "ABORTED"]
