"""Keeper of a folder and of a process on a board, for a build on another machine.

`link` sends the text of this file to the board's Python over ssh. The keeper needs Python 3.11 and
the standard library. Requests are lines of JSON on stdin, replies lines of JSON on stdout; bytes
follow a line that has `size`. An empty line only shows that the build lives.

1. All files lie in a single temporary folder, which goes with the keeper: at the end of stdin (the
   build ended or was killed), after `SILENCE_S` without a byte (the network is gone), at a signal.
2. A keeper ends an earlier keeper of the same build, which a lost connection left behind, and
   removes the folders of keepers that were killed.
"""

import contextlib
import fcntl
import importlib
import importlib.util
import io
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

HELLO = "edgepack-keeper "
PREFIX = "edgepack-prove-"
SILENCE_S = 120
_PIECE_BYTES = 1 << 20
_MOST_ANSWER_BYTES = 1 << 24
_LOCK = "keeper.pid"
_RUN = (
    "import runpy, sys; sys.path[:0] = sys.argv[2:]; "
    "runpy.run_module(sys.argv[1], run_name='__main__', alter_sys=True)"
)


class Keeper:
    """Serves a build until the end of stdin.

    Args:
        folder: The temporary folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = [str(folder / "code"), str(folder / "wheels")]
        self._unread = b""
        self._child: subprocess.Popen[bytes] | None = None
        sys.path[:0] = self._path

    def serve(self) -> None:
        """Answer every request, in order."""
        self._reply(
            HELLO,
            folder=str(self._folder),
            python=list(sys.version_info[:2]),
            machine=platform.machine(),
            libc=platform.libc_ver()[0] or "musl",
        )
        while True:
            line = self._read_line()
            if line in (b"", b"stop"):  # a beat, or what came after the answer to an `ask`
                continue
            request = json.loads(line)
            try:
                getattr(self, "do_" + request.pop("do"))(**request)
            except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
                self._reply(problem=f"{type(error).__name__}: {error}")

    def do_unpack(self, size: int) -> None:
        """Unpack a tar archive: modules."""
        with tarfile.open(fileobj=io.BytesIO(self._read(size))) as archive:
            if hasattr(tarfile, "data_filter"):  # Debian 12 has 3.11.2, the filter came in 3.11.4
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(self._path[0])
        self._reply()

    def do_wheel(self, size: int) -> None:
        """Unpack a wheel."""
        with zipfile.ZipFile(io.BytesIO(self._read(size))) as archive:
            archive.extractall(self._path[1])
        self._reply()

    def do_missing(self, names: list[str]) -> None:
        """Reply which modules are not here."""
        importlib.invalidate_caches()
        self._reply(missing=[name for name in names if importlib.util.find_spec(name) is None])

    def do_put(self, path: str, size: int) -> None:
        """Write a file; its bytes are read in any case."""
        place, problem, left = self._folder / path, "", size
        with contextlib.ExitStack() as stack:
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(place.open("wb"))
            except OSError as error:
                problem = str(error)
            while left:
                piece = self._read(min(left, _PIECE_BYTES))
                left -= len(piece)
                try:
                    if not problem:
                        file.write(piece)
                except OSError as error:
                    problem = str(error)
        self._reply(problem=problem)

    def do_get(self, path: str, most: int) -> None:
        """Send a file."""
        place = self._folder / path
        size = place.stat().st_size
        if size > most:
            self._reply(problem=f"{path} has {size:,} bytes, more than {most:,}")
            return
        with place.open("rb") as file:
            self._reply(size=size)
            while piece := file.read(_PIECE_BYTES):
                _write(piece)

    def do_remove(self, path: str) -> None:
        """Remove a folder."""
        shutil.rmtree(self._folder / path, ignore_errors=True)
        self._reply()

    def do_start(self, module: str) -> None:
        """End the running process, and start a module."""
        self.end_child()
        with (self._folder / "stderr").open("wb") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-c", _RUN, module, *self._path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={
                    **os.environ,
                    "TMPDIR": str(self._folder),
                    "ORT_DISABLE_TELEMETRY": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
            )
        with contextlib.suppress(OSError):  # where memory ends, the keeper stays to say so
            Path(f"/proc/{self._child.pid}/oom_score_adj").write_text("1000")
        self._reply()

    def do_ask(self, size: int) -> None:
        """Pass a line to the process, and send the line that it answers; or how it ended."""
        child, request, answer = self._child, self._read(size), b""
        if child is None or child.stdin is None or child.stdout is None:
            self._reply(ended="no process runs")
            return
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(request + b"\n")
            child.stdin.flush()
        while not answer.endswith(b"\n"):
            if b"stop\n" in self._unread:
                self._unread = b""
                self.end_child()
                self._reply(ended="stopped")
                return
            answers = child.stdout.fileno()
            ready, _, _ = select.select([0, answers], [], [])
            if 0 in ready:
                self._receive()
            if answers in ready:
                piece = os.read(answers, _PIECE_BYTES)
                answer += piece
                if not piece or len(answer) > _MOST_ANSWER_BYTES:
                    self._reply(ended=self._describe_end(child))
                    self.end_child()
                    return
        self._reply(size=len(answer))
        _write(answer)

    def end_child(self) -> None:
        """Kill the process with all that it started."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.communicate()
        self._child = None

    def _describe_end(self, child: "subprocess.Popen[bytes]") -> str:
        try:
            code = child.wait(5.0)
        except subprocess.TimeoutExpired:
            return "closed its output"
        lines = (
            (self._folder / "stderr").read_bytes()[-4096:].decode("utf-8", "replace").split("\n")
        )
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
        name = signal.Signals(-code).name if code < 0 else ""
        said = f": {last}" if last else ""
        return f"crashed with {name}{said}" if name else f"ended with exit code {code}{said}"

    def _reply(self, prefix: str = "", **words: Any) -> None:
        _write(f"{prefix}{json.dumps(words)}\n".encode())

    def _read_line(self) -> bytes:
        while b"\n" not in self._unread:
            self._receive()
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _read(self, size: int) -> bytes:
        pieces, left = [self._unread[:size]], size - len(self._unread[:size])
        self._unread = self._unread[size:]
        while left:
            self._receive()
            pieces.append(self._unread[:left])
            self._unread = self._unread[left:]
            left -= len(pieces[-1])
        return b"".join(pieces)

    def _receive(self) -> None:
        """Wait for bytes of the build; end at the end of stdin."""
        piece = os.read(0, _PIECE_BYTES)
        if not piece:
            raise SystemExit(0)
        signal.alarm(SILENCE_S)
        self._unread += piece


def _write(content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(1, view) :]


def _sweep(token: str) -> None:
    """End an earlier keeper of this build, and remove folders of killed keepers."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            lock = folder / _LOCK
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if folder.name.startswith(f"{PREFIX}{token}-") and not _is_free(lock):
                os.kill(int(lock.read_text()), signal.SIGTERM)
                until = time.monotonic() + 5.0
                while not _is_free(lock) and time.monotonic() < until:
                    time.sleep(0.02)
            if _is_free(lock):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(lock: Path) -> bool:
    """Return True if no keeper holds a folder's lock."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:  # a keeper that begins, or ends
        return not lock.parent.exists()
    return True


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main(token: str) -> None:
    """Serve a build.

    Args:
        token: Names the build.
    """
    for number in (signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    signal.alarm(SILENCE_S)
    _sweep(token)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{token}-"))
    keeper = Keeper(folder)
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(str(os.getpid()))
            lock.flush()
            keeper.serve()
    except BrokenPipeError:
        pass  # the connection is gone
    finally:
        for number in (signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        keeper.end_child()
        shutil.rmtree(folder, ignore_errors=True)
