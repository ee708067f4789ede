"""Child processes for tests: such as run code, such as hang, and whether one has ended."""

import sys
import time
from pathlib import Path


def child(code: str) -> tuple[str, ...]:
    """The command of a child that runs Python code."""
    return (sys.executable, "-c", code)


def hanging_child(note: Path) -> tuple[str, ...]:
    """The command of a child that hangs, as does a child of its own, whose pid it notes."""
    return child(
        "import subprocess, sys, time; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        f"open({str(note)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    )


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie, soon: a killed one takes a moment to die."""
    status = Path(f"/proc/{pid}/stat")
    for _ in range(500):
        try:
            if status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False
