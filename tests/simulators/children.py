"""Child processes for tests: running code, hanging, and checks of their end."""

import sys
import time
from pathlib import Path

from tests.simulators.waiting import PATIENCE_S

LONGER_AND_LONGER_S = (0.4, 1.5, 6.0, 25.0)
"""Time limits for what never ends, to be tried until it was seen to have begun: a busy machine
takes its while to start a process."""


def child(code: str) -> tuple[str, ...]:
    """Return the command of a child that runs Python code."""
    return (sys.executable, "-P", "-c", code)


def hanging_child(note: Path) -> tuple[str, ...]:
    """Return the command of a child that hangs, with a hanging child of its own and a note of its
    pid.
    """
    return child(
        "import subprocess, sys, time; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        f"open({str(note)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    )


def noted_pid(note: Path) -> int | None:
    """Read the pid noted by a child; None before the note."""
    words = note.read_text() if note.exists() else ""
    return int(words) if words else None


def has_ended(pid: int) -> bool:
    """Wait until a process is gone, or a zombie: a killed process takes a moment to die."""
    status = Path(f"/proc/{pid}/stat")
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            if status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False
