"""Runs a program as a child process and measures time, peak memory of its tree, and its end."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.packager.host import read_busy_s

Ending = Literal["ended", "over the time limit", "over the memory limit"]

_PAUSE_S = 0.05
"""Between two looks at the tree. The kernel tells shorter peaks of the first process."""

_PAUSE_A_LOOK = 20.0
"""At least so many times what the look took: of a large tree it takes milliseconds, and the program
shares the machine with it."""

_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Outcome of a child process.

    Attributes:
        ending: Whether the process ended by itself.
        exit_code: Exit status; minus the signal's number after a signal.
        wall_s: From start to end, seconds.
        cpu_s: Processor time of the process and its waited-for descendants, seconds; unlike
            `wall_s`, little changed by other programs.
        peak_bytes: Greatest resident memory of the process and all its descendants together;
            of pages that processes share each counts its share.
        others_s: Processor time of all other programs on the machine in the meantime, seconds.
    """

    ending: Ending
    exit_code: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    others_s: float


def run_measured(
    command: Sequence[str | Path],
    *,
    folder: Path,
    log: Path,
    time_limit_s: float,
    memory_limit_bytes: int,
    environment: Mapping[str, str] | None = None,
) -> Measured:
    """Run a command to its end or to a limit; then end its process group.

    Args:
        command: The command.
        folder: Working folder.
        log: Takes its stdout and stderr.
        time_limit_s: Limit of the running time, seconds.
        memory_limit_bytes: Ended when its tree holds more.
        environment: Variables, or None for this process's.
    """
    start, busy_s, own_s = time.monotonic(), read_busy_s(), time.process_time()
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end_of_child = os.pidfd_open(child.pid)
        ending: Ending = "ended"
        peak_bytes = 0
        try:
            while True:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                looked = time.monotonic()
                peak_bytes = max(peak_bytes, _tree_bytes(child.pid), _highest_bytes(child.pid))
                look_s = time.monotonic() - looked
                if time.monotonic() - start > time_limit_s:
                    ending = "over the time limit"
                elif peak_bytes > memory_limit_bytes:
                    ending = "over the memory limit"
                if ending != "ended":
                    os.killpg(child.pid, signal.SIGKILL)
                    pid, status, usage = os.wait4(child.pid, 0)
                    break
                select.select([end_of_child], [], [], max(_PAUSE_S, _PAUSE_A_LOOK * look_s))
        finally:
            os.close(end_of_child)
            _end_group(child.pid)
    child.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    all_s = read_busy_s() - busy_s - (time.process_time() - own_s)
    return Measured(
        ending=ending,
        exit_code=child.returncode,
        wall_s=time.monotonic() - start,
        cpu_s=cpu_s,
        peak_bytes=peak_bytes,
        others_s=max(0.0, all_s - cpu_s),
    )


def last_words(log: Path) -> str:
    """Return the end of a log as a line: a Python exception with its message, or the last line.

    Paths in the log's folder are shortened to names, since the folder means nothing on another
    machine.
    """
    text = log.read_text(errors="replace").replace(f"{log.parent}/", "")
    lines = [line for line in text.splitlines() if line.strip()]
    starts = [index for index, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if starts:
        after = lines[starts[-1] + 1 :]
        said = [index for index, line in enumerate(after) if not line.startswith(" ")]
        if said:
            return " ".join(" ".join(after[said[0] :]).split())
    return lines[-1].strip() if lines else ""


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _tree_bytes(root: int) -> int:
    """Return the resident memory of a process and its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # "pid (name) state ppid …"; a name may hold spaces and brackets.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between the listing and the reading
        parents[int(entry.name)] = int(fields[1])
    return sum(_process_bytes(pid) for pid in parents if _descends(pid, root, parents))


def _process_bytes(pid: int) -> int:
    """Return the resident memory of a process, shared pages by share (PSS); 0 after its end."""
    return _read_kibibytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") * 1024


def _highest_bytes(pid: int) -> int:
    """Return the peak resident memory of a process until now; 0 after its end.

    `wait4` of a child would include this process's own memory: until the child becomes the program,
    the child is a copy of this process.
    """
    return _read_kibibytes(Path(f"/proc/{pid}/status"), "VmHWM:") * 1024


def _read_kibibytes(file: Path, key: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(next((line.split()[1] for line in lines if line.startswith(key)), "0"))


def _descends(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    while pid in parents:
        if pid == root:
            return True
        pid = parents[pid]
    return False
