"""A real agent runs the model server, which outlives updates and crashes alone."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.agent.state.holders import FILE_BYTES, HELD, holders_folders
from edgepack.agent.state.running_marks import RUNNING
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, ExampleBundle, expected_output, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, serving_device
from tests.simulators.model_server import UnixConnection
from tests.simulators.waiting import wait_until

X = np.random.default_rng(7).standard_normal((1, WIDTH)).astype(np.float32)


@pytest.fixture
def device(tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys) -> Iterator[Device]:
    url, key = mosquitto_broker.url, release_keys[1]
    with serving_device(tmp_path / "device", url, key, "[server]\nenabled = true\n") as device:
        yield device


def ask(device: Device, method: str, path: str, message: object = None) -> Any:
    """Return the answer's value; None without a server."""
    connection = UnixConnection(device.state_dir / "latency" / "server.sock")
    try:
        connection.request(method, path, json.dumps(message) if message else b"")
        return json.loads(connection.getresponse().read())
    except OSError:
        return None
    finally:
        connection.close()


def infer(device: Device) -> Any:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": X.ravel().tolist()}
    return ask(device, "POST", "/v2/models/tiny/infer", {"inputs": [tensor]})


def serves(device: Device, release: int) -> bool:
    answer = infer(device)
    if answer is None or answer.get("model_version") != f"1.{release}.0":
        return False
    expected = expected_output(X, release).ravel()
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected, atol=1e-4)
    return True


def server_pid(device: Device) -> int:
    """Return the process that holds the model; 0 without one."""
    for path in holders_folders(device.state_dir)[0].glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            return HELD.decode(path.read_bytes().partition(b"\0")[0]).value.pid
    return 0


def kill_in_inference(device: Device, pid: int) -> None:
    """Kill a process of which the registration says that it runs an inference."""
    os.kill(pid, signal.SIGSTOP)
    for path in holders_folders(device.state_dir)[0].glob(f"{pid}-*.json"):
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), bytes((RUNNING,)), FILE_BYTES - 1)
    os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def status(device: Device) -> str:
    command = [sys.executable, "-m", "edgepack.agent.cli", "status", "--config"]
    return subprocess.check_output([*command, str(device.config)], text=True)


def test_agent_runs_a_server_that_follows_updates_and_whose_crashes_condemn_a_release(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    def bring(number: int, soak_s: float) -> ExampleBundle:
        bundle = make_bundle(tmp_path / f"{number}", release_keys[0], release=number)
        controller.hold(bundle)
        order = bundle.order(number, soak_s=soak_s, deadline_s=600)
        controller.offer(DEVICE, bundle.desired_of(order))
        wait_until(lambda: serves(device, number), device.said)
        return bundle

    first = bring(1, 0.1)
    controller.wait_for(lambda it: it.sequence == 1 and it.state == "COMMITTED")
    pid = server_pid(device)
    assert pid
    bring(2, 300.0)
    assert server_pid(device) == pid, "the agent tidies up after each probe, and spares the server"
    said = status(device)
    assert "server    running since" in said
    assert "ended" not in said

    def is_condemned() -> bool:
        pid = server_pid(device)
        if pid and serves(device, 2):
            kill_in_inference(device, pid)
            wait_until(lambda: server_pid(device) != pid, device.said)
        told = controller.last()
        found = told.models.get("tiny") if told else None
        return found is not None and found.state == "ROLLED_BACK"

    wait_until(is_condemned, device.said)
    assert "processes that held it died" in device.said()
    pointer = device.pointer()
    assert pointer is not None
    assert pointer.bundle == first.ref
    wait_until(lambda: serves(device, 1), device.said)
    assert "the last ended by SIGKILL" in status(device)

    pid = server_pid(device)
    device.kill()
    wait_until(lambda: not is_running(pid), "the server outlives its agent")
    device.start()
    wait_until(lambda: serves(device, 1), device.said)
    pid = server_pid(device)
    assert device.stop() == 0
    assert not is_running(pid)
    assert infer(device) is None
    assert "server" not in status(device)
