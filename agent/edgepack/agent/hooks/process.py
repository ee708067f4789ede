"""Process of a hook: output is read without blocking, and the whole process group is ended."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from edgepack.agent.hooks.users import HookUser
from edgepack.halt import NEVER, Halt

_POLL_S = 0.02
GRACE_S = 2.0
"""From SIGTERM to SIGKILL: what a hook has to bring itself into order."""
_READ_BYTES = 64 * 1024


class EndedHook(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a hook's process.

    Attributes:
        exit_code: The exit code; None if a signal or the time limit ended the process.
        signal_name: The signal that ended the process, e.g. "SIGSEGV"; "" without a signal.
        timed_out: Whether the process exceeded its time limit.
        output: stdout and stderr in order; beginning and end if the output was too long.
    """

    exit_code: int | None
    signal_name: str
    timed_out: bool
    output: str


class _Output:
    """Keeps the first and the last half of a limit, however much comes."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, chunk: bytes) -> None:
        self._total += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -self._half]

    def text(self) -> str:
        left_out = self._total - len(self._head) - len(self._tail)
        mark = f"\n[… {left_out:,} bytes left out …]\n" if left_out else ""
        raw = self._head + mark.encode() + self._tail
        # A terminal that shows this later must not obey control sequences in it.
        return "".join(
            letter if letter.isprintable() or letter in "\n\t" else "\ufffd"
            for letter in raw.decode(errors="replace")
        )


def run_process(
    program: Path,
    environment: dict[str, str],
    *,
    timeout_s: float,
    output_limit_bytes: int,
    halt: Halt = NEVER,
    user: HookUser | None = None,
) -> EndedHook:
    """Run a program in a separate process group, and end the whole group with the program.

    An early end is requested by SIGTERM, and forced by SIGKILL after `GRACE_S`.

    A child that the program leaves behind holds the other end of the output pipe, so reading
    stops when the program ends, not when the pipe closes.

    Args:
        program: The executable.
        environment: Its whole environment.
        timeout_s: Time limit of the program.
        output_limit_bytes: How much of its output is kept; the rest is read and dropped.
        halt: Ends the program before its time.
        user: User of the process; None is this process's user.

    Raises:
        OSError: The program could not be started.
        HaltedError: `halt` ended the program.
    """
    switch: dict[str, Any] = {}
    if user is not None and user.uid != os.geteuid():
        switch = {"user": user.uid, "group": user.gid, "extra_groups": user.groups}
    process = subprocess.Popen(
        [str(program)],
        cwd="/",
        env=environment,
        **switch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = _Output(output_limit_bytes)
    assert process.stdout is not None  # PIPE was asked for
    with process.stdout as pipe:
        try:
            ended_in_time = _read_until_exit(process.pid, pipe, output, timeout_s, halt)
            if not ended_in_time:
                _ask_to_end(process.pid, pipe, output)
        finally:
            # The program is not reaped yet, so its group's number cannot belong to others.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        _drain(pipe, output)
    if not ended_in_time:
        halt.check()
        return EndedHook(exit_code=None, signal_name="", timed_out=True, output=output.text())
    if code < 0:
        names = {known.value: known.name for known in signal.Signals}
        name = names.get(-code, f"signal {-code}")
        return EndedHook(exit_code=None, signal_name=name, timed_out=False, output=output.text())
    return EndedHook(exit_code=code, signal_name="", timed_out=False, output=output.text())


def _read_until_exit(
    pid: int, pipe: IO[bytes], output: _Output, timeout_s: float, halt: Halt = NEVER
) -> bool:
    """Read output until the process has ended; return False after a halt or at the time limit."""
    deadline = time.monotonic() + timeout_s
    os.set_blocking(pipe.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if halt.is_set() or time.monotonic() >= deadline:
                return False
            for _ready in selector.select(_POLL_S):
                chunk = os.read(pipe.fileno(), _READ_BYTES)
                output.add(chunk)
                if not chunk:
                    selector.unregister(pipe)
    return True


def _ask_to_end(group: int, pipe: IO[bytes], output: _Output) -> None:
    """Send SIGTERM to a process group and wait for `GRACE_S`.

    A shell ends at once; its children may be writing firmware and need the time.
    """
    until = time.monotonic() + GRACE_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    _read_until_exit(group, pipe, output, GRACE_S)
    while _has_members(group) and time.monotonic() < until:
        time.sleep(_POLL_S)


def _has_members(group: int) -> bool:
    """Return True if a process of this group is alive; zombies are not (Linux)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in brackets, may hold anything.
            state, _parent, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def _drain(pipe: IO[bytes], output: _Output) -> None:
    """Read the present content of the pipe, and no later byte."""
    left_bytes = 1024 * 1024  # the most that a pipe holds: /proc/sys/fs/pipe-max-size
    with contextlib.suppress(BlockingIOError):
        while left_bytes > 0 and (chunk := os.read(pipe.fileno(), _READ_BYTES)):
            output.add(chunk)
            left_bytes -= len(chunk)
