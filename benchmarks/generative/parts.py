"""Time of a long prompt by the number of tokens that an inference takes at most."""

from collections.abc import Mapping
from pathlib import Path
from time import process_time

import msgspec
import numpy as np

from edgepack.agent.generation import decoding
from edgepack.agent.generation.wiring import read_wiring
from edgepack.agent.runtime.opening import open_session
from edgepack.bundle.forms import read_manifest

STEPS = (16, 32, 64, 128, 256, 512)
_ROUNDS = 5


class PartTime(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time of a prompt in parts.

    Attributes:
        model: The model.
        prompt: Tokens of the prompt.
        steps: Tokens of a part, at most.
        cpu_ms: Median.
        relative: To parts of `decoding.MOST_STEPS` tokens, median of the rounds' ratios.
    """

    model: str
    prompt: int
    steps: int
    cpu_ms: float
    relative: float


def measure_parts(bundles: Mapping[str, Path]) -> list[PartTime]:
    """Return the times of prompts that fill the context, at most 1,024 tokens, on one thread."""
    usual = decoding.MOST_STEPS, decoding.LOGITS_BYTES
    found = []
    for name, bundle in bundles.items():
        (variant,) = read_manifest(bundle).variants
        session = open_session(bundle, variant, threads=1)
        wiring = read_wiring((bundle / "genai_config.json").read_bytes())
        length = min(1024, wiring.context)
        prompt = np.random.default_rng(0).integers(1, 4000, length).tolist()
        taken: dict[int, list[float]] = {steps: [] for steps in STEPS}
        try:
            for _ in range(_ROUNDS):
                for steps, times in taken.items():
                    decoding.MOST_STEPS = steps
                    decoding.LOGITS_BYTES = steps * wiring.vocabulary * 4
                    text = decoding.Decoding(session, wiring, length)
                    began = process_time()
                    text.feed(prompt)
                    times.append((process_time() - began) * 1000)
        finally:
            decoding.MOST_STEPS, decoding.LOGITS_BYTES = usual
        base = np.array(taken[usual[0]])
        found += [
            PartTime(
                model=name,
                prompt=length,
                steps=steps,
                cpu_ms=float(np.median(times)),
                relative=float(np.median(np.array(times) / base)),
            )
            for steps, times in taken.items()
        ]
    return found
