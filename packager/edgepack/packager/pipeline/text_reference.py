"""Reference features of a model that generates texts: prompts, and texts of the float model.

Devices sketch the texts that they serve (`edgepack.tasks.tokens.sketch`). The float model continues
some prompts with the sampling that the model asks for, as a device does for a request without
settings of its own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from edgepack.agent.generation.sampling import Sampler, choose_sampling
from edgepack.agent.generation.tokenizing import TextTokenizer
from edgepack.agent.generation.wiring import Wiring, read_wiring
from edgepack.bundle.drift import draw_features
from edgepack.bundle.generation import TOKENIZER
from edgepack.bundle.metadata import MAX_WORDS, Feature
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.token_steps import next_feeds, without_end
from edgepack.packager.source.texts import TextSource
from edgepack.packager.tensors.decoders import Decoder
from edgepack.packager.tensors.sequence import Feeds, SampleSplit
from edgepack.tasks.arrays import Integers
from edgepack.tasks.tokens.sketch import (
    PROMPT,
    SURPRISAL_TOKENS,
    TEXT,
    groups_of,
    name_group,
    sketch_prompt,
    sketch_surprisals,
    surprisal_of,
)

_MOST_PROMPTS = 128
_MOST_TEXTS = 24
"""Prompts that the float model continues: 192 tokens, half a minute of a model of 135 M weights."""

_SHOWN_TOKENS = 2


def draw_text_reference(texts: TextSource, split: SampleSplit, run: Run) -> Iterator[Feature]:
    """Yield the features of prompts, and of texts that the float model writes.

    Args:
        texts: Facts of the model.
        split: Prompts with answers.
        run: Runs the float model.

    Raises:
        BuildError: The float model does not run on a text.
    """
    wiring = read_wiring(texts.config_for("model.onnx"))
    samples = split.held_out.extend(
        [(part, index) for part in (split.search, split.calibration) for index in range(part.count)]
    )
    decoder = samples.decoder
    if decoder is None:
        return
    begun = [
        without_end(decoder, samples.read(index), samples.whole_answer_tokens(index))
        for index in range(min(samples.count, _MOST_PROMPTS))
    ]
    prompts = [feeds[decoder.tokens].reshape(-1).astype(np.int64) for feeds in begun]
    drawn = draw_features(PROMPT, [*map(sketch_prompt, prompts)], " of the prompt")
    yield from _with_examples(drawn, texts, np.concatenate(prompts))
    written = [
        sketch_surprisals([*_surprisals(decoder, wiring, feeds, run, seed)])
        for seed, feeds in enumerate(begun[:_MOST_TEXTS])
    ]
    yield from draw_features(TEXT, written, " of a token")


def _surprisals(
    decoder: Decoder, wiring: Wiring, feeds: Feeds, run: Run, seed: int
) -> Iterator[float]:
    """Yield the surprisal of each token that the float model writes after a prompt."""
    prompt = feeds[decoder.tokens].reshape(-1).tolist()
    sampler = Sampler(choose_sampling(wiring.sampling, seed=seed), prompt)
    for _ in range(min(SURPRISAL_TOKENS, wiring.context - len(prompt))):
        outputs = run(feeds)
        scores = outputs[decoder.scores]
        logits = scores.reshape(-1, scores.shape[-1])[-1].astype(np.float32)
        token = sampler.pick(logits)
        yield surprisal_of(logits, token)
        if token in wiring.end_tokens:
            return
        feeds = next_feeds(decoder, feeds, outputs, token)


def _with_examples(
    features: Sequence[Feature], texts: TextSource, tokens: Integers
) -> Iterator[Feature]:
    """Yield features with the most frequent tokens of a group in their words."""
    path = next(file for file in texts.files if file.name == TOKENIZER)
    tokenizer = TextTokenizer(path.read_bytes(), texts.vocabulary)
    frequent = [token for token, _ in Counter(tokens.tolist()).most_common()]
    examples: dict[str, list[str]] = {}
    for token, group in zip(frequent, groups_of(frequent).tolist(), strict=True):
        if shown := tokenizer.decode([token]).strip().replace("\ufffd", ""):
            examples.setdefault(name_group(group), []).append(ascii(shown))
    for feature in features:
        if found := examples.get(feature.name, ())[:_SHOWN_TOKENS]:
            name = f"{feature.name} ({', '.join(found)} …)"
            words = feature.words.replace(feature.name, name)[:MAX_WORDS]
            feature = msgspec.structs.replace(feature, words=words)
        yield feature
