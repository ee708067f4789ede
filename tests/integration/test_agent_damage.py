"""Damage to a slot that serves, with a real agent, a real application and real commands."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import open_model
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.slot import verify_slot
from edgepack.errors import BundleError
from edgepack.wire.reports import ReportedModel
from tests.integration.conftest import Keys
from tests.integration.test_agent_install import run
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, expected_output, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device
from tests.simulators.waiting import wait_until

MODEL = "model/cpu/model.onnx"


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_folder(path: Path) -> None:
    path.mkdir()


def put_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def put_nothing(_path: Path) -> None:
    """Leave the place empty."""


def is_at(wanted: tuple[int, str], report: ReportedModel) -> bool:
    return (report.sequence, report.state) == wanted


@pytest.mark.parametrize(("path", "how"), [(MODEL, put_pipe), ("golden/golden.npz", put_nothing)])
def test_a_file_that_disappears_while_the_agent_runs_is_reported_and_fetched_again(
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    release_keys: Keys,
    path: str,
    how: Callable[[Path], None],
) -> None:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    one, two = (make_bundle(tmp_path / f"r{n}", release_keys[0], release=n) for n in (1, 2))
    for bundle in (one, two):
        controller.hold(bundle)
    device.start()
    try:
        for sequence, bundle in enumerate((one, two), 1):
            controller.offer(DEVICE, bundle.desired(sequence))
            wanted = (sequence, "COMMITTED")
            controller.wait_for(partial(is_at, wanted))
        x = np.ones((1, WIDTH), np.float32)
        with open_model("tiny", device.state_dir) as running:
            folder = slot_folder(device.state_dir, two.ref.digest)
            (folder / path).unlink()
            how(folder / path)
            wait_until(
                lambda: any("is damaged: " in text for text in controller.reports[-1].warnings),
                "the report of the damage",
            )
            assert running.run({"x": x})["y"].shape == (1, WIDTH)
            wait_until(
                lambda: any(event.kind == "warning" for event in controller.events),
                "the event of the damage",
            )
            controller.wait_for(
                lambda report: (
                    report.state == "COMMITTED"
                    and report.active is not None
                    and report.active.bundle == two.ref
                )
            )
            verify_slot(folder, two.ref.digest, "cpu")
            wait_until(lambda: controller.reports[-1].warnings == (), "the end of the warning")
        with open_model("tiny", device.state_dir) as again:
            found = again.run({"x": x})["y"]
        assert np.abs(np.asarray(found, np.float32) - expected_output(x, 2)).max() < 1e-3
    finally:
        device.kill()
    assert "Traceback" not in device.said()


@pytest.mark.parametrize(
    ("path", "how"),
    [
        (MODEL, put_nothing),
        (MODEL, put_link),
        ("golden/golden.npz", put_pipe),
        ("manifest.json", put_folder),
        ("model.sig", put_nothing),
    ],
)
def test_installing_the_same_bundle_repairs_its_slot(
    tmp_path: Path, release_keys: Keys, path: str, how: Callable[[Path], None]
) -> None:
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    words = ("install", bundle.folder, "--config", device.config, "--soak", "0")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    folder = slot_folder(device.state_dir, bundle.ref.digest)
    (folder / path).unlink()
    how(folder / path)
    said = run("status", "--state-dir", device.state_dir).stdout
    assert f"damaged   '{path}' is " in said
    if path != "model.sig":
        with pytest.raises(BundleError, match=f"'{path}' is "):
            open_model("tiny", device.state_dir)
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "damaged" not in done.stdout
    verify_slot(folder, bundle.ref.digest, "cpu")
    open_model("tiny", device.state_dir).close()
    hostname = Path("/etc/hostname")
    assert not hostname.exists() or hostname.stat().st_size < 1000, "the link was not followed"


def test_a_slot_whose_folder_is_gone_is_made_again_by_an_install(
    tmp_path: Path, release_keys: Keys
) -> None:
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    words = ("install", bundle.folder, "--config", device.config, "--soak", "0")
    assert run(*words).returncode == 0
    shutil.rmtree(slot_folder(device.state_dir, bundle.ref.digest))
    done = run(*words)
    assert done.returncode == 0, done.stderr
    verify_slot(slot_folder(device.state_dir, bundle.ref.digest), bundle.ref.digest, "cpu")
