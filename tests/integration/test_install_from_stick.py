"""`edgepack-agent install` on a device that trusts its fleet's root, and has no network."""

import time
from pathlib import Path

import pytest

from edgepack.bundle.archive import pack
from edgepack.fleet.repository import ceremony
from edgepack.fleet.repository.repository import ImageRepository
from tests.integration.conftest import Keys
from tests.integration.test_agent_install import run
from tests.simulators.bundles import make_bundle
from tests.simulators.device import Device
from tests.simulators.repository import RepositoryWorld


@pytest.fixture
def fleet(tmp_path: Path) -> RepositoryWorld:
    ceremony.init(ImageRepository(tmp_path / "tuf"), time.time())
    return RepositoryWorld(tmp_path / "tuf", now=time.time())


@pytest.fixture
def device(tmp_path: Path, release_keys: Keys, fleet: RepositoryWorld) -> Device:
    found = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])
    (tmp_path / "device" / "root.json").write_bytes(fleet.root)
    text = found.config.read_text().replace("[trust]", '[trust]\nroot = "root.json"')
    found.config.write_text(text)
    return found


def test_a_bundle_on_a_stick_is_installed_by_the_metadata_beside_it(
    tmp_path: Path, device: Device, release_keys: Keys, fleet: RepositoryWorld
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0], release=1)
    stick = tmp_path / "stick"
    stick.mkdir()
    pack(bundle.folder, stick / "one.edgepack")
    words = ("install", stick / "one.edgepack", "--config", device.config, "--soak", "0")

    done = run(*words)
    assert done.returncode == 1
    assert "error: there is no timestamp yet" in done.stderr
    assert "edgepack export BUNDLE --with-metadata" in done.stderr

    write_metadata(fleet, stick)
    done = run(*words)
    assert done.returncode == 1
    assert "error: tiny 1.1.0 is not released, or not any more" in done.stderr

    fleet.publish(bundle)
    fleet.rotate("root")
    write_metadata(fleet, stick)
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "active    tiny 1.1.0 (release 1)" in done.stdout


def write_metadata(fleet: RepositoryWorld, stick: Path) -> None:
    (stick / "metadata").mkdir(exist_ok=True)
    for name, content in fleet.repository.messages().items():
        (stick / "metadata" / name).write_bytes(content)
