"""Supervision of the model server: a child of the agent that runs for as long as the agent.

The server is started again after a crash, with growing pauses. A server that does not answer, or in
which an inference hangs, is killed, and started again. The server ends by itself at the end of its
standard input, so that no server outlives a killed agent.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from edgepack.agent.state.model_server import (
    connect_to_server,
    forget_server_state,
    note_server_state,
)
from edgepack.python_child import (
    DEVNULL,
    PIPE,
    PythonChild,
    TimeoutExpired,
    python_command,
    start_python,
)

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
CALM_S = 60.0
"""A server that ran for so long begins with the first pause again."""
LOOK_S = 5.0
"""Seconds between two looks at whether the server answers."""
ANSWER_S = 10.0
OPENING_S = 60.0
"""How long a server may take to listen."""
STOP_S = 4.0
"""How long a server may take to drain and end; then it is killed."""
_LIVE = b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n"
_FAILED_LOOKS = 2
_POLL_S = 0.2


class ModelServer:
    """The server's process, on a thread of its own.

    Args:
        state_dir: The agent's state folder.
        config_path: The agent's settings; None runs no server.
    """

    def __init__(self, state_dir: Path, config_path: Path | None) -> None:
        self._state_dir, self._config_path = state_dir, config_path
        self._child: PythonChild | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="model-server", daemon=True)

    @contextlib.contextmanager
    def spared(self) -> Iterator[tuple[int, ...]]:
        """Yield the process of the server, which is no stray; no other is started meanwhile."""
        with self._lock:
            yield (self._child.pid,) if self._child is not None else ()

    def start(self) -> None:
        """Start the server, if the settings ask for one."""
        if self._config_path is None:
            forget_server_state(self._state_dir)
        else:
            self._thread.start()

    def begin_stop(self) -> None:
        """Tell the server to answer its running requests and end."""
        self._stop.set()
        child = self._child
        if child is not None and child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()

    def stop(self) -> None:
        """Wait until the server has ended."""
        self.begin_stop()
        if self._thread.is_alive():
            self._thread.join(STOP_S + 0.5)

    def _run(self) -> None:
        pause_s, restarts, because = FIRST_PAUSE_S, 0, ""
        while not self._stop.is_set():
            began = time.monotonic()
            because = self._run_once(restarts, because)
            if self._stop.is_set():
                break
            restarts += 1
            if time.monotonic() - began >= CALM_S:
                pause_s = FIRST_PAUSE_S
            log.warning("the model server %s; it starts again in %g s", because, pause_s)
            note_server_state(self._state_dir, is_running=False, restarts=restarts, because=because)
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        forget_server_state(self._state_dir)

    def _run_once(self, restarts: int, last: str) -> str:
        """Run the server until the process ends; return how the process ended."""
        command = (*python_command("edgepack.agent.cli"), "serve", "--config")
        words = (*command, str(self._config_path), "--until-stdin-ends")
        try:
            with self._lock:
                if self._stop.is_set():
                    return ""
                self._child = child = start_python(
                    words, stdin=PIPE, stdout=DEVNULL, stderr=sys.stderr.fileno()
                )
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        note_server_state(self._state_dir, is_running=True, restarts=restarts, because=last)
        because = ""
        try:
            because = self._watch(child)
        finally:
            with self._lock:
                self._child = None
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()
        return because or _describe(child.returncode)

    def _watch(self, child: PythonChild) -> str:
        """Wait for the end of the process; kill a process that hangs, and return the reason."""
        began, failed = time.monotonic(), 0
        look_at = began + LOOK_S
        while not self._stop.is_set():
            if _has_ended(child, _POLL_S):
                return ""
            if time.monotonic() < look_at:
                continue
            failed = 0 if self._is_live() else failed + 1
            look_at = time.monotonic() + LOOK_S
            if failed >= _FAILED_LOOKS and time.monotonic() - began > OPENING_S:
                _kill(child)
                return "did not answer, or an inference hung: it was killed"
        if not _has_ended(child, STOP_S):
            _kill(child)
        return ""

    def _is_live(self) -> bool:
        """Ask the server over its socket."""
        try:
            with connect_to_server(self._state_dir, ANSWER_S) as peer:
                peer.sendall(_LIVE)
                return peer.recv(1024).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False


def _has_ended(child: PythonChild, wait_s: float) -> bool:
    try:
        child.wait(wait_s)
    except TimeoutExpired:
        return False
    return True


def _kill(child: PythonChild) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _describe(code: int) -> str:
    """Return how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"
