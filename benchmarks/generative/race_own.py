"""Texts of an unpacked bundle, as a device writes them: `python -m … BUNDLE VARIANT THREADS`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.generative.turns import serve
from edgepack.agent.generation.decoding import Decoding
from edgepack.agent.generation.wiring import read_wiring
from edgepack.agent.runtime.opening import open_session
from edgepack.bundle.forms import read_manifest


def main() -> None:
    """Answer requests."""
    bundle, name, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    variant = read_manifest(bundle).variant(name)
    session = open_session(bundle, variant, threads=threads)
    wiring = read_wiring((bundle / "genai_config.json").read_bytes())

    def write(prompt: list[int], most: int) -> Iterator[int]:
        decoding = Decoding(session, wiring, len(prompt) + most)
        given = prompt
        for _ in range(most):
            token = int(np.argmax(decoding.feed(given)))
            yield token
            given = [token]

    serve(write)


if __name__ == "__main__":
    main()
