"""A real agent rolls back a release whose real application dies again and again, or hangs."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.agent.state.holders import HELD, holders_folders
from edgepack.agent.update.journal import Journal
from edgepack.agent.watch.liveness import DEATHS
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, serving_device
from tests.simulators.waiting import wait_until

SERVE = """
import os, signal, sys, time
import numpy as np
from edgepack.agent import open_model
from tests.simulators.bundles import WIDTH
with open_model("tiny", sys.argv[1], threads=1, poll_s=0.02) as model:
    def crash(*_):
        model._opened().session.run = lambda _: os.abort()
    signal.signal(signal.SIGUSR1, crash)
    print("serves", flush=True)
    while True:
        model.run({"x": np.zeros((1, WIDTH), np.float32)})
"""


def serving(state_dir: Path) -> set[str]:
    """Return the releases that processes hold."""
    in_memory, _ = holders_folders(state_dir)
    return {HELD.decode(path.read_bytes()).value.digest for path in in_memory.glob("*.json")}


class Application:
    """A process that serves, and is started again when it dies.

    Args:
        state_dir: The agent's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._command = [sys.executable, "-c", SERVE, str(state_dir)]
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n"
        return process

    def end_by(self, number: signal.Signals) -> None:
        """End by a signal, at the next inference by SIGUSR1; start again."""
        self.process.send_signal(number)
        self.process.communicate()
        self.process = self._start()

    def hang(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def device(tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys) -> Iterator[Device]:
    url, key = mosquitto_broker.url, release_keys[1]
    with serving_device(tmp_path / "device", url, key, "[watch]\nhung_s = 4\n") as device:
        yield device


def test_release_is_rolled_back_whose_application_hangs_or_dies(
    tmp_path: Path, mosquitto_broker: Broker, device: Device, release_keys: Keys
) -> None:
    controller = Controller(mosquitto_broker.port)
    key = release_keys[0]
    first = make_bundle(tmp_path / "1", key, release=1)
    controller.hold(first)
    controller.offer(DEVICE, first.desired(1))
    controller.wait_for(lambda it: it.state == "COMMITTED")
    application = Application(device.state_dir)

    def journal() -> Journal:
        found = device.journal()
        assert found is not None
        return found

    def bring(number: int, fault: Callable[[], None], because: str) -> None:
        bundle = make_bundle(tmp_path / f"{number}", key, release=number)
        controller.hold(bundle)
        order = bundle.order(number, soak_s=120, deadline_s=600)
        controller.offer(DEVICE, bundle.desired_of(order))
        wait_until(
            lambda: bundle.ref.digest in serving(device.state_dir), "the application serves it"
        )
        wait_until(lambda: journal().state == "SOAKING", "the release soaks")
        fault()
        wait_until(lambda: journal().state == "ROLLED_BACK", "the release goes back")
        assert because in journal().because
        pointer = device.pointer()
        assert pointer is not None
        assert pointer.bundle == first.ref

    def die_often() -> None:
        for _ in range(DEATHS + 1):
            application.end_by(signal.SIGTERM)
        for _ in range(DEATHS):
            assert journal().state == "SOAKING"
            application.end_by(signal.SIGUSR1)

    try:
        bring(2, die_often, "3 processes that held it died within")
        bring(3, application.hang, "no heartbeat for")
    finally:
        application.end()
        controller.close()
