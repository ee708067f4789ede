"""Texts of llama.cpp: `python race_llama.py FILE THREADS CONTEXT`, in its environment."""

import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

import xllamacpp
from turns import serve


def main() -> None:
    """Answer requests."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    for one in (parameters.cpuparams, parameters.cpuparams_batch):
        one.n_threads = int(sys.argv[2])
    parameters.n_ctx = int(sys.argv[3])
    parameters.n_parallel = 1
    parameters.cache_prompt = False
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    parameters.n_gpu_layers = 0
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)

    def write(prompt: list[int], most: int) -> Iterator[int]:
        found: queue.Queue[int | None] = queue.Queue()

        count = 0

        def take(piece: dict[str, Any]) -> None:
            """Count a token for each piece; bytes of a letter come together, with the last."""
            nonlocal count
            is_last = piece["choices"][0]["finish_reason"] is not None
            number = piece["usage"]["completion_tokens"] - count if is_last else 1
            for _ in range(number):
                found.put(0)
            count += number

        def run() -> None:
            request = {
                "prompt": prompt,
                "n_predict": most,
                "temperature": 0.0,
                "samplers": ["temperature"],
                "cache_prompt": False,
                "ignore_eos": True,
                "stream": True,
            }
            server.handle_completions(request, take)
            found.put(None)

        thread = threading.Thread(target=run)
        thread.start()
        while (token := found.get()) is not None:
            yield token
        thread.join()

    serve(write)


if __name__ == "__main__":
    main()
