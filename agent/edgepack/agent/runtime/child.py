"""Work in a process of its own, with a time limit: native code may crash or hang.

A provider is a vendor's library. What it does to a process must not happen to the agent's, nor
to a build's, so whatever tries one for the first time does it in a child:

    parent: request as JSON on the child's stdin
    child:  answer as JSON on what was its stdout; anything native code prints goes to stderr
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from edgepack.agent.runtime.runtime_words import is_warning, without_colour
from edgepack.halt import NEVER, Halt

_STDERR_TAIL_BYTES = 4096
_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2)."""

_POLL_S = 0.02
_GRACE_S = 5.0
"""A child whose parent is gone ends itself this long after its limit."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended.

    Attributes:
        answer: What it answered; None when it did not.
        because: Why there is no answer, one sentence; "" when there is one.
    """

    answer: bytes | None
    because: str


def run_child(
    command: Sequence[str], request: bytes, *, timeout_s: float, halt: Halt = NEVER
) -> Ending:
    """Runs a child to its end, or ends it at its limit with all that it started.

    Its answer goes to a file, not a pipe: whoever else holds a pipe open, such as a process that it
    left behind, would make its reader wait.

    Args:
        command: Program and arguments.
        request: Bytes for its stdin.
        timeout_s: Limit in seconds, from its start.
        halt: Ends it before its limit.

    Returns:
        Its answer: the last line of its stdout; or why there is none.

    Raises:
        HaltedError: It was ended because of `halt`.
    """
    with (
        tempfile.TemporaryFile() as asked,
        tempfile.TemporaryFile() as answered,
        tempfile.TemporaryFile() as errors,
    ):
        asked.write(request)
        asked.seek(0)
        child = subprocess.Popen(
            command, stdin=asked, stdout=answered, stderr=errors, start_new_session=True
        )
        try:
            has_ended = _wait(child, timeout_s, halt)
        finally:
            end_group(child)
        if not has_ended:
            return Ending(answer=None, because=f"no answer within {timeout_s:g} s")
        answered.seek(0)
        lines = answered.read().splitlines()
        if child.returncode or not lines:
            return Ending(answer=None, because=describe_end(child.returncode, errors))
    return Ending(answer=lines[-1], because="")


def _wait(child: "subprocess.Popen[bytes]", timeout_s: float, halt: Halt) -> bool:
    """Waits until a child has ended, which stays unreaped; False when its time is over first."""
    deadline = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        halt.check()
        if time.monotonic() >= deadline:
            return False
        halt.wait(_POLL_S)
    return True


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """Kills a child, with all that runs in its process group, and reaps it."""
    with contextlib.suppress(ProcessLookupError):  # it ended by itself, and was waited for
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def describe_end(exit_code: int, errors: BinaryIO) -> str:
    """How a child ended that gave no answer, and what it said last.

    Args:
        exit_code: Its exit code; minus the signal's number where a signal ended it.
        errors: The file that was its stderr.
    """
    said = _last_line(errors)
    if exit_code < 0:
        number = signal.Signals(-exit_code)
        hint = " (most often the system's, out of memory)" if number is signal.SIGKILL else ""
        return f"crashed with {number.name}{hint}{said}"
    return f"ended with exit code {exit_code}{said}"


def _last_line(errors: BinaryIO) -> str:
    """What the child said last on stderr, as the end of a sentence."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _STDERR_TAIL_BYTES))
    text = errors.read().decode("utf-8", "replace")
    said = [line.strip() for line in text.splitlines() if not is_warning(line)]
    lines = [without_colour(line).strip() for line in said]
    last = next((line for line in reversed(lines) if line), "")
    return f": {last[:300]}" if last else ""


def take_request() -> bytes:
    """In the child: reads the request, to its end."""
    return sys.stdin.buffer.read()


def keep_stdout_clean(timeout_s: float) -> BinaryIO:
    """In the child: sends whatever is printed to stderr, and makes sure that it ends.

    Args:
        timeout_s: See `set_last_limit`.

    Returns:
        What was stdout, for the answer.
    """
    end_with_parent()
    set_last_limit(timeout_s)
    return redirect_stdout()


def end_with_parent() -> None:
    """In the child: has the kernel kill it when the parent's thread that started it ends (Linux).

    The end of stdin and an alarm tell a child that runs; one that was stopped (SIGSTOP, a debugger)
    sees neither, and would stay.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def set_last_limit(timeout_s: float) -> None:
    """In the child: sets an alarm, so that it does not outlive a parent that was killed.

    Args:
        timeout_s: The parent's limit, seconds; the alarm rings soon after it. 0 sets none.
    """
    signal.setitimer(signal.ITIMER_REAL, timeout_s + _GRACE_S if timeout_s else 0.0)


def redirect_stdout() -> BinaryIO:
    """In the child: sends whatever is printed to stderr.

    Native libraries print to stdout (QNN's simulator does), which must not mix with the answer.

    Returns:
        What was stdout, for the answer.
    """
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answer
