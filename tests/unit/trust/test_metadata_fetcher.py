"""Metadata that the broker does not bring is fetched over HTTP, and believed no more for that."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgepack.agent.update import metadata_fetcher
from edgepack.agent.update.metadata_fetcher import (
    AGAIN_S,
    MAX_BYTES,
    PATIENCE_S,
    MetadataFetcher,
    fetch_newer,
)
from edgepack.fleet.repository import ceremony
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.trust.sources import FolderSource, HttpSource
from tests.simulators.repository import RepositoryWorld
from tests.simulators.trusting_device import TrustingDevice, wants, word
from tests.unit.trust.conftest import Shelf


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A plain web server of a folder; its URL."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def device(world: RepositoryWorld, tmp_path: Path) -> TrustingDevice:
    return TrustingDevice(world, tmp_path / "device")


def fetcher(device: TrustingDevice, url: str) -> MetadataFetcher:
    return MetadataFetcher(
        HttpSource(url),
        device.root,
        device.cache,
        is_lacking=lambda: device.trust.is_lacking,
        put=lambda name, content: device.hear(name, content),
        wall=lambda: device.world.now,
    )


def test_a_device_installs_what_is_ordered_though_the_broker_brings_no_metadata(
    world: RepositoryWorld, shelf: Shelf, device: TrustingDevice
) -> None:
    world.publish(shelf.one)
    for _ in range(3):
        world.rotate("root")
    device.hear("desired", word(world, "cam-1", wants(shelf.one, sequence=1)))
    assert device.installs == []
    with served(world.repository.files.folder) as url:
        looking = fetcher(device, url)
        looking.look(PATIENCE_S - 1)
        assert device.installs == [], "the broker has time to bring it"
        looking.look(2)
    assert device.installs == [("tiny", 1)]
    assert not device.trust.is_lacking


def test_nothing_is_fetched_while_nothing_lacks_nor_over_and_over(
    world: RepositoryWorld, device: TrustingDevice
) -> None:
    asked: list[str] = []

    def source(role: str, _version: int | None, _max_bytes: int) -> bytes | None:
        asked.append(role)
        return None

    looking = fetcher(device, "http://nowhere")
    looking._source = source
    looking.look(PATIENCE_S)
    first = len(asked)
    assert first > 0
    for _ in range(10):
        looking.look(AGAIN_S / 11)
    assert len(asked) == first
    looking.look(AGAIN_S / 10)
    assert len(asked) == 2 * first
    device.hear_metadata()
    for _ in range(10):
        looking.look(AGAIN_S)
    assert len(asked) == 2 * first


def test_what_a_web_server_forges_or_replays_changes_nothing(
    world: RepositoryWorld, shelf: Shelf, device: TrustingDevice, tmp_path: Path
) -> None:
    world.publish(shelf.one)
    device.hear_all(wants(shelf.one, sequence=1))
    foreign = ImageRepository(tmp_path / "foreign", wall=lambda: world.now)
    ceremony.init(foreign, world.now)
    for _ in range(3):
        foreign.go_round()
    old = tmp_path / "old"
    shutil.copytree(world.repository.files.folder, old)
    world.publish(shelf.two)
    device.hear("desired", word(world, "cam-1", wants(shelf.two, sequence=2)))
    before = dict(fetch_all(device))
    for folder in (foreign.files.folder, old):
        with served(folder) as url:
            fetcher(device, url).look(PATIENCE_S)
        assert dict(fetch_all(device)) == before
    assert device.installs == [("tiny", 1)]
    with served(world.repository.files.folder) as url:
        fetcher(device, url).look(PATIENCE_S)
    assert device.installs == [("tiny", 1), ("tiny", 2)]


def fetch_all(device: TrustingDevice) -> Iterator[tuple[str, bytes]]:
    for path in sorted((device.state_dir / "trust").iterdir()):
        yield path.name, path.read_bytes()


def test_endless_roots_are_not_fetched_at_once_and_the_next_fetch_goes_on(
    world: RepositoryWorld, device: TrustingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 8
    monkeypatch.setattr(metadata_fetcher, "MAX_FILES", most)
    for _ in range(most + 3):
        world.rotate("root")
    found, problem = fetch_newer(
        FolderSource(world.repository.files.folder), device.root, device.cache, lambda: world.now
    )
    assert problem == "there is more than is fetched at once"
    assert len(found) <= most + 1
    assert sum(map(len, found.values())) <= MAX_BYTES + 120 * 1024
    with served(world.repository.files.folder) as url:
        looking = fetcher(device, url)
        looking.look(PATIENCE_S)
        assert device.trust.is_lacking
        looking.look(AGAIN_S)
    assert not device.trust.is_lacking


def test_a_server_that_is_away_or_wrong_is_told_once(
    device: TrustingDevice, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with served(tmp_path) as url:
        pass
    looking = fetcher(device, url)
    for _ in range(3):
        looking.look(AGAIN_S)
    told = [record.message for record in caplog.records if "by HTTP" in record.message]
    assert len(told) == 1
    assert "metadata cannot be fetched" in told[0]
