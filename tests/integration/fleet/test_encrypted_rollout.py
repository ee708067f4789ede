"""An encrypted bundle is rolled out over MQTT, and no disk on its way shows a weight."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.agent.serving.model import open_model
from edgepack.bundle.golden import read_golden
from edgepack.fleet.documents.rollouts import Selector
from tests.integration.fleet.conftest import FleetProcess
from tests.simulators import warm_programs
from tests.simulators.plain_weights import secrets, shows
from tests.simulators.waiting import wait_until
from tests.unit.packager_io.models import save, small_cnn, write_stack

CAMERAS = Selector(kind="group", group="cameras")
Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path, key_prefix: Path) -> Build:
    save(small_cnn(batch=1), tmp_path / "small.onnx")
    write_stack(tmp_path / "samples.npz", 12)

    def run(output: str, version: str, *more: str | Path) -> Path:
        command = [sys.executable, "-m", "edgepack.cli", "build", "small.onnx"]
        command += ["--profile", "fp32", "--version", version, "--calibration", "samples.npz"]
        command += ["--name", "small", "--key", str(key_prefix.with_suffix(".key")), "-o", output]
        done = warm_programs.run(
            [*command, *map(str, more)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return tmp_path / output

    return run


@pytest.fixture
def start_agent() -> Iterator[Callable[[Path], None]]:
    agents = []

    def start(folder: Path) -> None:
        command = [sys.executable, "-m", "edgepack.agent.cli", "run"]
        with (folder / "agent.log").open("a") as log:
            agents.append(
                warm_programs.Popen(
                    [*command, "--config", str(folder / "agent.toml")], stdout=log, stderr=log
                )
            )

    yield start
    for agent in agents:
        agent.terminate()
        agent.wait(400)


def test_what_is_encrypted_to_one_device_serves_there_and_shows_no_weight_anywhere(
    tls_fleet: FleetProcess,
    build: Build,
    start_agent: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    fleet, devices = tls_fleet, {}
    for name in ("cam-1", "cam-2"):
        folder = tmp_path / name
        fleet.client.enroll(name, group="cameras", folder=folder, state_dir=folder / "state")
        start_agent(folder)
        devices[name] = folder
    golden = build("plain", "0.9.0") / "golden" / "golden.npz"
    pieces = secrets(tmp_path / "small.onnx", golden)
    assert shows(tmp_path / "plain", pieces), "the test finds what it looks for"
    secret = build(
        "secret-1.0.0.edgepack", "1.0.0", "--encrypt-to", devices["cam-1"] / "device.crt"
    )
    fleet.wait_until(lambda: fleet.info().online == 2, "the agents are online")

    places = (*(folder / "state" for folder in devices.values()), fleet.data, fleet.broker_folder)
    rollout = fleet.roll_out(secret, to=CAMERAS, waves="100%", deadline_s=400.0, max_failed_share=1)

    def is_decided() -> bool:
        for place in places:
            assert not shows(place, pieces), f"while it is on its way: {place}"
        return fleet.rollout(rollout).state == "FINISHED"

    wait_until(is_decided, "one device took it, and the other could not")
    (refused,) = [it for it in fleet.rollout(rollout).assignments if it.device == "cam-2"]
    assert refused.because.startswith("the bundle is encrypted to others"), refused.because
    assert not list((devices["cam-2"] / "state").glob("slots/*/model/*/*")), "no byte was fetched"
    assert list((devices["cam-1"] / "state").glob("slots/*/model/*/*")), "it lies there, encrypted"

    samples = read_golden(golden)
    with open_model("small", devices["cam-1"] / "state") as model:
        outputs = model.run(samples.inputs[0])
        for place in places:
            assert not shows(place, pieces), f"while it serves: {place}"
    for name, expected in samples.outputs[0].items():
        assert outputs[name] == pytest.approx(expected, abs=1e-4)
