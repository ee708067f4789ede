"""The process in which the shadow release runs (`edgepack.agent.runtime.shadow`).

A thread opens the release and requests inferences; other threads check the process now and then,
and end the process at a limit of time or memory. The waiting thread then gets no answer.
"""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, BinaryIO

import msgspec

from edgepack.agent.runtime.child import describe_end, taken_bytes
from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.runtime.shadow import CHILD, ShadowAnswer, ShadowRequest, write_inference
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError
from edgepack.python_child import PIPE, PythonChild, start_python

OPEN_S = 120.0
"""How long it may take to open a release, seconds; a probe has as long by default."""
ANSWER_S = 60.0
"""How long it may take for one inference."""

_MAX_ANSWER = 64 * 1024
_END_S = 5.0
"""How long a child may take to end that said its last; then it is killed."""
_POLL_S = 0.05


class ShadowProcess:
    """A child, started by `open`, that any thread may end.

    Args:
        memory_bytes: Limit of its memory.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._errors: BinaryIO | None = None
        self._child: PythonChild | None = None
        self._deadline = math.inf
        self._because = ""
        self._guard = threading.Lock()

    def open(self, request: ShadowRequest, errors: BinaryIO) -> None:
        """Start the process, and wait until the release is ready.

        Args:
            request: Release to open.
            errors: A file for the process's stderr, open while the process runs.

        Raises:
            DeviceError: The process cannot be started, or does not answer.
        """
        if "python" not in Path(CHILD[0]).name:
            raise DeviceError(f"{CHILD[0]!a:.99} is not a Python that can be started")
        self._errors = errors
        try:
            with self._guard:
                if self._because:
                    raise DeviceError(self._because)
                self._child = start_python(CHILD, stdin=PIPE, stdout=PIPE, stderr=errors)
        except OSError as error:
            raise DeviceError(f"no process can be started: {error.strerror}") from error
        self._exchange(lambda stream: stream.write(msgspec.json.encode(request) + b"\n"), OPEN_S)

    def ask(self, feeds: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> ShadowAnswer:
        """Compute an inference in the child, and return the comparison.

        Raises:
            DeviceError: The process does not answer.
        """
        return self._exchange(lambda stream: write_inference(stream, feeds, outputs), ANSWER_S)

    def look(self) -> None:
        """End the process at its limit of time or memory."""
        child = self._child
        if child is not None and time.monotonic() > self._deadline:
            self.end("it did not answer in time")
        elif child is not None and taken_bytes(child.pid) > self._memory_bytes:
            self.end(f"it needs more than {self._memory_bytes / 1e6:.0f} MB of memory")

    def end(self, because: str) -> None:
        """Kill the process, and prevent a start; the kernel reclaims the memory."""
        with self._guard:
            self._because = self._because or because
            if self._child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill and reap the process; only for the thread that opened the process."""
        self.end("it was closed")
        with self._guard:
            child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(OSError), child:  # closes the pipes, and waits
                pass

    def _exchange(self, write: Callable[[IO[bytes]], object], limit_s: float) -> ShadowAnswer:
        child, errors, line = self._child, self._errors, b""
        if child is None or errors is None or child.stdin is None or child.stdout is None:
            raise DeviceError("it was not opened")
        self._deadline = time.monotonic() + limit_s
        with contextlib.suppress(OSError):
            write(child.stdin)
            child.stdin.flush()
        with contextlib.suppress(OSError):  # A child that ended early may have left its reason.
            line = child.stdout.readline(_MAX_ANSWER)
        self._deadline = math.inf
        try:
            answer = decode_json(line, ShadowAnswer)
        except msgspec.DecodeError as error:
            self.end(f"its process {describe_end(_exit_code(child), errors)}")
            raise DeviceError(self._because) from error
        if answer.because:
            raise DeviceError(answer.because)
        return answer


def _exit_code(child: PythonChild) -> int:
    """Return the exit code of a child, and leave the child unreaped so that its process id is not
    reused.
    """
    until = time.monotonic() + _END_S
    while (end := os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        if time.monotonic() >= until:
            return -signal.SIGKILL
        time.sleep(_POLL_S)
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
