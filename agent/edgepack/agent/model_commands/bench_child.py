"""The child of `bench`: opens the serving variant and times golden samples."""

import itertools
import time
from pathlib import Path

import msgspec
import numpy as np

from edgepack.agent.model_commands.bench import BenchRequest, Measured
from edgepack.agent.runtime.child import keep_stdout_clean, take_request
from edgepack.agent.runtime.slot_opening import open_slot
from edgepack.decoding import decode_json

_FEWEST = 5
"""Timed inferences, however long each takes."""
_MOST = 1_000_000
_WARM_UP = 3


def measure(request: BenchRequest) -> Measured:
    """Return the latencies of golden samples, warm-up excluded."""
    opened = open_slot(
        Path(request.state_dir), request.digest, request.variant, threads=request.threads
    )
    samples = itertools.cycle(opened.samples)
    for _ in range(_WARM_UP):
        opened.session.run(next(samples))
    taken_ms: list[float] = []
    until = time.monotonic() + request.seconds
    while len(taken_ms) < _FEWEST or (time.monotonic() < until and len(taken_ms) < _MOST):
        taken_ms.append(opened.session.run_timed(next(samples))[1])
    p50, p90, p99 = np.percentile(taken_ms, (50, 90, 99)).tolist()
    return Measured(source="now", count=len(taken_ms), p50_ms=p50, p90_ms=p90, p99_ms=p99)


def main() -> None:
    """Answer the parent. For the child."""
    request = decode_json(take_request(), BenchRequest)
    with keep_stdout_clean(request.timeout_s) as answer:
        answer.write(msgspec.json.encode(measure(request)) + b"\n")


if __name__ == "__main__":
    main()
