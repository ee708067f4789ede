"""Parts of the integration tests: keys, inputs of a build, a real broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.bundle.keys import PrivateKey, generate_key, load_private_key, write_key_pair
from edgepack.registry.credentials import HOST, PASSWORD, USER
from tests.integration.loose_builds import Builder
from tests.simulators import broker as mosquitto
from tests.simulators import warm_programs, web_ways
from tests.simulators.broker import Broker
from tests.simulators.controller import Controller
from tests.unit.packager_io.models import save, small_cnn, write_stack

Keys = tuple[PrivateKey, Path]


@pytest.fixture(scope="module", autouse=True)
def _children_start_warm() -> Iterator[None]:
    """Start the children of builds and probes in these tests warm; unit tests start them cold."""
    with warm_programs.warm_children():
        yield


@pytest.fixture(scope="session")
def release_keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Return the private key, and the file of the public key."""
    prefix = tmp_path_factory.mktemp("keys") / "release"
    private, public = write_key_pair(generate_key(), prefix)
    return load_private_key(private), public


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a model, samples and a key pair."""
    folder = tmp_path_factory.mktemp("material")
    save(small_cnn(), folder / "small.onnx")
    write_stack(folder / "samples.npz", 40)
    write_key_pair(generate_key(), folder / "release")
    return folder


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a private key's file."""
    return write_key_pair(generate_key(), tmp_path_factory.mktemp("key") / "release")[0]


@pytest.fixture
def builder(tmp_path: Path, key: Path) -> Builder:
    """Return a `Builder`."""
    return Builder(tmp_path, key)


@pytest.fixture
def mosquitto_broker(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker for this test."""
    if not mosquitto.is_installed():
        pytest.skip("mosquitto is not installed")
    broker = Broker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def controller(mosquitto_broker: Broker) -> Iterator[Controller]:
    """Start a controller at that broker."""
    controller = Controller(mosquitto_broker.port)
    yield controller
    controller.close()


@pytest.fixture
def no_registry_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave no credentials for a registry; skip if a program is not installed."""
    web_ways.skip_if_missing()
    for name in (HOST, USER, PASSWORD):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
