"""The child of a probe, which also proves texts. See `runtime.probe` and `runtime.probing`.

The golden samples are whole texts, run at once. Texts are written token by token over a cache: this
path gets a proof of its own, and its pace is measured.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edgepack.agent.generation.decoding import check_wiring
from edgepack.agent.generation.fixed_decoding import open_decoding
from edgepack.agent.generation.vectors import TextVectors, compare_texts, has_tokenizers
from edgepack.agent.generation.wiring import Wiring, read_wiring
from edgepack.agent.runtime.probing import ProbedSession, main
from edgepack.agent.runtime.sessions import Session
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.generation import (
    GENAI_CONFIG,
    GOLDEN_TEXTS,
    MAX_ASSET_BYTES,
    TOKENIZER,
    GoldenText,
)
from edgepack.bundle.golden import Golden
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    GoldenTolerance,
    Variant,
    decode_manifest,
)
from edgepack.bundle.strict_json import convert_json, parse_json
from edgepack.tasks.tokens.measure import MOST_DIVERGENCE, log_shares
from edgepack.wire.reports import TextPace, TextProof

PROMPTS = (128, 1024)
"""Tokens of the prompts that are measured, if they fit into the context."""
CHAIN = 16
"""Tokens of a golden sample that run one by one over the cache."""
PACED_S = 2.0
"""Seconds that further tokens are measured for, and that a longer prompt may take."""
_MOST_PACED = 64
_TIMES = 3
"""Error of golden texts against the tolerance of the golden samples: ranges were calibrated with
other texts. A small encoder with 8 bits had 1.2 times, without its mask 5.8 times."""


def prove_texts(
    bundle: Path, session: ProbedSession, golden: Golden, variant: Variant
) -> TextProof | None:
    """Write texts over the cache, compare with the golden texts run at once, and measure the pace.

    1. A cache for the whole context must fit into the memory, and is filled.
    2. The last tokens of a golden text run one by one. Their probabilities must be those of the
       text run at once, up to a mean divergence.
    3. The first token after a prompt, and the tokens after it, are timed.

    Args:
        bundle: Root of the verified bundle that has the tokenizer: of an adapter, its base.
        session: Runs the variant.
        golden: The golden samples.
        variant: The variant.

    Returns:
        The proof; None for a model without texts. See `prove_vectors` for an encoder.

    Raises:
        EdgepackError: The graph does not fit its wiring, memory is missing, or the provider failed.
    """
    if not isinstance(session, Session):
        return None
    if (bundle / GOLDEN_TEXTS).is_file():
        return prove_vectors(bundle, session, variant)
    if not (bundle / GENAI_CONFIG).is_file():
        return None
    wiring = read_wiring(read_bounded(bundle / GENAI_CONFIG, MAX_ASSET_BYTES))
    check_wiring(wiring, session)
    cache_bytes = _fill_cache(wiring, session)  # 1
    feeds = golden.inputs[0]
    tokens = feeds[wiring.graph.inputs.input_ids][0].tolist()[: wiring.context]
    whole = session.run(feeds)[wiring.graph.outputs.logits][0]
    start = max(1, len(tokens) - CHAIN)
    decoding = open_decoding(session, wiring, len(tokens))
    got = [decoding.feed(tokens[:start])]  # 2
    got += [decoding.feed([token]) for token in tokens[start:]]
    first, second = log_shares(whole[start - 1 : len(tokens)]), log_shares(np.stack(got))
    is_possible = np.isfinite(first)  # A model may exclude tokens.
    differences = np.where(is_possible, first, 0) - np.where(is_possible, second, 0)
    apart = (np.exp(first) * differences).sum(axis=-1).mean()
    divergence = float(apart) if np.isfinite(apart) else float("inf")
    right = divergence <= MOST_DIVERGENCE
    because = (
        f"{len(got)} tokens over the cache are {max(divergence, 0):.2g} nats from the text at "
        f"once, at most {MOST_DIVERGENCE:g} are right"
    )
    paces = tuple(_measure(wiring, session, tokens)) if right else ()  # 3
    return TextProof(right=right, because=because, cache_bytes=cache_bytes, paces=paces)


def prove_vectors(bundle: Path, session: Session, variant: Variant) -> TextProof | None:
    """Compare tokens and vectors of golden texts with those of the build.

    Returns:
        The proof; None for a device that makes no vectors of texts: a package is missing.

    Raises:
        EdgepackError: The files do not fit the model, or the provider failed.
    """
    text = decode_manifest((bundle / MANIFEST_FILE).read_bytes()).facts.description.text
    if text is None or not has_tokenizers():
        return None
    tokenizer, texts = (
        read_bounded(bundle / name, MAX_ASSET_BYTES) for name in (TOKENIZER, GOLDEN_TEXTS)
    )
    right, because = compare_texts(
        TextVectors(text, session.inputs, tokenizer),
        convert_json(
            parse_json(texts, limit_bytes=MAX_ASSET_BYTES, found_in=GOLDEN_TEXTS),
            list[GoldenText],
            found_in=GOLDEN_TEXTS,
        ),
        session.run,
        least=least_cosine(variant.facts.tolerances.get(text.output)),
    )
    return TextProof(right=right, because=because)


def least_cosine(tolerance: GoldenTolerance | None) -> float | None:
    """Return the least cosine of golden texts' vectors; None for an output that is not evaluated.

    Args:
        tolerance: Of the output, for the golden samples.
    """
    return None if tolerance is None else 1 - _TIMES * (1 - tolerance.cosine_min)


def _fill_cache(wiring: Wiring, session: Session) -> int:
    """Take the memory of a full context, and return its bytes."""
    decoding = open_decoding(session, wiring, wiring.context)
    return decoding.fill()


def _measure(wiring: Wiring, session: Session, tokens: list[int]) -> Iterator[TextPace]:
    """Yield the pace after each prompt."""
    fitting = [one for one in PROMPTS if one < wiring.context] or [wiring.context // 2]
    expected_s = 0.0
    for number in fitting:
        if expected_s > PACED_S:
            return
        prompt = np.resize(tokens, number).tolist()
        most = min(_MOST_PACED, wiring.context - number)
        decoding = open_decoding(session, wiring, number + most)
        began = time.perf_counter()
        decoding.feed(prompt)
        first = time.perf_counter()
        count = 0
        while count < most and (not count or time.perf_counter() - first < PACED_S):
            decoding.feed(prompt[:1])
            count += 1
        further_s = time.perf_counter() - first
        yield TextPace(
            prompt_tokens=number,
            first_token_ms=(first - began) * 1000,
            tokens_per_s=count / further_s,
        )
        expected_s = (first - began) * max(PROMPTS) / number


if __name__ == "__main__":
    main(prove_texts)
