"""A contestant's process: a request a line on stdin, an answer a line on stdout.

Standard library only: each contestant imports this module in its own environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Write = Callable[[list[int], int], Iterator[int]]
"""Yield the tokens that follow a prompt, greedily, at most so many."""


def peak_bytes() -> int:
    """Return the most memory that the process had."""
    with Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def serve(write: Write) -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began, began_cpu = time.perf_counter(), time.process_time()
        first = first_cpu = 0.0
        tokens = []
        for token in write(request["prompt"], request["tokens"]):
            if not tokens:
                first, first_cpu = time.perf_counter(), time.process_time()
            tokens.append(token)
        answer = {
            "first_s": first - began,
            "first_cpu_s": first_cpu - began_cpu,
            "further_s": time.perf_counter() - first,
            "further_cpu_s": time.process_time() - first_cpu,
            "tokens": tokens,
            "peak_bytes": peak_bytes(),
        }
        print(json.dumps(answer), file=answers, flush=True)
