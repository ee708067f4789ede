"""An application in a process of its own, whose inputs a test changes while it runs.

    python -m tests.simulators.watched_application STATE_DIR CONTROL PAUSE_S

CONTROL is a file with the value of the input `fault`, or with a fault of the process: see `DYING`,
`HANGING` and `FLIPPING`. Faults of the process happen with release 1.1.0 alone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from edgepack.agent import DeviceError, Model, open_model
from edgepack.agent.serving import following
from tests.simulators.watched_model import WIDTH, weights

DYING, HANGING, FLIPPING = 13, 14, 15
"""The process dies in an inference, stops, or flips a bit of each copy of a weight in memory."""


class Application:
    """An application that a supervisor starts again whenever it dies."""

    def __init__(self, folder: Path, pause_s: float = 0.01) -> None:
        self._control = folder / "fault"
        self.fault = 0
        self._command = [sys.executable, "-m", "tests.simulators.watched_application"]
        self._command += [str(folder / "state"), str(self._control), str(pause_s)]
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self.deaths = 0
        self._thread = threading.Thread(target=self._supervise)
        self._thread.start()

    @property
    def fault(self) -> int:
        return int(self._control.read_text())

    @fault.setter
    def fault(self, fault: int) -> None:
        new = self._control.with_suffix(".new")
        new.write_text(str(fault))
        new.rename(self._control)

    def _supervise(self) -> None:
        while not self._is_over:
            self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
            if self._process.wait() == -9:
                self.deaths += not self._is_over

    def stop(self) -> None:
        self._is_over = True
        if self._process is not None:
            self._process.kill()
        self._thread.join(400)


def flip_weight() -> int:
    """Flip a bit of the first weights in this process's memory; return the number of copies."""
    hidden = bytes(byte ^ 0xFF for byte in weights()[0].tobytes())
    found = 0
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, mode, *_, inode = line.split(maxsplit=5)[:5]
            if not mode.startswith("rw") or inode != "0":
                continue
            first, last = (int(address, 16) for address in place.split("-"))
            with contextlib.suppress(OSError, OverflowError):
                memory.seek(first)
                content = memory.read(last - first)
                pattern = bytes(byte ^ 0xFF for byte in hidden)
                at = content.find(pattern)
                while at >= 0:
                    memory.seek(first + at + 3)
                    memory.write(bytes([content[at + 3] ^ 0x40]))
                    found += 1
                    at = content.find(pattern, at + 1)
    return found


def act(model: Model, fault: int) -> None:
    """Let a fault of the process happen."""
    if fault == DYING:
        session = model._opened().session
        session.run = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment,return-value]
    if fault == HANGING:
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    state_dir, control = map(Path, sys.argv[1:3])
    pause_s = float(sys.argv[3])
    following.SPOOL_S = 0.1
    rng, is_flipped = np.random.default_rng(0), False
    with open_model("shapes", state_dir, threads=1) as model:
        while True:
            fault = int(control.read_text())
            if model.bundle.version == "1.1.0":
                act(model, fault)
                if fault == FLIPPING and not is_flipped:
                    is_flipped = flip_weight() > 0
            x = rng.standard_normal((1, WIDTH)).astype(np.float32)
            with contextlib.suppress(DeviceError):
                model.run({"x": x, "fault": np.array([fault])})
            time.sleep(pause_s)


if __name__ == "__main__":
    main()
