"""A rollout of the agent itself: user's commands, real fleet, broker, launcher and agents."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from system_packages.debian import Package, write_deb
from system_packages.targets import MACHINES
from tests.integration.fleet.conftest import Mosquitto, Serve, edgepack
from tests.simulators import warm_programs
from tests.simulators.launched_agent import PACKAGES, UNPROVEN, LaunchedAgent, site_files

DEVICE = "cam-1"


@pytest.fixture
def agents() -> Iterator[list[LaunchedAgent]]:
    started: list[LaunchedAgent] = []
    yield started
    for agent in started:
        agent.stop()


def make_package(folder: Path, version: str, site_code: str) -> Path:
    """Write a package of the agent that runs this repository on this machine."""
    names = {machine: name for name, machine in MACHINES.items()}
    files = site_files(version, site_code)
    files[f"edgepack-{version}.dist-info/METADATA"] = f"Name: edgepack\nVersion: {version}\n"
    for name, text in files.items():
        file = folder / version / "usr/lib/edgepack" / PACKAGES / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    package = Package(
        name="edgepack-agent",
        version=version,
        architecture=names[platform.machine()],
        depends=(),
        summary="an agent",
        description=("An agent.",),
        scripts={},
    )
    root = folder / version
    return write_deb(package, root, folder, epoch=0, maintainer="A <a@example.org>", preset=0)


def test_rollout_updates_agents_and_pauses_for_an_agent_that_cannot_prove_itself(
    mosquitto: Mosquitto,
    tmp_path: Path,
    key_prefix: Path,
    serve: Serve,
    agents: list[LaunchedAgent],
) -> None:
    fleet = serve("--broker", mosquitto.url)
    folder = tmp_path / DEVICE
    fleet.client.enroll(DEVICE, group="cameras", folder=folder, state_dir=folder / "state")
    agents.append(LaunchedAgent(tmp_path, folder / "agent.toml", folder / "agent.log"))
    fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")

    def roll_out(version: str, name: str, site_code: str = "") -> str:
        package = make_package(tmp_path, version, site_code)
        bundle = str(tmp_path / f"edgepack-agent-{version}.edgepack")
        key = str(key_prefix.with_suffix(".key"))
        command = [sys.executable, "-m", "edgepack.cli", "agent-release", str(package)]
        made = warm_programs.run(
            [*command, "--key", key, "-o", bundle], capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stderr
        done = edgepack(
            fleet,
            *("rollout", "start", bundle, "--group", "cameras", "--waves", "100%"),
            *("--soak", "0.2", "--deadline", "250", "--gate-evidence", "optional"),
        )
        assert done.returncode == 0, done.stderr
        fleet.wait_until(lambda: fleet.rollout(name).state in ("FINISHED", "PAUSED"), name)
        return " ".join(edgepack(fleet, "rollout", "status", name).stdout.split())

    assert "FINISHED" in roll_out("7.1.0", "r1")
    shown = edgepack(fleet, "fleet", "devices", "show", DEVICE).stdout
    assert "agent 7.1.0+" in shown
    status = roll_out("7.2.0", "r2", UNPROVEN)
    assert "PAUSED" in status
    assert "this agent cannot prove itself" in status
    assert "agent 7.1.0+" in edgepack(fleet, "fleet", "devices", "show", DEVICE).stdout
