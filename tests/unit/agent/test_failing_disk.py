"""The disk fails at every call of an update: once, or until repaired."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from edgepack.agent.state import lock
from tests.simulators.failing_updates import Request, Result
from tests.simulators.faulty_disk import FaultyDisk, build_library
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases

ALL = "EDGEPACK_TEST_EVERY_CALL"
"""Set to try every call; otherwise each so many, which takes seconds."""


def fail_updates(
    tmp_path: Path, world: World, releases: Releases, error: int, *, is_lasting: bool
) -> Result:
    library = build_library(tmp_path)
    folder, key = tmp_path / "devices", tmp_path / "key.pub"
    folder.mkdir()
    form = PublicFormat.SubjectPublicKeyInfo
    key.write_bytes(releases.public_key.public_bytes(Encoding.PEM, form))
    disk = FaultyDisk(tmp_path / "control", library, folder)
    request = Request(
        control=str(tmp_path / "control"),
        template=str(shutil.copytree(world.state_dir, tmp_path / "template")),
        folder=str(folder),
        key=str(key),
        bundles=(str(releases.one.folder), str(releases.two.folder)),
        error=error,
        is_lasting=is_lasting,
        step=1 if os.environ.get(ALL) else 11,
        offset=0 if os.environ.get(ALL) else error % 11,
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulators.failing_updates", msgspec.json.encode(request)],
        env=os.environ | disk.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return msgspec.json.decode(done.stdout, type=Result)


@pytest.fixture
def world(fresh: World, releases: Releases, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Return a device that serves release 1."""
    folder = tmp_path_factory.mktemp("served")
    world = World(state_dir=folder, keys=(releases.public_key,))
    world.link.hold(releases.one)
    world.models.start()
    world.updater.orders.offer(releases.one.order(1))
    assert world.settle() == "COMMITTED"
    return world


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_a_call_that_fails_once_loses_nothing_at_any_moment_of_an_update(
    tmp_path: Path, world: World, releases: Releases, error: int
) -> None:
    result = fail_updates(tmp_path, world, releases, error, is_lasting=False)
    assert not result.problems, next(iter(result.problems.items()))
    assert result.calls > 50
    assert result.hit > result.tried * 0.9


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_stops_working_at_any_moment_is_reported_and_the_update_goes_on_afterwards(
    tmp_path: Path, world: World, releases: Releases, error: int
) -> None:
    result = fail_updates(tmp_path, world, releases, error, is_lasting=True)
    assert not result.problems, next(iter(result.problems.items()))
    assert result.hit > result.tried * 0.9
    assert result.silent == ()


def test_a_state_folder_whose_lock_cannot_be_checked_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, waits = lock._keep_strangers_out, list[str]()

    def fail(state_dir: Path, path: Path, descriptor: int) -> None:
        monkeypatch.setattr(lock, "_keep_strangers_out", check)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(state_dir))

    monkeypatch.setattr(lock, "_keep_strangers_out", fail)
    with lock.lock_when_disk_works(tmp_path, 0.0, lambda because, _: waits.append(because)):
        assert lock.is_locked(tmp_path)
    assert waits == ["cannot use the state folder: Input/output error"]
