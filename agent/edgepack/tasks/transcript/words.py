"""Words of a text of tokens, without the tokenizer.

The build looks up in the tokenizer which tokens begin a word, and which are no text. A word is
compared by its tokens: the same word of other tokens is another word.
"""

import base64
from typing import Annotated, Any

import msgspec

from edgepack.bitmap import pack_bits
from edgepack.decoding import convert_value
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.description import TaskOutputs

Word = tuple[int, ...]
"""Tokens of a word."""

_MOST_RANGES = 2**16
_MOST_LETTERS = 2**22
"""Of the bitmap of a vocabulary of 2^24 tokens in base64: less than that."""

_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of a vocabulary: settings of the task.

    Attributes:
        begins: Tokens that begin a word, a bitmap (`edgepack.bitmap`) in base64; "" where each
            token is compared by itself.
        silent: First and last token of each range of tokens that are no text.
    """

    begins: Annotated[str, msgspec.Meta(max_length=_MOST_LETTERS)] = ""
    silent: Annotated[tuple[tuple[_Token, _Token], ...], msgspec.Meta(max_length=_MOST_RANGES)] = ()

    @classmethod
    def of_tokens(cls, begins: set[int], silent: set[int]) -> "TokenSettings":
        """Return the settings of a vocabulary.

        Args:
            begins: Tokens that begin a word; empty where each token is compared by itself.
            silent: Tokens that are no text.
        """
        bitmap = pack_bits(begins, max(begins, default=-1) + 1)
        firsts = sorted(token for token in silent if token - 1 not in silent)
        lasts = sorted(token for token in silent if token + 1 not in silent)
        return cls(
            begins=base64.b64encode(bitmap).decode(), silent=tuple(zip(firsts, lasts, strict=True))
        )

    @property
    def as_settings(self) -> dict[str, Any]:
        """Return the settings of a part of a description."""
        settings: dict[str, Any] = msgspec.to_builtins(self)
        return settings


class WordReader:
    """Reads the words of an output.

    Args:
        part: Names the output, with its settings.

    Raises:
        ValueError: The settings are malformed.

    Attributes:
        unit: Noun of what is compared: `word`, or `token`.
    """

    def __init__(self, part: TaskOutputs) -> None:
        known = convert_value(part.settings, TokenSettings)
        self._output = part.outputs[0]
        self._begins = base64.b64decode(known.begins, validate=True)
        self._silent = known.silent
        self.unit = "word" if self._begins else "token"

    def read(self, value: Tensor | None) -> tuple[Word, ...]:
        """Return the words of an output; () if it has no tokens."""
        words: list[Word] = []
        for token in self.tokens_of(value):
            if words and self._begins and not self._begins_word(token):
                words[-1] += (token,)
            else:
                words.append((token,))
        return tuple(words)

    def tokens_of(self, value: Tensor | None) -> list[int]:
        """Return the tokens of an output that are text."""
        if value is None or value.dtype.kind not in "iu":
            return []
        return [
            token
            for token in value.ravel().tolist()
            if token >= 0 and not any(first <= token <= last for first, last in self._silent)
        ]

    def _begins_word(self, token: int) -> bool:
        byte = self._begins[token >> 3] if token >> 3 < len(self._begins) else 0
        return bool(byte >> (token & 7) & 1)
