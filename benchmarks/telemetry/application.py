"""The measured application: `python -m benchmarks.telemetry.application STATE_DIR RATE`.

With a rate of 0 the application prints the cost of telemetry, microseconds per inference, and
ends; otherwise the application runs so many inferences a second until it is ended.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgepack.agent import open_model
from edgepack.agent.runtime.sessions import Tensor
from tests.simulators.bundles import WIDTH

ROUNDS, RUNS = 41, 500
"""Alternating rounds of inferences with and without telemetry, and inferences of a round."""


def main() -> None:
    state_dir, rate = Path(sys.argv[1]), float(sys.argv[2])
    feeds = {"x": np.zeros((1, WIDTH), np.float32)}
    with open_model("tiny", state_dir, threads=1) as model:
        serving = model._serving
        if not rate:
            bare, counted = _race(feeds, serving.session.run, serving.run)
            print(bare, counted)
            return
        until = time.monotonic()
        while True:
            model.run(feeds)
            until += 1 / rate
            time.sleep(max(0.0, until - time.monotonic()))


def _race(feeds: dict[str, Tensor], *runs: Callable[[dict[str, Tensor]], object]) -> list[float]:
    """Return the processor time of an inference by each function, microseconds: quietest round."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, taken in zip(runs, found, strict=True):
            begun = time.thread_time()
            for _ in range(RUNS):
                run(feeds)
            taken.append((time.thread_time() - begun) / RUNS * 1e6)
    return [min(one) for one in found]


if __name__ == "__main__":
    main()
