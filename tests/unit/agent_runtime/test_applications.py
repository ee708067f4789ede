"""Reports of applications with a runtime of their own: bounded, checked, and counted."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent.daemon import application_socket
from edgepack.agent.daemon.application_socket import MAX_PROCESSES, SOCKET_FILE, ApplicationSocket
from edgepack.agent.state.holders import HolderWatch, Registration, open_holders
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.telemetry.applications import Applications
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.agent.telemetry.spool import open_spool, spool_folder, spooled_files
from edgepack.agent.telemetry.submission import MAX_BYTES, MOST, read_submission
from edgepack.errors import TransferError
from edgepack.wire.telemetry import Telemetry
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import install_model

Installed = tuple[Path, ActivePointer]

CHILD = """
import json, socket, sys, time
peer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for line in sys.stdin:
    peer.sendto(line.encode(), sys.argv[1])
    print("sent", flush=True)
"""


class Child:
    """A process that sends what it is told, and ends at the end of its input."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "sent\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    pointer = install_model(tmp_path, 1, scale=1.0)
    write_pointer(tmp_path, pointer)
    return tmp_path, pointer


@pytest.fixture
def state_dir(installed: Installed) -> Path:
    return installed[0]


@pytest.fixture
def listening(state_dir: Path) -> Iterator[ApplicationSocket]:
    assert open_spool(state_dir) == ""
    assert open_holders(state_dir) == ""
    listening = ApplicationSocket(state_dir)
    listening.start()
    yield listening
    listening.stop()


@pytest.fixture
def address(state_dir: Path, listening: ApplicationSocket) -> str:
    """Return the path of the socket in the runtime directory, which is short."""
    assert listening.trouble == ""
    return str(spool_folder(state_dir).readlink() / SOCKET_FILE)


@pytest.fixture
def child(address: str) -> Iterator[Child]:
    child = Child(address)
    yield child
    child.end()


