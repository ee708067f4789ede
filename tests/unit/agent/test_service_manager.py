"""Messages to the service manager, over a real datagram socket, and the table of reloads."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepack.agent.config import AgentConfig, BrokerConfig, TrustConfig
from edgepack.agent.daemon.reload import AT_ONCE, merge_settings
from edgepack.agent.daemon.service_manager import ServiceManager, find_service_manager
from edgepack.agent.state import lock
from edgepack.errors import DeviceError


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield receiver


def test_messages_follow_the_protocol(heard: socket.socket) -> None:
    manager = ServiceManager(heard.getsockname())
    manager.ready()
    manager.reloading()
    manager.report("2 models\nREADY=0")
    manager.report("2 models\nREADY=0")
    manager.waiting("the disk is full", 65.0)
    manager.stopping()
    assert heard.recv(999) == b"READY=1"
    assert heard.recv(999).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    assert heard.recv(999) == b"STATUS=2 models READY=0", "a text adds no line, and is sent once"
    assert heard.recv(999) == b"EXTEND_TIMEOUT_USEC=65000000\nSTATUS=the disk is full"
    assert heard.recv(999).startswith(b"STOPPING=1\n")


def test_signs_of_life_are_sent_when_due_and_never_without_a_watchdog(
    heard: socket.socket,
) -> None:
    now = [100.0]
    manager = ServiceManager(heard.getsockname(), 40.0, monotonic=lambda: now[0])
    for step in (0.0, 1.0, 8.0, 1.0, 100.0):
        now[0] += step
        manager.sign()
    assert [heard.recv(99) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    ServiceManager(heard.getsockname()).sign()
    with pytest.raises(BlockingIOError):
        heard.recv(99)


def test_a_manager_that_is_gone_or_reads_nothing_does_not_stop_the_agent(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "gone")).ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind("\0edgepack-deaf-manager")
        manager = ServiceManager("@edgepack-deaf-manager")
        for _ in range(2000):
            manager.ready()
        assert deaf.recv(99) == b"READY=1"


@pytest.mark.parametrize(
    ("limit", "process", "sends"),
    [
        ("4000000", "", True),
        ("4000000", "own", True),
        ("4000000", "1", False),
        ("-1", "", False),
        ("4_0", "", False),
        ("99999999999999999999", "", False),
        ("", "", False),
    ],
)
def test_variables_are_checked_and_taken_out(
    heard: socket.socket, limit: str, process: str, sends: bool
) -> None:
    environment = {
        "NOTIFY_SOCKET": heard.getsockname(),
        "WATCHDOG_USEC": limit,
        "WATCHDOG_PID": process.replace("own", str(os.getpid())),
        "HOME": "/",
    }
    find_service_manager(environment).sign()
    assert environment == {"HOME": "/"}
    if sends:
        assert heard.recv(99) == b"WATCHDOG=1"
    else:
        with pytest.raises(BlockingIOError):
            heard.recv(99)


def test_no_other_address_is_written_to() -> None:
    find_service_manager({"NOTIFY_SOCKET": "vsock:2:1"}).ready()


def test_a_start_that_waits_for_the_disk_is_not_given_up(
    tmp_path: Path, heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = [False, True]

    @contextlib.contextmanager
    def locked(_: Path) -> Iterator[None]:
        if not works.pop(0):
            full = OSError(errno.ENOSPC, "No space left on device")
            raise DeviceError("cannot use the state folder: full") from full
        yield

    monkeypatch.setattr(lock, "lock_state_dir", locked)
    manager = ServiceManager(heard.getsockname())
    with lock.lock_when_disk_works(tmp_path, 0.0, manager.waiting):
        pass
    assert heard.recv(999) == (
        b"EXTEND_TIMEOUT_USEC=60000000\nSTATUS=cannot use the state folder: full"
    )


SETTINGS = AgentConfig(
    device="cam-1", state_dir="/s", trust=TrustConfig(keys=("a",)), broker=BrokerConfig(url="a")
)


def test_each_key_that_applies_at_once_exists() -> None:
    for dotted in AT_ONCE:
        section, _, key = dotted.partition(".")
        assert not key or hasattr(getattr(SETTINGS, section), key), dotted


def test_a_reload_takes_what_it_can_and_names_the_rest() -> None:
    wanted = replace(
        SETTINGS,
        state_dir="/t",
        broker=BrokerConfig(url="b"),
        trust=TrustConfig(keys=("a", "b"), root="r"),
        limits=replace(SETTINGS.limits, bandwidth="1 MB/s"),
        watch=replace(SETTINGS.watch, slowdown=3.0, interval_s=30.0),
    )
    found = merge_settings(SETTINGS, wanted)
    assert found.applied == ("trust.keys", "limits.bandwidth", "watch.slowdown")
    assert found.waiting == ("state_dir", "broker.url", "trust.root", "watch.interval_s")
    assert found.config == replace(
        SETTINGS,
        trust=TrustConfig(keys=("a", "b")),
        limits=wanted.limits,
        watch=replace(SETTINGS.watch, slowdown=3.0),
    )
    assert merge_settings(found.config, wanted).applied == ()
    assert merge_settings(SETTINGS, replace(SETTINGS, broker=None)).waiting == ("broker",)
