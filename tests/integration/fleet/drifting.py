"""A device of a fleet that measures drift often, with what a person sees of it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent.serving import following
from edgepack.agent.telemetry import sketches
from edgepack.wire.reports import Drift
from tests.integration.fleet.conftest import CAMERAS, StartAgent, edgepack
from tests.integration.fleet.dashboard import Visitor
from tests.simulators import warm_programs

_NAME = "cam-1"
_SETTINGS = "\n[telemetry]\ninterval_s = 0.2\nheartbeat_s = 1\ndrift_window_s = 0.3\n"


class DriftingDevice:
    """Device with an agent, enrolled and online.

    Args:
        fleet: The fleet's server.
        start_agent: Starts an agent.
        folder: Folder for the device.
        patch: Shortens pauses of the applications of this process.

    Attributes:
        state: The agent's state folder.
    """

    def __init__(
        self, fleet: Any, start_agent: StartAgent, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        patch.setattr(following, "SPOOL_S", 0.2)
        patch.setattr(sketches, "SAMPLE_S", 0.0)
        self._fleet = fleet
        place = folder / _NAME
        self.state = place / "state"
        fleet.client.enroll(_NAME, group="cameras", folder=place, state_dir=self.state)
        with (place / "agent.toml").open("a") as settings:
            settings.write(_SETTINGS)
        start_agent(fleet, _NAME)
        fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")

    def commit(self, archive: Path) -> None:
        """Roll a release out, until it is committed."""
        rollout = self._fleet.roll_out(archive, to=CAMERAS, waves="100%", deadline_s=400.0)
        self._fleet.wait_for(rollout, "FINISHED")

    def status(self) -> list[str]:
        """Return the lines of `edgepack-agent status` on drift."""
        words = ("status", "--state-dir", str(self.state))
        command = (sys.executable, "-m", "edgepack.agent.cli", *words)
        done = warm_programs.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("drift")]

    def drift(self) -> Drift | None:
        """Return the drift that the fleet has."""
        found: Drift | None = self._fleet.client.device(_NAME).models[0].drift
        return found

    def shown(self, *words: str) -> str:
        """Return what `edgepack fleet devices show` prints."""
        return edgepack(self._fleet, "fleet", "devices", "show", _NAME, *words).stdout

    def page(self) -> str:
        """Return the device's page of the dashboard."""
        token = (self._fleet.data / "token").read_text()
        return Visitor(self._fleet.url).log_in(token).get(f"/devices/{_NAME}").text
