"""Commands on a device with a running agent: the agent carries the orders out."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import open_model
from edgepack.agent.state.order_socket import (
    SOCKET_FILE,
    Chunk,
    LocalOrder,
    OrderEnd,
    connect_to_agent,
    encode_packet,
    receive,
)
from edgepack.bundle.archive import pack
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.bundles import WIDTH, ExampleBundle, make_bundle
from tests.simulators.device import Device, running, wait_for_line
from tests.simulators.waiting import PATIENCE_S, wait_until

COMMAND = (sys.executable, "-m", "edgepack.agent.cli")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return warm_programs.run([*COMMAND, *words], capture_output=True, text=True, timeout=400)


@pytest.fixture
def device(tmp_path: Path, release_keys: Keys) -> Device:
    return Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])


def archive(folder: Path, keys: Keys, release: int, *, is_wrong: bool = False) -> Path:
    bundle = make_bundle(folder / f"r{release}", keys[0], release=release, is_wrong=is_wrong)
    pack(bundle.folder, path := folder / f"r{release}.edgepack")
    return path


@contextmanager
def application(device: Device) -> Iterator[list[str]]:
    """Infer all the time; yield the errors, which end up empty."""
    errors: list[str] = []
    done = threading.Event()
    served = 0

    def infer() -> None:
        nonlocal served
        x = np.zeros((1, WIDTH), np.float32)
        with open_model("tiny", device.state_dir, threads=1) as model:
            while not done.is_set():
                try:
                    model.run({"x": x})
                    served += 1
                except Exception as error:  # noqa: BLE001 (any failure counts)
                    errors.append(repr(error))
                time.sleep(0.02)

    thread = threading.Thread(target=infer)
    thread.start()
    try:
        wait_until(lambda: served > 0, "the first inference")
        yield errors
    finally:
        done.set()
        thread.join(PATIENCE_S)
    assert served > 1


def serving(device: Device) -> tuple[int, bool]:
    pointer = device.pointer()
    return (pointer.bundle.release, pointer.committed) if pointer else (0, False)


def test_a_running_agent_carries_out_what_commands_order(
    tmp_path: Path, device: Device, release_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_programs, "HAVE_CHILDREN", frozenset())  # so that a probe takes time
    one, two, wrong = (archive(tmp_path, release_keys, n, is_wrong=n == 3) for n in (1, 2, 3))
    config = ("--config", device.config)
    with running(device):
        wait_until(lambda: (device.state_dir / SOCKET_FILE).exists(), device.said)
        done = run("install", one, *config, "--soak", "0")
        assert done.returncode == 0, done.stderr
        with application(device) as errors:
            done = run("install", two, *config, "--soak", "0", "--json")
            assert done.returncode == 0, done.stderr
            status = json.loads(done.stdout)
            assert status["is_running"] is True
            assert status["models"]["tiny"]["active"]["bundle"]["release"] == 2
            assert "state=PROBING" in done.stderr
            assert not [*device.state_dir.glob(".edgepack-unpacked-*")]

            done = run("install", wrong, *config, "--soak", "0")
            assert done.returncode == 1
            assert "error: 'tiny-1.3.0' was not installed (ROLLED_BACK)" in done.stderr
            assert "tiny-1.2.0 keeps serving" in done.stderr

            done = run("install", one, *config)
            assert done.returncode == 1
            assert "release 1 is offered, release 2 was committed here" in done.stderr
            assert "state=ROLLED_BACK" not in done.stderr, "the end of the order before"

            done = run("rollback", "tiny", *config)
            assert done.returncode == 0, done.stderr
            assert serving(device) == (1, True)
        assert not errors
        done = run("remove", "tiny", *config)
        assert done.returncode == 0, done.stderr
        done = run("remove", "tiny", *config)
        assert "there is no model 'tiny' on this device" in done.stderr


def _is_on_trial(device: Device, release: int) -> bool:
    return serving(device) == (release, False)


def test_rollback_in_the_soak_of_an_update_goes_back_to_the_committed_release(
    tmp_path: Path, device: Device, release_keys: Keys
) -> None:
    config = ("--config", device.config)
    releases = [archive(tmp_path, release_keys, n) for n in (1, 2, 3)]
    with running(device):
        wait_until(lambda: (device.state_dir / SOCKET_FILE).exists(), device.said)
        for release in (1, 2):
            done = run("install", releases[release - 1], *config, "--soak", "0")
            assert done.returncode == 0, done.stderr
            installing = warm_programs.Popen(
                [*COMMAND, "install", releases[release], *config, "--soak", "400"],
                stderr=subprocess.PIPE,
                text=True,
            )
            wait_until(partial(_is_on_trial, device, release + 1), "the soak")
            done = run("rollback", "tiny", *config)
            assert done.returncode == 0, done.stderr
            assert serving(device) == (release, True)
            _, said = installing.communicate(timeout=PATIENCE_S)
            assert installing.returncode == 1, said


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    """Return a hook's folder: the hook of `staged` waits for the file `go`."""
    hook = tmp_path / "hooks/staged.before.d/10-x"
    hook.parent.mkdir(parents=True)
    lines = f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep .05; done"
    hook.write_text(f"#!/bin/sh\n{lines}\n")
    hook.chmod(0o755)
    return tmp_path / "hooks"


