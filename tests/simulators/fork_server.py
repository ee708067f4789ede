"""Server that forks real agents from a process with all modules imported (quick starts).

    python -m tests.simulators.fork_server CONFIG LOG

Each line on stdin starts an agent; its process id is printed. The server reaps killed agents.
"""

import os
import subprocess
import sys
from pathlib import Path

from edgepack.agent import cli
from edgepack.agent.runtime.facts import read_device_facts


class ForkServer:
    """Process that forks agents with these settings."""

    def __init__(self, config: Path, log: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulators.fork_server", config, log],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )

    def start(self) -> int:
        """Start an agent and return its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("start\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def main(config: str, log: str) -> None:
    read_device_facts()  # Imports the runtime.
    child = 0
    for _ in sys.stdin:
        if child:
            os.waitpid(child, 0)
        child = os.fork()
        if child == 0:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.argv = ["edgepack-agent", "run", "--config", config]
            cli.main()
            os._exit(0)
        print(child, flush=True)
    if child:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