@pytest.fixture
def send(address: str) -> Iterator[Callable[[bytes], object]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        yield lambda content: peer.sendto(content, address)


def about(installed: Installed, **fields: Any) -> dict[str, Any]:
    _, pointer = installed
    names = {"model": "tiny", "digest": pointer.digest, "variant": pointer.choice.chosen}
    return {"v": 1} | names | fields


def count_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def collect(collector: LatencyCollector) -> Telemetry:
    (found,) = collector.collect().telemetry
    return found


def test_counts_reach_the_collector_once_and_across_agents(
    installed: Installed, listening: ApplicationSocket, child: Child, state_dir: Path
) -> None:
    counts = {"latencies_ms": [1.0, 2.5, 4.0], "failures": 2, "not_finite": 1}
    child.send(about(installed, **counts))
    child.send(about(installed, latencies_ms=[3.0], bad_inputs=1, bad_input="x"))
    collector = LatencyCollector(state_dir)
    seen: list[Telemetry] = []

    def is_counted() -> bool:
        seen.extend(collector.collect().telemetry)
        return sum(one.latency.count for one in seen) == 4

    wait_until(is_counted)
    assert sum(one.failures for one in seen) == 2
    assert sum(one.not_finite for one in seen) == 1
    assert [one.bad_input for one in seen if one.bad_inputs] == ["x"]
    assert {(one.provider, one.variant) for one in seen} == {
        (installed[1].choice.provider, installed[1].choice.chosen)
    }
    child.send(about(installed, latencies_ms=[5.0]))
    listening.stop()
    assert collect(collector).latency.count == 1
    later = ApplicationSocket(state_dir)
    later.start()
    child.send(about(installed, latencies_ms=[6.0, 7.0]))
    later.stop()
    assert collect(collector).latency.count == 2
    collector.clean()
    assert [*spool_folder(state_dir).glob("*.json")] == []


def test_death_is_evidence_and_a_closed_model_is_none(
    installed: Installed, child: Child, address: str, state_dir: Path
) -> None:
    watch = HolderWatch(state_dir)
    child.send(about(installed, opening="f" * 64))
    wait_until(lambda: any(one.opening for one in watch.look().held))
    (held,) = watch.look().held
    assert held.pid == child.process.pid
    assert held.releases == {installed[1].digest, "f" * 64}
    child.end()
    wait_until(lambda: watch.look().deaths)
    assert [death.held.pid for death in watch.look().deaths] == [child.process.pid]
    polite = Child(address)
    polite.send(about(installed))
    wait_until(lambda: watch.look().held)
    polite.send(about(installed, closed=True))
    polite.end()
    wait_until(lambda: not watch.look().held)
    assert len(watch.look().deaths) == 1


def test_trouble_is_reported_once_and_not_of_a_later_release(
    installed: Installed, state_dir: Path
) -> None:
    open_holders(state_dir)
    later = install_model(state_dir, 2, scale=2.0)
    applications, collector = Applications(state_dir), LatencyCollector(state_dir)

    def report(**fields: Any) -> list[str]:
        content = json.dumps(about(installed, **fields)).encode()
        applications.take(os.getpid(), read_submission(content))
        applications.turn()
        return [one.because for one in collector.collect().troubles]

    assert report() == []
    assert report(trouble="the runtime cannot open it") == ["the runtime cannot open it"]
    assert report(digest=later.digest, variant=later.choice.chosen) == []
    applications.close()


def test_running_inference_and_broken_promise_are_seen(
    installed: Installed, child: Child, state_dir: Path
) -> None:
    watch = HolderWatch(state_dir)
    child.send(about(installed, running_s=70.5, every_s=2.0))
    wait_until(lambda: any(one.running_since for one in watch.look().held))
    (held,) = watch.look().held
    assert time.monotonic() - held.running_since >= 70.5
    assert held.every_s == 2.0
    child.send(about(installed))
    wait_until(lambda: not watch.look().held[0].running_since)


def test_killed_agent_is_no_death_of_its_applications(tmp_path: Path) -> None:
    open_spool(tmp_path)
    open_holders(tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    alive, dead = (Registration(tmp_path, "tiny", pid=pid) for pid in (os.getpid(), ended.pid))
    alive.note_death()
    dead.note_death()
    listening = ApplicationSocket(tmp_path)
    listening.start()
    listening.stop()
    assert [one.held.pid for one in HolderWatch(tmp_path).look().deaths] == [ended.pid]


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"model": "other"}, "for a model that is not on this device"),
        ({"model": "../x"}, "no model can have that name"),
        ({"digest": "0" * 64}, "for a release that is not on this device"),
        ({"digest": "../../etc"}, "malformed"),
        ({"variant": "gpu"}, "for a release that is not on this device"),
        ({"digest": "", "failures": 1}, "inferences without a release"),
        ({"latencies_ms": [-1.0]}, "malformed"),
        ({"latencies_ms": [1e300]}, "malformed"),
        ({"latencies_ms": [1.0] * (MOST + 1)}, "malformed"),
        ({"latencies_ms": "x"}, "malformed"),
        ({"failures": 2**60}, "malformed"),
        ({"not_finite": 1}, "more inferences are not finite"),
        ({"running_s": -1.0}, "malformed"),
        ({"v": 2}, "newer version"),
        ({"v": "x"}, "malformed"),
        ({"trouble": "x" * 501}, "malformed"),
    ],
)
def test_wrong_report_is_rejected_and_changes_nothing(
    installed: Installed, state_dir: Path, changes: dict[str, Any], because: str
) -> None:
    open_holders(state_dir)
    with pytest.raises(TransferError, match=because):
        Applications(state_dir).take(
            os.getpid(), read_submission(json.dumps(about(installed, **changes)).encode())
        )
    assert HolderWatch(state_dir).look().held == ()
    assert spooled_files(state_dir) == {}


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{", b"[" * MAX_BYTES, b"null", b'{"v":1}', b"1e999"]
)
def test_malformed_content_is_rejected(content: bytes) -> None:
    with pytest.raises(TransferError, match="malformed"):
        read_submission(content)


def test_hostile_datagrams_leave_the_socket_working(
    installed: Installed,
    listening: ApplicationSocket,
    send: Callable[[bytes], object],
    address: str,
    child: Child,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(application_socket, "BURST", 20.0)
    send(b" " * (MAX_BYTES + 1))
    wait_until(lambda: listening.dropped.get("submission too long, or with descriptors") == 1)
    files = count_files()
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", 0, 1))
    peer.sendmsg([json.dumps(about(installed)).encode()], [rights], 0, address)
    wait_until(lambda: listening.dropped.get("submission too long, or with descriptors") == 2)
    peer.close()
    assert count_files() == files, "no descriptor of a sender stays open"
    for _ in range(100):
        send(b"{")
    wait_until(lambda: listening.dropped.get("too many submissions of a process", 0) > 0)
    child.send(about(installed, latencies_ms=[1.0]))  # Another process has its own allowance.
    wait_until(lambda: HolderWatch(installed[0]).look().held)


def fill(peer: socket.socket, address: str) -> None:
    for _ in range(100_000):
        peer.sendto(b"{", socket.MSG_DONTWAIT, address)


def test_full_socket_rejects_instead_of_letting_wait(
    address: str, listening: ApplicationSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application_socket, "MOST_A_TURN", 1)
    monkeypatch.setattr(application_socket, "PAUSE_S", 400.0)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with pytest.raises(BlockingIOError), peer:
        fill(peer, address)


def test_after_a_full_socket_no_hang_and_no_death_is_believed(
    installed: Installed,
    child: Child,
    send: Callable[[bytes], object],
    state_dir: Path,
    listening: ApplicationSocket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of the inference, or of the model, may have been rejected."""
    monkeypatch.setattr(application_socket, "FULL_S", 400.0)
    watch = HolderWatch(state_dir)
    child.send(about(installed, running_s=70.5))
    wait_until(lambda: any(one.running_since for one in watch.look().held))
    listening._queue_length = 1
    send(b"{")
    wait_until(lambda: not watch.look().held[0].running_since)
    child.end()
    wait_until(lambda: not watch.look().held)
    assert watch.look().deaths == ()


def test_number_of_processes_is_bounded(
    installed: Installed,
    listening: ApplicationSocket,
    send: Callable[[bytes], object],
    child: Child,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(application_socket, "MAX_PROCESSES", 1)
    child.send(about(installed))
    send(json.dumps(about(installed)).encode())
    wait_until(lambda: listening.dropped)
    assert [*listening.dropped] == ["submission of more than 1 processes"]
    assert MAX_PROCESSES > 1
    child.process.send_signal(signal.SIGKILL)


def test_removed_socket_is_made_again(
    installed: Installed, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application_socket, "TURN_S", 0.01)
    listening = ApplicationSocket(state_dir)
    listening.start()
    (state_dir / SOCKET_FILE).unlink()
    wait_until((state_dir / SOCKET_FILE).is_socket)
    listening.stop()
    assert not (state_dir / SOCKET_FILE).exists()
