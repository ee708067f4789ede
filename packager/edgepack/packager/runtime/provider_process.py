"""A separate process for a vendor's library, which answers requests in turn.

A trial restarts the process. The process is kept for the rehearsal of the same variant, since
loading Python, ONNX Runtime and a vendor's simulator takes longer than running a small model.
"""

import contextlib
import os
import select
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol, Self

from edgepack.agent.runtime.child import Ending, describe_end, end_group, holding_signals
from edgepack.packager.memory import return_freed_memory
from edgepack.packager.progress import BuildStep, Progress
from edgepack.python_child import PIPE, PythonChild, python_command, start_python

MODULE = "edgepack.packager.runtime.trial"
CHILD = python_command(MODULE)
_PIECE_BYTES = 65_536
_TOLD_EVERY_S = 1.0
_TOLD_FROM_S = 5.0

Waiting = Callable[[float], None]
"""Takes the seconds that a child has let wait for its answer."""

_SETTINGS = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy only compares outputs there; a second thread of its library costs 40 ms as it starts."""


def in_silence(waited_s: float) -> None:
    """Report nobody."""


def report_waiting(progress: Progress, timeout_s: float) -> Waiting:
    """Report, after a while, the waiting time of the current step, and its limit."""

    def waiting(waited_s: float) -> None:
        if waited_s >= _TOLD_FROM_S:
            words = f"waited {waited_s:.0f} s for an answer, of {timeout_s:.0f} at most"
            progress(BuildStep(detail=words))

    return waiting


class TrialProcess(Protocol):
    """A process that answers requests in turn, on this host or on a board."""

    @property
    def subject(self) -> str:
        """Purpose of the running process; "" without a process."""

    @property
    def losses(self) -> int:
        """Number of lost connections to the process; 0 on this host."""

    def start_anew(
        self, subject: str, first: bytes = b"", command: Sequence[str] | None = None
    ) -> None:
        """End a running process, and start a fresh process; see `ProviderProcess`."""

    def ask(self, request: bytes, *, timeout_s: float, waiting: Waiting = in_silence) -> Ending:
        """Send a line and wait for a line; see `ProviderProcess`."""


class ProviderProcess:
    """A child process, at most 1 at a time; ended with its descendants at the end of the block.

    Args:
        command: The usual child: answers each line of its stdin with a line of its stdout.

    Attributes:
        subject: Purpose of the running child; "" without a child.
        losses: 0: a child on this host is not lost.
    """

    losses = 0

    def __init__(self, command: Sequence[str] = CHILD) -> None:
        self.subject = ""
        self._command = command
        self._child: PythonChild | None = None
        self._errors: BinaryIO | None = None
        self._is_fresh = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended_by: object) -> None:
        self.close()

    def start_anew(
        self, subject: str, first: bytes = b"", command: Sequence[str] | None = None
    ) -> None:
        """End a running child, and start a fresh child.

        A child that was started for the same subject and had no request yet is fresh: started
        ahead, the child loads during other computations.

        Args:
            subject: Purpose of the child.
            first: A short line, without its end, sent at the start and not answered; b"" for none.
            command: The child, if other than the usual child.
        """
        if self._child is not None and self.subject == subject and self._is_fresh:
            return
        self.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._child = start_python(
            command or self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._errors,
            settings=_SETTINGS,
        )
        if first and self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: who asks it is told so
                os.write(self._child.stdin.fileno(), first + b"\n")
        self.subject = subject
        self._is_fresh = True

    def ask(self, request: bytes, *, timeout_s: float, waiting: Waiting = in_silence) -> Ending:
        """Send a line and wait for a line; a child that gives none is ended.

        Args:
            request: A line, without its end.
            timeout_s: Limit, seconds.
            waiting: Called for every second that there is no answer yet.

        Raises:
            ValueError: No child runs.
        """
        child, errors = self._child, self._errors
        if child is None or errors is None:
            raise ValueError("no child runs")
        self._is_fresh = False
        return_freed_memory()
        try:
            answer = _exchange(child, request + b"\n", timeout_s, waiting)
        except TimeoutError:
            self.close()
            return Ending(answer=None, because=f"no answer within {timeout_s:.3g} s")
        except BaseException:  # the time is used up, or somebody stops the build: half an answer
            self.close()
            raise
        if answer is None:
            child.wait()
            ending = Ending(answer=None, because=describe_end(child.returncode, errors))
            self.close()
            return ending
        return Ending(answer=answer, because="")

    def close(self) -> None:
        """End the child that runs, if any."""
        with holding_signals():  # a deadline in between would leave a child with closed pipes
            if self._child is not None:
                end_group(self._child)
            if self._errors is not None:
                self._errors.close()
            self._child, self._errors, self.subject = None, None, ""


def _exchange(
    child: PythonChild, request: bytes, timeout_s: float, waiting: Waiting
) -> bytes | None:
    """Write a request while reading the answer.

    Args:
        child: Reads its stdin, for any size of the request, or not at all.
        request: Request for the child.
        timeout_s: Seconds after which to stop.
        waiting: Called with the seconds so far.

    Returns:
        The first line; None if the child ended before a complete line.

    Raises:
        TimeoutError: That time is over.
    """
    if child.stdin is None or child.stdout is None:
        raise ValueError("the child was started without pipes")
    to_child, from_child = child.stdin.fileno(), child.stdout.fileno()
    os.set_blocking(to_child, False)
    unsent, answer = memoryview(request), b""
    start = time.monotonic()
    while not answer.endswith(b"\n"):
        readable, writable, _ = select.select(
            [from_child],
            [to_child] if unsent else [],
            [],
            min(_TOLD_EVERY_S, max(0.0, start + timeout_s - time.monotonic())),
        )
        if not readable and not writable:
            waited_s = time.monotonic() - start
            if waited_s >= timeout_s:
                raise TimeoutError
            waiting(waited_s)
        if writable:
            try:
                unsent = unsent[os.write(to_child, unsent) :]
            except BrokenPipeError:
                unsent = unsent[:0]  # it ended, or reads no more: its answer, or none, tells
        if readable:
            piece = os.read(from_child, _PIECE_BYTES)
            if not piece:
                return None
            answer += piece
    return answer.splitlines()[0]
