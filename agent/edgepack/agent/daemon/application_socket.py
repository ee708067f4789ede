"""Datagram socket of the agent, for applications with a runtime of their own.

The kernel states the process of each datagram, so that no process can report for another. The
agent watches each process by a descriptor (pidfd): the end of a process that did not close its
model is a death. All content is bounded, checked and counted; a full socket rejects datagrams, and
never lets a sender wait.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from edgepack.agent.state.holders import remove_stale_proxies
from edgepack.agent.state.model_server import socket_folder
from edgepack.agent.state.state_file import share_path
from edgepack.agent.state.unix_socket import CREDENTIALS, bind_path
from edgepack.agent.telemetry.applications import TURN_S, Applications
from edgepack.agent.telemetry.submission import MAX_BYTES, read_submission
from edgepack.errors import TransferError

log = logging.getLogger(__name__)

SOCKET_FILE = "applications.sock"
_MODE = 0o660
MOST_A_TURN = 1024
"""Datagrams of a turn; the kernel queues fewer, so that all that a dead process sent are read."""
PAUSE_S = 0.05
"""Pause after a turn with that many: a flood takes a part of a core, and no more."""
RATE, BURST = 50.0, 200.0
"""Datagrams a second of a process, and at once."""
_MAX_ALLOWANCES = 256
MAX_PROCESSES = 64
FULL_S = 1.0
"""After the socket was full, ends of inferences and models may be lost: a process that ends so soon
is no death."""
_QUEUE_LENGTH = Path("/proc/sys/net/unix/max_dgram_qlen")


class ApplicationSocket:
    """The socket, and the thread that reads the socket.

    Args:
        state_dir: The agent's state folder.

    Attributes:
        trouble: Why applications cannot report, as a sentence; "" without a problem.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._applications = Applications(state_dir)
        self._socket: socket.socket | None = None
        self._path = Path()
        self._poll = select.poll()
        self._processes: dict[int, int] = {}
        self._allowances: dict[int, tuple[float, float]] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.POLLIN)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="applications", daemon=True)
        self._dropped: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._queue_length, self._full_until = _read_queue_length(), 0.0
        self.trouble = ""

    @property
    def dropped(self) -> Mapping[str, int]:
        """Numbers of dropped datagrams, by reason; and of lost inferences."""
        with self._lock:
            return dict(self._dropped)

    def start(self) -> None:
        """Listen from now on."""
        try:
            remove_stale_proxies(self._state_dir)
        except OSError as error:  # What ended with the agent may count as died.
            log.warning("registrations of an earlier agent cannot be read: %s", error)
        self._open()
        self._thread.start()

    def stop(self) -> None:
        """Read what was sent, and write all counts."""
        self._stop.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def _run(self) -> None:
        turn_at = time.monotonic() + TURN_S
        while not self._stop.is_set():
            try:
                pause_ms = max(0.0, turn_at - time.monotonic()) * 1000
                ready = {file for file, _ in self._poll.poll(pause_ms)}
                count = self._drain()  # First: a process may have closed its model, and ended.
                if count >= self._queue_length:
                    self._full_until = time.monotonic() + FULL_S
                    self._applications.forget_running()
                is_certain = time.monotonic() >= self._full_until
                for pid in [pid for pid, file in self._processes.items() if file in ready]:
                    self._forget(pid, has_died=is_certain)
                if time.monotonic() >= turn_at:
                    turn_at = time.monotonic() + TURN_S
                    self._applications.turn()
                    if not self._path.is_socket():
                        self._open()
                if count >= MOST_A_TURN:
                    self._stop.wait(PAUSE_S)
            except Exception as error:  # The outermost loop of what peers can cause.
                self._drop("fault in edgepack", repr(error))
                log.exception("fault caused by an application")
                self._stop.wait(PAUSE_S)
        self._drain()
        self._applications.close()

    def _open(self) -> None:
        """Bind the socket; a folder that cannot be written is tried again at each turn."""
        self._close()
        try:
            self._socket, self._path = _bind(socket_folder(self._state_dir))
            self._poll.register(self._socket, select.POLLIN)
            self.trouble = ""
        except OSError as error:
            trouble = f"applications of other runtimes cannot report: {error.strerror or error}"
            if trouble != self.trouble:
                log.warning("%s", trouble)
            self.trouble = trouble

    def _close(self) -> None:
        if self._socket is not None:
            self._poll.unregister(self._socket)
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _drain(self) -> int:
        """Read what was sent; return the number of datagrams."""
        for number in range(MOST_A_TURN):
            if self._socket is None:
                return number
            try:
                content, ancillary, flags, _ = self._socket.recvmsg(
                    MAX_BYTES,
                    # Room for nothing else: the kernel closes descriptors that a sender passes.
                    socket.CMSG_SPACE(CREDENTIALS.size),
                    socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
                )
            except BlockingIOError:
                return number
            try:
                self._take(content, ancillary, flags)
            except TransferError as error:
                self._drop(error.problem.partition(":")[0], error.problem)
        return MOST_A_TURN

    def _take(self, content: bytes, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        """Check a datagram, and count its content.

        Raises:
            TransferError: The datagram is not accepted.
        """
        pid = 0
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid = CREDENTIALS.unpack(data)[0]
        if pid <= 0:
            raise TransferError("submission of a process that the agent cannot see")
        if not self._may_send(pid):
            raise TransferError("too many submissions of a process")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise TransferError("submission too long, or with descriptors")
        said = read_submission(content)
        if pid not in self._processes and len(self._processes) >= MAX_PROCESSES:
            raise TransferError(f"submission of more than {MAX_PROCESSES} processes")
        self._applications.take(pid, said)
        if said.lost:
            self._drop("inferences that applications lost", said.model, said.lost)
        if not self._applications.has(pid):
            self._forget(pid, has_died=False)
        elif pid not in self._processes:
            self._watch(pid)

    def _watch(self, pid: int) -> None:
        """Watch a process until the process ends."""
        try:
            file = os.pidfd_open(pid)
        except OSError as error:
            is_over = isinstance(error, ProcessLookupError)
            self._applications.end(pid, has_died=is_over)
            if not is_over:
                raise TransferError(
                    f"submission of a process that cannot be watched: {error.strerror}"
                ) from error
        else:
            self._processes[pid] = file
            self._poll.register(file, select.POLLIN)

    def _forget(self, pid: int, *, has_died: bool) -> None:
        self._applications.end(pid, has_died=has_died)
        if (file := self._processes.pop(pid, None)) is not None:
            self._poll.unregister(file)
            os.close(file)

    def _may_send(self, pid: int) -> bool:
        """Take a datagram off the allowance of a process."""
        now = time.monotonic()
        if len(self._allowances) >= _MAX_ALLOWANCES and pid not in self._allowances:
            self._allowances.clear()
        left, at = self._allowances.get(pid, (BURST, now))
        left = min(BURST, left + RATE * (now - at))
        self._allowances[pid] = (max(0.0, left - 1), now)
        return left >= 1

    def _drop(self, reason: str, detail: str, number: int = 1) -> None:
        """Count, and log the first, and then with each tenfold number."""
        with self._lock:
            before = self._dropped[reason]
            self._dropped[reason] += number
            count = self._dropped[reason]
        if len(str(count)) > len(str(before)) or not before:
            log.warning("dropped=%s count=%d detail=%s", reason, count, ascii(detail)[:300])


def _bind(folder: Path) -> tuple[socket.socket, Path]:
    """Return a socket bound in a folder, and its path.

    Raises:
        OSError: The socket cannot be made.
    """
    path = folder / SOCKET_FILE
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    bind_path(made, path)
    try:
        share_path(path, folder.stat().st_gid, _MODE)
    except OSError:
        made.close()
        raise
    return made, path


def _read_queue_length() -> int:
    """Return the number of datagrams from which on the kernel may have rejected some."""
    try:
        return int(_QUEUE_LENGTH.read_text())
    except (OSError, ValueError):
        return 10  # The kernel's default.
