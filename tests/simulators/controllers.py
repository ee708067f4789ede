"""Controllers that start at once: forked from a process that has imported everything.

    python -m tests.simulators.controllers

Each line on stdin, a JSON list, starts `edgepack` with these arguments; the first one is the file
of its log. Its process id is printed.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from edgepack.cli import cli
from edgepack.fleet.server.serve import serve


class Controllers:
    """Starts controllers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulators.controllers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )

    def start(self, log: Path, arguments: Sequence[str]) -> int:
        """Starts one; returns its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(log), *arguments]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # What was killed is reaped.
    assert callable(serve)  # All that it needs is imported.
    for line in sys.stdin:
        log, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            cli.main(arguments)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
