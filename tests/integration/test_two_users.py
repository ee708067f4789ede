"""Agent and application as different users of the same device; only root can make users."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.agent.state.order_socket import SOCKET_FILE
from edgepack.bundle.archive import pack
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, running, wait_for_line
from tests.simulators.users import User, made_user
from tests.simulators.waiting import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users; CI is root")

SHARED = 64321
"""The group whose members may hand over what inferences took."""
INFERENCES = 7

APPLICATION = f"""
import logging, sys, time
import numpy as np
from edgepack.agent import open_model
logging.basicConfig()
with open_model("tiny", sys.argv[1]) as model:
    print("open", flush=True)
    while model.bundle.release < 2:
        time.sleep(0.02)
    for _ in range({INFERENCES}):
        model.run({{"x": np.zeros((1, {WIDTH}), np.float32)}})
"""


@pytest.fixture
def users() -> Iterator[tuple[User, User]]:
    """Make the users of the agent and of the application."""
    own = os.getpid()
    with made_user(f"edgepack-agent-{own}") as agent, made_user(f"edgepack-app-{own}") as other:
        yield agent, other


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that other users may enter, unlike pytest's."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def device(
    folder: Path, mosquitto_broker: Broker, release_keys: Keys, users: tuple[User, User]
) -> Device:
    """Make a device with a state folder by the documentation."""
    agent, _ = users
    shutil.copy(release_keys[1], folder / "release.pub")
    device = Device(folder, mosquitto_broker.url, folder / "release.pub", user=agent)
    device.state_dir.mkdir()
    os.chown(device.state_dir, agent.uid, SHARED)
    device.state_dir.chmod(0o2755)
    return device


Serve = Callable[[bool], "tuple[str, str]"]


@pytest.fixture
def serve(
    tmp_path: Path,
    device: Device,
    mosquitto_broker: Broker,
    release_keys: Keys,
    users: tuple[User, User],
) -> Iterator[Serve]:
    """Update the device while the application uses the model; return its end and the output."""
    controller = Controller(mosquitto_broker.port)
    bundles = [
        make_bundle(tmp_path / str(release), release_keys[0], release=release) for release in (1, 2)
    ]

    def update(is_member: bool) -> tuple[str, str]:
        for bundle in bundles:
            controller.hold(bundle)
        with running(device):
            controller.offer(DEVICE, bundles[0].desired(1))
            controller.wait_for(lambda model: model.state == "COMMITTED")
            _, user = users
            application = user.popen(
                [user.python, "-c", APPLICATION, str(device.state_dir)],
                groups=(SHARED,) if is_member else (),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert application.stdout is not None
            assert application.stdout.readline() == b"open\n", application.communicate()
            order = bundles[1].order(
                2, min_inferences=INFERENCES, deadline_s=400 if is_member else 15
            )
            controller.offer(DEVICE, bundles[1].desired_of(order))
            ended = controller.wait_for(
                lambda model: model.sequence == 2 and model.state in ("COMMITTED", "ROLLED_BACK")
            )
            application.kill()
            said = application.communicate()[1].decode()
            assert device.stop() == 0
        return f"{ended.state}: {ended.because}", said

    yield update
    controller.close()


def test_an_application_of_the_group_is_seen_by_the_soak(serve: Serve) -> None:
    ended, said = serve(True)
    assert ended.startswith("COMMITTED")
    assert f"{INFERENCES} inferences seen" in ended
    assert said == ""


def test_what_an_application_is_fed_is_kept_for_its_user_alone_and_removed_by_the_agent(
    serve: Serve, device: Device, users: tuple[User, User]
) -> None:
    settings = device.config.read_text()
    device.config.write_text(f"{settings}[capture]\nsamples = 3\n")
    ended, said = serve(True)
    assert ended.startswith("COMMITTED")
    assert said == ""
    (kept,) = (device.state_dir / "captured").glob("*-tiny.npz")
    assert kept.stat().st_uid == users[1].uid
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    device.config.write_text(settings)
    with running(device):
        wait_until(lambda: not (device.state_dir / "captured").exists(), device.said)


def test_an_application_that_cannot_write_the_spool_leaves_a_soak_without_evidence(
    serve: Serve,
) -> None:
    ended, said = serve(False)
    assert ended.startswith("ROLLED_BACK: no evidence: 0 of 7 inferences seen")
    assert "latencies cannot be handed to the agent" in said
    assert "Permission denied" in said


def test_strangers_can_neither_hold_the_lock_nor_prepare_it(
    device: Device, users: tuple[User, User]
) -> None:
    agent, stranger = users
    lock = device.state_dir / "agent.lock"
    with running(device):
        wait_for_line(device, "connected to")
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        assert lock.stat().st_uid == agent.uid
        assert device.stop() == 0
    held = stranger.popen(
        ["flock", "--nonblock", str(lock), "true"], groups=(SHARED,), stderr=subprocess.PIPE
    )
    assert b"Permission denied" in held.communicate()[1]
    os.chown(lock, stranger.uid, -1)
    lock.chmod(0o666)
    device.start()
    assert device.wait() == 1
    assert device.said().splitlines()[-3:] == [
        f"error: the lock of the state folder belongs to user {stranger.uid}, who could keep every "
        "agent out",
        f"  found in: {lock}",
        f"  try: rm {lock}; the agent makes a new lock",
    ]


def test_a_state_folder_that_every_user_can_write_is_refused(device: Device) -> None:
    device.state_dir.chmod(0o2777)
    device.start()
    assert device.wait() == 1
    assert "error: every user can write the state folder" in device.said()
    assert f"try: chmod o-w {device.state_dir}" in device.said()


def test_root_installs_a_bundle_that_the_agents_user_cannot_read(
    device: Device, users: tuple[User, User], tmp_path: Path, release_keys: Keys
) -> None:
    """Other systems store their files for root alone, and order the agent's user."""
    (private := tmp_path / "private").mkdir(mode=0o700)
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    pack(bundle.folder, archive := private / "one.edgepack")
    archive.chmod(0o600)
    agent, _ = users
    command = [agent.python, "-m", "edgepack.agent.cli", "install", str(archive), "--soak", "0"]
    with running(device):
        wait_until((device.state_dir / SOCKET_FILE).exists, "the agent")
        done = subprocess.run(
            [*command, "--config", str(device.config)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | agent.environment,
        )
    assert done.returncode == 0, done.stderr
    assert "active    tiny 1.1.0" in done.stdout
    assert (device.state_dir / "models/tiny/active.json").stat().st_uid == agent.uid
