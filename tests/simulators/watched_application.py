"""An application in a process of its own, whose inputs a test changes while it runs.

    python -m tests.simulators.watched_application STATE_DIR CONTROL

CONTROL is a file with the value of the input `fault`. A value of 13 kills the process at its first
inference with release 1.1.0.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from edgepack.agent import DeviceError, open_model
from edgepack.agent.serving import following

WIDTH = 64


def main() -> None:
    state_dir, control = map(Path, sys.argv[1:])
    following.SPOOL_S = 0.1
    rng = np.random.default_rng(0)
    with open_model("shapes", state_dir, threads=1) as model:
        while True:
            fault = int(control.read_text())
            if fault == 13 and model.bundle.version == "1.1.0":
                os.kill(os.getpid(), signal.SIGKILL)
            feeds = {"x": rng.standard_normal((1, WIDTH)), "fault": np.array([fault])}
            with contextlib.suppress(DeviceError):
                model.run({"x": feeds["x"].astype(np.float32), "fault": feeds["fault"]})
            time.sleep(0.01)


if __name__ == "__main__":
    main()
