"""A real agent with a full, failing or read-only disk, while real models serve."""

import errno
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent import Model, open_model
from edgepack.agent.enrolment.identity import key_pem
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.slot import verify_slot
from edgepack.wire.reports import ReportedModel
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, ExampleBundle, expected_output, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device
from tests.simulators.faulty_disk import FaultyDisk, build_library
from tests.simulators.waiting import wait_until

ERRORS = [errno.EIO, errno.ENOSPC, errno.EROFS]
LOCKED = 8
"""Calls until an agent holds its lock: without one it waits, and reports nothing."""
SAMPLES = 2
"""Moments of an update that are tried with each error; the fast test tries every call."""


class Rig:
    """A device with a faulty disk, and a controller."""

    def __init__(
        self, folder: Path, broker: Broker, controller: Controller, keys: Keys, library: Path
    ) -> None:
        self.device = Device(folder / "device", broker.url, keys[1])
        self.device.state_dir.mkdir()
        self.disk = FaultyDisk(folder / "control", library, self.device.state_dir)
        self.controller, self._folder, self._key = controller, folder, keys[0]
        self.release = 0

    def start(self) -> None:
        self.device.start(self.disk.environment)

    def offer(self) -> ExampleBundle:
        """Offer the next release."""
        self.release += 1
        bundle = make_bundle(
            self._folder / f"release-{self.release}", self._key, release=self.release
        )
        self.controller.hold(bundle)
        self.controller.offer(DEVICE, bundle.desired(self.release, soak_s=0.1))
        return bundle

    def wait_committed(self) -> None:
        self.controller.wait_for(partial(_is_at, (self.release, "COMMITTED")))

    def warns(self, text: str) -> bool:
        last = self.controller.last()
        return last is not None and any(text in warning for warning in last.warnings)

    def check_serving(self, bundle: ExampleBundle, model: Model) -> None:
        folder = slot_folder(self.device.state_dir, bundle.ref.digest)
        verify_slot(folder, bundle.ref.digest, "cpu")
        wait_until(lambda: model.bundle == bundle.ref, "the application follows")
        x = np.ones((1, WIDTH), np.float32)
        found = np.asarray(model.run({"x": x})["y"], np.float32)
        assert np.abs(found - expected_output(x, bundle.ref.release)).max() < 1e-3


def _is_at(wanted: tuple[int, str], report: ReportedModel) -> bool:
    return (report.sequence, report.state) == wanted


@pytest.fixture
def rig(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> Iterator[Rig]:
    library = build_library(tmp_path)
    rig = Rig(tmp_path, mosquitto_broker, controller, release_keys, library)
    yield rig
    rig.disk.works()
    if rig.device.is_running:
        rig.device.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_an_agent_outlives_a_disk_that_fails_in_an_update_reports_it_and_goes_on(
    rig: Rig, error: int
) -> None:
    rig.start()
    bundle = rig.offer()
    rig.wait_committed()
    with open_model("tiny", rig.device.state_dir) as model:
        rig.check_serving(bundle, model)
        rig.disk.count(error)
        bundle = rig.offer()
        rig.wait_committed()
        calls = rig.disk.calls
        rig.check_serving(bundle, model)
        for sample in range(SAMPLES):
            serving = model.bundle
            rig.disk.fail(error, first=calls * sample // SAMPLES)
            bundle = rig.offer()
            wait_until(lambda: rig.warns(os.strerror(error)), "the report of the fault")
            assert rig.device.is_running
            assert rig.disk.failed
            assert model.run({"x": np.ones((1, WIDTH), np.float32)})["y"].shape == (1, WIDTH)
            assert model.bundle in (serving, bundle.ref)
            rig.disk.works()
            rig.wait_committed()
            rig.check_serving(bundle, model)
            wait_until(lambda: not rig.warns(os.strerror(error)), "the end of the warning")
    assert rig.device.stop() == 0
    assert "Traceback" not in rig.device.said()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_an_agent_starts_on_a_disk_that_fails_in_mid_update_serves_and_goes_on(
    rig: Rig, error: int
) -> None:
    rig.start()
    first = rig.offer()
    rig.wait_committed()
    rig.controller.answers = False
    second = rig.offer()
    rig.controller.wait_for(lambda report: report.state == "OFFERED")
    rig.device.kill()
    rig.disk.fail(error, first=LOCKED)
    with open_model("tiny", rig.device.state_dir) as model:  # Its own disk works.
        rig.start()
        wait_until(lambda: rig.warns(os.strerror(error)), "the report of the fault")
        assert rig.device.is_running
        assert model.bundle == first.ref
        status = warm_programs.run(
            [sys.executable, "-m", "edgepack.agent.cli", "status", "--state-dir",
             str(rig.device.state_dir)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert "active    tiny 1.1.0" in status
        lines = [line for line in rig.device.said().splitlines() if os.strerror(error) in line]
        faults = Counter(line[len("2026-11-27 09:21:14,044 ") :] for line in lines)
        assert faults, "each fault is logged"
        assert set(faults.values()) == {1}, faults
        assert "state folder: works again" not in rig.device.said()
        rig.disk.works()
        rig.controller.answers = True
        rig.wait_committed()
        rig.check_serving(second, model)
        wait_until(lambda: not rig.warns(os.strerror(error)), "the end of the warning")
    assert rig.device.stop() == 0
    assert "Traceback" not in rig.device.said()
    assert not list(rig.device.state_dir.rglob("*.damaged"))


def test_a_pointer_that_cannot_be_read_for_a_moment_stays_and_is_read_again(rig: Rig) -> None:
    rig.start()
    bundle = rig.offer()
    rig.wait_committed()
    rig.disk.fail(errno.EIO, first=0)
    wait_until(lambda: rig.disk.failed > 3, "the disk was read")
    wait_until(lambda: rig.warns("Input/output error"), "the report of the fault")
    rig.disk.works()
    open_model("tiny", rig.device.state_dir).close()
    for first in (0, LOCKED):
        rig.device.kill()
        rig.controller.reports.clear()
        rig.disk.fail(errno.EIO, first=first)
        rig.start()
        wait_until(lambda: rig.disk.failed > 0, "the disk was read at start")
        rig.disk.works()
        rig.wait_committed()
    with open_model("tiny", rig.device.state_dir) as model:
        rig.check_serving(bundle, model)
    assert not list(rig.device.state_dir.rglob("*.damaged"))


@pytest.mark.parametrize("odd", ["empty", "folder", "pipe", "other curve"])
def test_what_lies_in_the_place_of_the_devices_key_keeps_no_agent_from_starting(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys, odd: str
) -> None:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    device.state_dir.mkdir()
    key = device.state_dir / "device.key"
    match odd:
        case "empty":
            key.touch()
        case "folder":
            key.mkdir()
        case "pipe":
            os.mkfifo(key)
        case _:
            key.write_bytes(key_pem(ec.generate_private_key(ec.SECP384R1())))
    bundle = make_bundle(tmp_path / "release", release_keys[0])
    controller.hold(bundle)
    device.start()
    try:
        controller.offer(DEVICE, bundle.desired(1, soak_s=0.1))
        controller.wait_for(partial(_is_at, (1, "COMMITTED")))
    finally:
        device.stop()
    assert "put aside as device.key.damaged" in device.said()
    assert "BEGIN" in key.read_text()
