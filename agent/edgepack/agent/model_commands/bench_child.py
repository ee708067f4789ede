"""The child of `bench`: opens the serving variant and times golden samples and texts."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from edgepack.agent.generation.probing import PROMPTS
from edgepack.agent.generation.texts import TextModel, has_packages
from edgepack.agent.model_commands.bench import BenchRequest, Measured
from edgepack.agent.runtime.child import keep_stdout_clean, take_request
from edgepack.agent.runtime.slot_opening import OpenedSlot, open_slot
from edgepack.decoding import decode_json

_FEWEST = 5
"""Timed inferences, however long each takes."""
_MOST = 1_000_000
_WARM_UP = 3


_MOST_WRITTEN = 256


def measure(request: BenchRequest) -> list[Measured]:
    """Return the latencies of golden samples, warm-up excluded, and those of texts."""
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
    rows = [_row("now", taken_ms)]
    if opened.assets and has_packages():
        texts = TextModel(opened.session, opened.assets)
        fitting = [one for one in PROMPTS if one < texts.wiring.context]
        for number in fitting or [texts.wiring.context // 2]:
            rows += _measure_texts(opened, texts, number, request.seconds)
    return rows


def _measure_texts(
    opened: OpenedSlot, texts: TextModel, prompt: int, seconds: float
) -> Iterator[Measured]:
    """Yield the time to the first token of a prompt, and the time of each further token.

    Args:
        opened: The release.
        texts: Its texts.
        prompt: Tokens of the prompt.
        seconds: Length of the measurement.
    """
    ids = opened.samples[0][texts.wiring.graph.inputs.input_ids].ravel()
    tokens = np.resize(ids, prompt).tolist()
    most = min(_MOST_WRITTEN, texts.wiring.context - prompt)
    first_ms: list[float] = []
    further_ms: list[float] = []
    until = time.monotonic() + seconds
    while len(first_ms) < _WARM_UP or time.monotonic() < until:
        taken_ms: list[float] = []
        decoding = texts.begin(prompt + most - 1)
        for token in (tokens, *([one] for one in itertools.repeat(tokens[0], most - 1))):
            began = time.perf_counter()
            decoding.feed(token)
            taken_ms.append((time.perf_counter() - began) * 1000)
        first_ms.append(taken_ms[0])
        further_ms += taken_ms[1:]
    yield _row(f"first token of {prompt}", first_ms)
    if further_ms:
        rate = 1000 / (sum(further_ms) / len(further_ms))
        yield msgspec.structs.replace(_row(f"token after {prompt}", further_ms), tokens_per_s=rate)


def _row(source: str, taken_ms: list[float]) -> Measured:
    p50, p90, p99 = np.percentile(taken_ms, (50, 90, 99)).tolist()
    return Measured(source=source, count=len(taken_ms), p50_ms=p50, p90_ms=p90, p99_ms=p99)


def main() -> None:
    """Answer the parent. For the child."""
    request = decode_json(take_request(), BenchRequest)
    with keep_stdout_clean(request.timeout_s) as answer:
        answer.write(msgspec.json.encode(measure(request)) + b"\n")


if __name__ == "__main__":
    main()
