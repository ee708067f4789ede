"""Words of a vocabulary: the tokens that begin a word, as the tokenizer writes them.

A token begins a word if the tokenizer writes a space before it, whatever marks that in the
vocabulary: `Ġ` of byte-level tokens, `▁` of SentencePiece, no `##` of WordPiece. Chinese, Japanese,
Thai, Lao, Khmer and Burmese have no spaces between words: in texts that are mostly of these, each
token is compared by itself, and in other texts each token of these counts as a word.
"""

import re
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from edgepack.agent.generation.tokenizing import TextTokenizer
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.inputs import PromptInput, SoundInput
from edgepack.tasks.transcript.words import TokenSettings, WordReader

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    "\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
"""Unicode's blocks of scripts without spaces."""


def with_words(
    part: TaskOutputs,
    described: SoundInput | PromptInput,
    tokenizer: bytes,
    expected: Sequence[Outputs],
) -> TaskOutputs:
    """Return the part with the words of its vocabulary.

    Args:
        part: The output of tokens.
        described: Input of the model; names the size of the vocabulary.
        tokenizer: A `tokenizer.json`.
        expected: The float model's outputs: their script decides whether there are words.
    """
    known = TextTokenizer(tokenizer, described.vocabulary)
    silent = set(known.special_tokens())
    if isinstance(described, SoundInput) and described.timestamps:
        silent |= set(range(described.timestamps, described.vocabulary))
    behind = known.texts_behind_a_word()
    spaced = {token for token, text in behind.items() if text[:1].isspace()}
    unspaced = {token for token, text in behind.items() if _UNSPACED.search(text)}
    settings = TokenSettings.of_tokens(set(), silent)
    own = replace(part, settings=settings.as_settings)
    if _count(own, expected, spaced) > _count(own, expected, unspaced):
        settings = TokenSettings.of_tokens((spaced | unspaced) - silent, silent)
    return replace(part, settings=settings.as_settings)


def _count(part: TaskOutputs, expected: Sequence[Outputs], chosen: Collection[int]) -> int:
    """Return how many tokens of the texts are among some tokens."""
    reader = WordReader(part)
    texts = (reader.tokens_of(outputs[part.outputs[0]]) for outputs in expected)
    return sum(token in chosen for text in texts for token in text)
