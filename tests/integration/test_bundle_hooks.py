"""Hooks that come with a bundle: off by default, run as a user of their own, with no child left."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.bundles import make_bundle
from tests.simulators.children import has_ended
from tests.simulators.device import Device
from tests.simulators.users import User, made_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users; CI is root")

NAME = f"edgepack-t-{os.getpid()}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that other users may enter, unlike pytest's."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def user() -> Iterator[User]:
    with made_user(NAME) as made:
        yield made


@pytest.fixture
def device(folder: Path, release_keys: Keys) -> Device:
    return Device(folder / "device", "mqtt://127.0.0.1:1", release_keys[1])


def install(device: Device, bundle: Path) -> subprocess.CompletedProcess[str]:
    words = ("install", str(bundle), "--config", str(device.config), "--soak", "0")
    secret = {"EDGEPACK_REGISTRY_PASSWORD": "secret"}
    return warm_programs.run(
        [sys.executable, "-m", "edgepack.agent.cli", *words],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, **secret},
    )


def allow(device: Device, *lines: str) -> None:
    with device.config.open("a") as file:
        file.write("\n".join(("[hooks]", "from_bundles = true", *lines)) + "\n")


def hooked(folder: Path, keys: Keys, script: str) -> Path:
    hooks = {"staged.before.d/10-x": f"#!/bin/sh\n{script}\n"}
    return make_bundle(folder / "bundle", keys[0], hooks=hooks).folder


def test_a_bundles_hooks_do_not_run_by_default_and_that_is_said(
    folder: Path, device: Device, release_keys: Keys
) -> None:
    ran = folder / "ran"
    done = install(device, hooked(folder, release_keys, f"touch {ran}"))
    assert done.returncode == 0, done.stderr
    assert not ran.exists()
    assert "the bundle's own hooks do not run" in done.stderr
    assert "hooks.from_bundles" in done.stderr


def test_hooks_of_a_bundle_that_are_allowed_run_as_the_named_user_without_the_agents_environment(
    folder: Path, device: Device, release_keys: Keys, user: User
) -> None:
    drop = folder / "drop"
    drop.mkdir()
    drop.chmod(0o777)
    allow(device, f'user = "{NAME}"')
    script = f"id -u > {drop}/uid; id -G > {drop}/groups; env > {drop}/env"
    done = install(device, hooked(folder, release_keys, script))
    assert done.returncode == 0, done.stderr
    assert (drop / "uid").read_text().strip() == str(user.uid)
    assert (drop / "groups").read_text().split() == [str(user.gid)]
    assert (drop / "uid").stat().st_uid == user.uid
    assert "secret" not in (drop / "env").read_text()
    assert f"USER={NAME}" in (drop / "env").read_text()


def test_hooks_of_a_bundle_run_as_root_only_where_root_is_named(
    folder: Path, device: Device, release_keys: Keys
) -> None:
    ran = folder / "ran"
    bundle = hooked(folder, release_keys, f"id -u > {ran}")
    before = device.config.read_text()
    allow(device)
    done = install(device, bundle)
    assert done.returncode == 1
    assert "no user is named to run hooks" in done.stderr
    assert 'user = "root"' in done.stderr
    assert not ran.exists()
    device.config.write_text(before)
    allow(device, 'user = "root"')
    assert install(device, bundle).returncode == 0
    assert ran.read_text().strip() == "0"


def test_a_hook_that_the_named_user_may_not_read_is_a_refusal_that_says_so(
    folder: Path, device: Device, release_keys: Keys, user: User
) -> None:
    allow(device, f'user = "{NAME}"')
    device.state_dir.mkdir(mode=0o700)
    done = install(device, hooked(folder, release_keys, "exit 0"))
    assert done.returncode == 1
    assert f"user {NAME} may not read it" in done.stderr
    assert user.uid


@pytest.mark.parametrize("keeps_its_group", [True, False])
def test_what_a_hook_left_behind_ends_with_edgepack_agent_install(
    folder: Path, device: Device, release_keys: Keys, keeps_its_group: bool
) -> None:
    allow(device, 'user = "root"')
    note = folder / "pid"
    leave = "" if keeps_its_group else "setsid "
    script = f"{leave}sh -c 'echo $$ > {note}; exec sleep 600' &\nwhile [ ! -s {note} ]; do :; done"
    done = install(device, hooked(folder, release_keys, script))
    assert done.returncode == 0, done.stderr
    assert has_ended(int(note.read_text()))