def test_a_killed_command_or_agent_leaves_the_old_release_or_the_proven_new_release(
    tmp_path: Path, release_keys: Keys, hook: Path
) -> None:
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1], hooks=hook)
    one, two, three = (archive(tmp_path, release_keys, n) for n in (1, 2, 3))
    words = ("--config", device.config, "--soak", "0")
    begun, go = tmp_path / "begun", tmp_path / "go"
    go.touch()
    assert run("install", one, *words).returncode == 0
    device.start()
    try:
        wait_until(lambda: (device.state_dir / SOCKET_FILE).exists(), device.said)
        with application(device) as errors:
            # The agent has all files: it proves the release after the command was killed.
            go.unlink()
            begun.unlink()
            command = warm_programs.Popen([*COMMAND, "install", two, *words])
            wait_until(begun.exists, "the hook")
            command.send_signal(signal.SIGKILL)
            command.wait(PATIENCE_S)
            assert serving(device) == (1, True)
            go.touch()
            wait_until(lambda: serving(device) == (2, True), "release 2 serves")

            # The agent is killed: the command repeats its order, and reports the result.
            go.unlink()
            begun.unlink()
            command = warm_programs.Popen(
                [*COMMAND, "install", three, *words], stderr=subprocess.PIPE, text=True
            )
            wait_until(begun.exists, "the hook")
            device.kill()
            go.touch()
            time.sleep(1)  # As a service manager waits: the command must not take the folder.
            device.start()
            _, said = command.communicate(timeout=PATIENCE_S)
            assert command.returncode == 0, said
            assert "the agent has stopped" in said
            assert "from=" not in said, "the command must not carry out the order itself"
            assert serving(device) == (3, True)
        assert not errors
    finally:
        device.kill()


def test_agent_that_starts_waits_for_a_command_that_carries_out_its_order(
    tmp_path: Path, release_keys: Keys, hook: Path
) -> None:
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1], hooks=hook)
    words = ("install", archive(tmp_path, release_keys, 1), "--config", device.config)
    command = warm_programs.Popen(
        [*COMMAND, *words, "--soak", "0"], stderr=subprocess.PIPE, text=True
    )
    wait_until((tmp_path / "begun").exists, "the hook")
    with running(device):
        line = wait_for_line(device, "carries out its order in this state folder")
        assert f"(process {command.pid})" in line
        (tmp_path / "go").touch()
        _, said = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 0, said
        wait_until(lambda: (device.state_dir / SOCKET_FILE).exists(), device.said)
        assert serving(device) == (1, True)
        assert run("rollback", "tiny", "--config", device.config).returncode == 1
        assert device.is_running


def test_agent_without_a_broker_carries_out_orders_of_commands(
    tmp_path: Path, device: Device, release_keys: Keys
) -> None:
    lines = device.config.read_text().split("[broker]")
    device.config.write_text(lines[0] + "[trust]" + lines[1].partition("[trust]")[2])
    with running(device):
        wait_until(lambda: (device.state_dir / SOCKET_FILE).exists(), device.said)
        words = (archive(tmp_path, release_keys, 1), "--config", device.config, "--soak", "0")
        done = run("install", *words)
        assert done.returncode == 0, done.stderr
        assert serving(device) == (1, True)
        told = run("doctor", "--config", device.config).stdout
        assert "the settings name none: the device runs without a fleet" in told
        assert device.stop() == 0
    assert "broker" not in device.said()
    assert "Traceback" not in device.said()


