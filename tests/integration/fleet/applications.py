"""Real agents on devices, with applications that run inferences: input of the gates."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edgepack.agent.serving.model import Model, open_model
from edgepack.fleet.documents.gates import GateView
from tests.integration.fleet.conftest import FleetProcess, StartAgent

CAMERA_NAMES = ("cam-1", "cam-2", "cam-3")

Infer = Callable[[Model, np.random.Generator, threading.Event], object]
"""Runs an inference; the event is set when it should return."""


class Applications:
    """An application for each device, in a thread.

    Args:
        name: The model to open.
        infer: Repeated inference.

    Attributes:
        models: The open models.
    """

    def __init__(self, name: str, infer: Infer) -> None:
        self._name, self._infer = name, infer
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.models: list[Model] = []
        self._failed: list[BaseException] = []

    def start(self, state_dir: Path) -> None:
        thread = threading.Thread(target=self._run, args=(state_dir,))
        self._threads.append(thread)
        thread.start()

    def _run(self, state_dir: Path) -> None:
        rng = np.random.default_rng()
        try:
            with open_model(self._name, state_dir, threads=1) as model:
                self.models.append(model)
                while not self._stopping.wait(0.01):
                    self._infer(model, rng, self._stopping)
        except BaseException as error:
            self._failed.append(error)
            raise

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(400)
        assert self._failed == []


@contextmanager
def applications_of(name: str, infer: Infer) -> Iterator[Applications]:
    """Start applications and stop all at the end; none may have failed."""
    running = Applications(name, infer)
    try:
        yield running
    finally:
        running.stop()


def start_cameras(
    fleet: FleetProcess, start_agent: StartAgent, folder: Path, more: str
) -> list[subprocess.Popen[bytes]]:
    """Enrol the cameras, each in its folder, and start their agents.

    Args:
        fleet: Fleet of the cameras.
        start_agent: Starts an agent.
        folder: For their files.
        more: Lines of their settings.

    Returns:
        The agents.
    """
    agents = []
    for name in CAMERA_NAMES:
        place = folder / name
        fleet.client.enroll(name, group="cameras", folder=place, state_dir=place / "state")
        with (place / "agent.toml").open("a") as settings:
            settings.write(more)
        agents.append(start_agent(fleet, name))
    fleet.wait_until(lambda: fleet.info().online == len(CAMERA_NAMES), "the agents are online")
    return agents


def gate_of(fleet: FleetProcess, rollout: str, name: str) -> GateView:
    """Return the result of a rollout's gate with a single hardware class."""
    (view,) = [view for view in fleet.rollout(rollout).gates if view.name == name]
    return view
