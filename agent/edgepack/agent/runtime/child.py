"""Work in a process of its own, with a time limit: native code may crash or hang.

A provider is a vendor's library. A crash or leak must not reach the agent's process, nor a build's,
so the first use of a library happens in a child:

    parent: request as JSON on the child's stdin
    child: answer as JSON on the original stdout; any print of native code goes to stderr
"""

import contextlib
import ctypes
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from edgepack.agent.runtime.runtime_words import is_warning, without_colour
from edgepack.halt import NEVER, Halt
from edgepack.python_child import PythonChild, start_python

_STDERR_TAIL_BYTES = 4096
_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2)."""

_STOPPING = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)
"""Signals whose handlers raise in the middle of a computation."""

_TAKEN = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.M)
_POLL_S = 0.02
_GRACE_S = 5.0
"""A child whose parent is gone ends itself this long after its limit."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a child process.

    Attributes:
        answer: Answer; None without an answer.
        because: Reason for a missing answer, as a sentence; "" with an answer.
        peak_bytes: The highest observed memory, without files; 0 if unknown.
    """

    answer: bytes | None
    because: str
    peak_bytes: int = 0


def run_child(
    command: Sequence[str],
    request: bytes,
    *,
    timeout_s: float,
    memory_bytes: int = 0,
    halt: Halt = NEVER,
) -> Ending:
    """Run a child to its end, or end the child and its descendants at a limit.

    The answer goes to a file, not a pipe: another holder of the pipe, such as a process that the
    child left behind, would make the reader wait.

    Args:
        command: See `start_python`.
        request: Bytes for its stdin.
        timeout_s: Limit in seconds, from its start.
        memory_bytes: Limit of its memory (Linux); 0 sets none. Reserved but untouched memory does
            not count, so address space (RLIMIT_AS) would be no measure.
        halt: Ends the child before its limit.

    Returns:
        Its answer: the last line of its stdout; or why there is none.

    Raises:
        HaltedError: `halt` ended the program.
    """
    with (
        tempfile.TemporaryFile() as asked,
        tempfile.TemporaryFile() as answered,
        tempfile.TemporaryFile() as errors,
    ):
        asked.write(request)
        asked.seek(0)
        child = start_python(command, stdin=asked, stdout=answered, stderr=errors)
        try:
            because, peak_bytes = _wait(child, timeout_s, memory_bytes, halt)
        finally:
            end_group(child)
        if because:
            return Ending(answer=None, because=because, peak_bytes=peak_bytes)
        answered.seek(0)
        lines = answered.read().splitlines()
        if child.returncode or not lines:
            because = describe_end(child.returncode, errors)
            return Ending(answer=None, because=because, peak_bytes=peak_bytes)
    return Ending(answer=lines[-1], because="", peak_bytes=peak_bytes)


def _wait(child: PythonChild, timeout_s: float, memory_bytes: int, halt: Halt) -> tuple[str, int]:
    """Wait until a child has ended, which stays unreaped.

    Returns:
        Why the child must be ended, "" if the child ended by itself; and its peak memory.
    """
    deadline = time.monotonic() + timeout_s
    peak_bytes = 0
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        halt.check()
        peak_bytes = max(peak_bytes, taken_bytes(child.pid))
        if memory_bytes and peak_bytes > memory_bytes:
            return f"needs more than {memory_bytes / 1e6:.0f} MB of memory", peak_bytes
        if time.monotonic() >= deadline:
            return f"no answer within {timeout_s:g} s", peak_bytes
        halt.wait(_POLL_S)
    return "", peak_bytes


def taken_bytes(pid: int) -> int:
    """Return memory that a process takes and the kernel cannot take back: not that of mapped
    files.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return 1024 * sum(int(kib) for kib in _TAKEN.findall(status))


@contextlib.contextmanager
def holding_signals() -> Iterator[None]:
    """Run a block whole: signals that stop a computation are handled after the block.

    A mask of this thread would not do: the system gives a signal to any thread of the process, and
    Python handles the signal in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {it: known for it in _STOPPING if (known := signal.getsignal(it)) is not None}
    try:
        for number in before:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for held in came:
            signal.raise_signal(held)


def end_group(child: PythonChild) -> None:
    """Kill a child with its process group, and reap the child, whatever signal comes."""
    with holding_signals():
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, and was waited for
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def describe_end(exit_code: int, errors: BinaryIO) -> str:
    """Return how a child ended without an answer, and its last line.

    Args:
        exit_code: The exit code; minus the signal's number after a signal.
        errors: The file that was its stderr.
    """
    said = _last_line(errors)
    if exit_code < 0:
        number = signal.Signals(-exit_code)
        hint = " (most often the system's, out of memory)" if number is signal.SIGKILL else ""
        return f"crashed with {number.name}{hint}{said}"
    return f"ended with exit code {exit_code}{said}"


def _last_line(errors: BinaryIO) -> str:
    """Return the child's last line on stderr, as the end of a sentence."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _STDERR_TAIL_BYTES))
    text = errors.read().decode("utf-8", "replace")
    said = [line.strip() for line in text.splitlines() if not is_warning(line)]
    lines = [without_colour(line).strip() for line in said]
    last = next((line for line in reversed(lines) if line), "")
    return f": {last[:300]}" if last else ""


def take_request() -> bytes:
    """Read the request to its end. For the child."""
    return sys.stdin.buffer.read()


def keep_stdout_clean(timeout_s: float) -> BinaryIO:
    """Redirect stdout to stderr, and ensure that the process ends in time. For the child.

    Args:
        timeout_s: See `set_last_limit`.

    Returns:
        Original stdout, for the answer.
    """
    end_with_parent()
    be_first_to_go()
    set_last_limit(timeout_s)
    return redirect_stdout()


def end_with_parent() -> None:
    """Ask the kernel to kill this process when the parent's starting thread ends (Linux). For the
    child.

    The end of stdin and an alarm stop a running child; a stopped child (SIGSTOP, a debugger) sees
    neither, and would stay.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def be_first_to_go() -> None:
    """Ask the kernel to kill this process first if memory runs out (Linux). For the child."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def set_last_limit(timeout_s: float) -> None:
    """Set an alarm, so that this process does not outlive a killed parent. For the child.

    Args:
        timeout_s: The parent's limit, seconds; the alarm rings soon after this limit. 0 sets none.
    """
    signal.setitimer(signal.ITIMER_REAL, timeout_s + _GRACE_S if timeout_s else 0.0)


def redirect_stdout() -> BinaryIO:
    """Redirect stdout to stderr. For the child.

    Native libraries print to stdout (QNN's simulator does), which must not mix with the answer.

    Returns:
        Original stdout, for the answer.
    """
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answer
