"""The keeper on a board: whatever ends the build, nothing stays there."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.packager.boards import keeper
from tests.simulators.children import has_ended
from tests.simulators.waiting import PATIENCE_S

_SLEEPER = "import time, sys\nprint('begun', file=sys.stderr, flush=True)\ntime.sleep(600)\n"


class Client:
    """A build's end of the keeper's pipes.

    Args:
        temporary: The board's folder for temporary files.
        token: Names the build.
        silence_s: Seconds after which a silent build is gone.
    """

    def __init__(self, temporary: Path, token: str = "a", silence_s: int = 120) -> None:
        source = Path(keeper.__file__).read_text()
        source = source.replace(f"SILENCE_S = {keeper.SILENCE_S}", f"SILENCE_S = {silence_s}")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", f"{source}\nmain({token!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        self.hello = json.loads(self.line().removeprefix(keeper.HELLO.encode()))

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def send(self, do: str, payload: bytes | None = None, **words: Any) -> None:
        assert self.process.stdin is not None
        size = {} if payload is None else {"size": len(payload)}
        header = json.dumps({"do": do, **words, **size}).encode()
        self.process.stdin.write(header + b"\n" + (payload or b""))
        self.process.stdin.flush()

    def request(self, do: str, payload: bytes | None = None, **words: Any) -> dict[str, Any]:
        self.send(do, payload, **words)
        reply: dict[str, Any] = json.loads(self.line())
        return reply

    def start(self, code: str) -> int:
        """Start a module with this code, and return its process id."""
        assert self.request("put", code.encode(), path="code/module.py") == {"problem": ""}
        assert self.request("start", module="module") == {}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(children.read_text().split()[0])


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Return a function that starts a keeper in the test's folder."""
    clients: list[Client] = []

    def start(**words: Any) -> Client:
        clients.append(Client(tmp_path, **words))
        return clients[-1]

    yield start
    for client in clients:
        client.process.kill()
        with client.process:
            pass


def _wait_until_empty(folder: Path) -> list[Path]:
    until = time.monotonic() + PATIENCE_S
    while (left := list(folder.iterdir())) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _end_of_stdin(client: Client) -> None:
    assert client.process.stdin is not None
    client.process.stdin.close()


def _hang_up(client: Client) -> None:
    client.process.send_signal(signal.SIGHUP)


def _silence(_: Client) -> None:
    """Send nothing more."""


@pytest.mark.parametrize(
    ("end", "silence_s"), [(_end_of_stdin, 120), (_hang_up, 120), (_silence, 1)]
)
def test_end_of_build_ends_process_that_computes_and_removes_folder(
    tmp_path: Path,
    connect: Callable[..., Client],
    end: Callable[[Client], None],
    silence_s: int,
) -> None:
    client = connect(silence_s=silence_s)
    pid = client.start(_SLEEPER)
    client.send("ask", b"{}")
    assert list(tmp_path.iterdir()) == [Path(client.hello["folder"])]
    end(client)
    assert has_ended(pid)
    assert _wait_until_empty(tmp_path) == []


def test_next_keeper_of_build_ends_the_one_that_a_lost_connection_left(
    tmp_path: Path, connect: Callable[..., Client]
) -> None:
    pid = (lost := connect()).start(_SLEEPER)
    other = connect(token="b")
    again = connect()
    assert has_ended(pid)
    assert has_ended(lost.process.pid)
    kept = sorted([other.hello["folder"], again.hello["folder"]])
    assert sorted(map(str, tmp_path.iterdir())) == kept, "another build's stays"


def test_folder_of_killed_keeper_goes_with_the_next_build(
    tmp_path: Path, connect: Callable[..., Client]
) -> None:
    killed = connect()
    killed.process.kill()
    killed.process.wait()
    assert list(tmp_path.iterdir()) == [Path(killed.hello["folder"])]
    after = connect(token="b")
    assert list(tmp_path.iterdir()) == [Path(after.hello["folder"])]


def test_answers_come_beside_signs_of_life_and_a_stop_ends_a_process_that_hangs(
    connect: Callable[..., Client],
) -> None:
    client = connect()
    client.start("import sys\nfor line in sys.stdin: print(len(line), flush=True)")
    client.send("ask", b"12345")
    assert client.process.stdin is not None
    client.process.stdin.write(b"\n\n")
    client.process.stdin.flush()
    assert json.loads(client.line()) == {"size": 2}
    assert client.line() == b"6\n"
    pid = client.start(_SLEEPER)
    client.send("ask", b"{}")
    client.process.stdin.write(b"\nstop\n")
    client.process.stdin.flush()
    assert json.loads(client.line()) == {"ended": "stopped"}
    assert has_ended(pid)
    assert client.request("ask", b"{}") == {"ended": "no process runs"}


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashed with SIGSEGV"),
        ("raise SystemExit('no such chip')", "ended with exit code 1: no such chip"),
    ],
)
def test_process_that_ends_is_reported_with_its_last_line(
    connect: Callable[..., Client], code: str, ended: str
) -> None:
    client = connect()
    client.request("put", code.encode(), path="code/module.py")
    client.request("start", module="module")
    assert client.request("ask", b"{}") == {"ended": ended}


def test_file_that_cannot_be_written_or_read_is_a_problem_and_the_next_request_works(
    tmp_path: Path, connect: Callable[..., Client]
) -> None:
    client = connect()
    (Path(client.hello["folder"]) / "file").touch()
    assert "File exists" in client.request("put", b"x" * 99, path="file/below")["problem"]
    assert client.request("put", b"abc", path="new/below") == {"problem": ""}
    assert client.request("get", path="new/below", most=3) == {"size": 3}
    assert client.process.stdout is not None
    assert client.process.stdout.read(3) == b"abc"
    assert "more than 2" in client.request("get", path="new/below", most=2)["problem"]
    assert "No such file" in client.request("get", path="missing", most=2)["problem"]
    assert "BadZipFile" in client.request("wheel", b"no zip")["problem"]
    assert client.request("missing", names=["json", "no_such"]) == {"missing": ["no_such"]}
