"""A C program with a runtime of its own beside a real agent: counts, updates, evidence."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.agent.update.journal import Journal
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, serving_device
from tests.simulators.programs import require
from tests.simulators.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_runtime"
FAULTY = ROOT / "tests" / "simulators" / "faulty_runtime.c"
STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


def compile_camera(output: Path, runtime: Path) -> Path:
    """Compile the example with a runtime; skip the test without a C compiler."""
    require("gcc")
    sources = [str(EXAMPLE / "camera.c"), str(runtime)]
    command = ["gcc", *STRICT, f"-I{EXAMPLE}", *sources, "-lm", "-o", str(output)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return output


class Camera:
    """The C program, started again whenever it ends before `stop`."""

    def __init__(self, program: Path, device: Device) -> None:
        self._command = [str(program), "tiny"]
        self._environment = os.environ | {
            "EDGEPACK_AGENT": f"{sys.executable} -m edgepack.agent.cli",
            "EDGEPACK_AGENT_CONFIG": str(device.config),
            "FAULT": str(device.state_dir.parent / "fault"),
        }
        self._is_over = False
        self._process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        self.codes: list[int] = []
        self._thread = threading.Thread(target=self._supervise)
        self._thread.start()

    def _supervise(self) -> None:
        while not self._is_over:
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
            )
            assert self._process.stdout is not None
            with self._process.stdout as output:
                self.lines += (line.strip() for line in output)
            self.codes.append(self._process.wait())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._is_over = True
        assert self._process is not None
        self._process.send_signal(number)
        self._thread.join(400)


@pytest.fixture
def device(tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys) -> Iterator[Device]:
    url, key = mosquitto_broker.url, release_keys[1]
    with serving_device(tmp_path / "device", url, key, "[watch]\nhung_s = 2\n") as device:
        yield device


def test_the_example_compiles_with_its_own_runtime(tmp_path: Path) -> None:
    camera = compile_camera(tmp_path / "camera", EXAMPLE / "runtime.c")
    assert subprocess.run([camera, "no model"], check=False).returncode == 2


def test_a_c_program_follows_updates_and_its_faults_are_evidence(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    program = compile_camera(tmp_path / "camera", FAULTY)

    def bring(number: int, fault: str = "", soak_s: float = 120) -> ExampleBundle:
        bundle = make_bundle(tmp_path / f"{number}", release_keys[0], release=number)
        (device.state_dir.parent / "fault").write_text(f"{fault} {bundle.ref.digest}")
        controller.hold(bundle)
        order = bundle.order(number, soak_s=soak_s, deadline_s=600)
        controller.offer(DEVICE, bundle.desired_of(order))
        return bundle

    def journal() -> Journal:
        found = device.journal()
        assert found is not None
        return found

    def inferences(bundle: ExampleBundle) -> int:
        found = [it for it in controller.telemetry if it.digest == bundle.ref.digest]
        return sum(it.latency.count for it in found)

    first = bring(1, soak_s=0.1)
    controller.wait_for(lambda it: it.state == "COMMITTED")
    camera = Camera(program, device)
    try:
        wait_until(lambda: inferences(first) > 0, device.said)
        second = bring(2, soak_s=0.1)
        wait_until(lambda: "tiny 1.2.0" in camera.lines, device.said)
        controller.wait_for(lambda it: it.sequence == 2 and it.state == "COMMITTED")
        wait_until(lambda: inferences(second) > 0, device.said)
        expected = {
            "fails": "failed",
            "hangs": "hangs",
            "dies": "processes that held it died within",
        }
        for number, (fault, because) in enumerate(expected.items(), 3):
            bring(number, fault)
            wait_until(
                lambda number=number: (
                    (journal().state, journal().acted_sequence)  # type: ignore[misc]
                    == ("ROLLED_BACK", number)
                ),
                device.said,
            )
            assert because in journal().because
            if fault == "hangs":
                (device.state_dir.parent / "fault").unlink()
        device.kill()
        device.start()
        before = inferences(second)
        wait_until(lambda: inferences(second) > before, device.said)
        assert journal().state == "ROLLED_BACK"
    finally:
        camera.stop()
    assert camera.codes[-1] == 0
    pointer = device.pointer()
    assert pointer is not None
    assert pointer.bundle == second.ref