def answer_to(device: Device, packet: bytes) -> str:
    """Return why the agent ends a wrong packet's connection."""
    with connect_to_agent(device.state_dir, PATIENCE_S) as peer:
        with suppress(BrokenPipeError):  # The agent says why before it ends the connection.
            peer.send(packet)
        try:
            found = receive(peer)
        except ConnectionResetError:  # The agent had no room, and ended before it read the packet.
            return "8 orders already"
    assert isinstance(found, OrderEnd)
    return found.problem


def order(bundle: ExampleBundle, soak_s: float = 0.0) -> bytes:
    return encode_packet(LocalOrder(name="tiny", order=bundle.order(0, soak_s=soak_s)))


def test_packets_that_are_wrong_end_their_connection_alone(
    tmp_path: Path, device: Device, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    chunk = encode_packet(Chunk(sha256="0" * 64, index=2**32 - 1, content=b"x"))
    nested = b"o" + b"[" * 100_000
    named = encode_packet(LocalOrder(name="../../x", order=bundle.order(0)))
    with running(device):
        wait_until(lambda: (device.state_dir / SOCKET_FILE).exists(), "the socket")
        for packets in ([b"x"], [b"o{}"], [b"o\xff"], [nested], [chunk], [named], [b"c" * 9]):
            with connect_to_agent(device.state_dir, PATIENCE_S) as peer:
                for packet in packets:
                    peer.send(packet)
                found = receive(peer)
                assert found is None or (isinstance(found, OrderEnd) and found.problem)
        idle = [connect_to_agent(device.state_dir, PATIENCE_S) for _ in range(8)]
        with connect_to_agent(device.state_dir, PATIENCE_S) as peer:
            found = receive(peer)
            assert isinstance(found, OrderEnd)
            assert "8 orders already" in found.problem
        for peer in idle:
            peer.close()
        wait_until(lambda: "orders already" not in answer_to(device, named), device.said)

        # A command that sends no chunk and goes leaves nothing under way.
        with connect_to_agent(device.state_dir, PATIENCE_S) as peer:
            peer.send(order(bundle))
            peer.send(chunk)
            wait_for_line(device, "to=OFFERED")
        wait_for_line(device, "to=REJECTED because=the command that installs it has ended")
        # Of two commands with the same release, the first to go leaves the order to the other.
        with connect_to_agent(device.state_dir, PATIENCE_S) as peer:
            peer.send(order(bundle, soak_s=7.0))
            wait_until(lambda: device.said().count("to=OFFERED") == 2, device.said)
            with connect_to_agent(device.state_dir, PATIENCE_S) as second:
                second.send(order(bundle, soak_s=3.0))
                assert receive(second)
            assert answer_to(device, named)  # In a later turn.
            assert device.said().count("has ended") == 1
        wait_until(lambda: device.said().count("has ended") == 2, device.said)
        # The same order again is over.
        with connect_to_agent(device.state_dir, PATIENCE_S) as peer:
            peer.send(order(bundle, soak_s=7.0))
            receive(peer)
            found = receive(peer)
            assert isinstance(found, OrderEnd)
            assert "was not installed (REJECTED)" in found.problem
        assert run("install", bundle.folder, "--config", device.config).returncode == 0
        assert "Traceback" not in device.said()


def test_only_the_agents_user_may_use_the_socket(tmp_path: Path, device: Device) -> None:
    with running(device):
        path = device.state_dir / SOCKET_FILE
        wait_until(path.exists, "the socket")
        assert path.stat().st_mode & 0o777 == 0o600
        if os.geteuid() == 0:
            with pytest.raises(PermissionError):
                as_nobody(device.state_dir)


def as_nobody(state_dir: Path) -> None:
    """Connect as another user.

    Raises:
        PermissionError: The socket rejects the user.
    """
    code = "import socket, sys; socket.socket(1, 5).connect(sys.argv[1])"
    words = [sys.executable, "-c", code, str(state_dir / SOCKET_FILE)]
    done = subprocess.run(words, user=65534, capture_output=True, text=True, check=False)
    if "PermissionError" in done.stderr:
        raise PermissionError(done.stderr)
    assert done.returncode == 0, done.stderr
