"""Tokens and characters: a prompt becomes tokens, and new tokens become text piece by piece."""

from collections.abc import Sequence
from typing import Any

from edgepack.bundle.generation import TOKENIZER
from edgepack.errors import BundleError, DeviceError
from edgepack.extras import install_command

LETTERS_PER_TOKEN = 100
"""A longer prompt does not fit into the context, whatever its letters."""

_HOLE = "\ufffd"
"""Stands for bytes that are no character, or not yet."""
_MOST_HELD = 16
"""Tokens that are held back for the rest of a character; a character has 4 bytes."""


class TextTokenizer:
    """Tokenizer of a release.

    Args:
        content: A `tokenizer.json`.
        vocabulary: Tokens that the model tells apart.

    Raises:
        DeviceError: The package is not installed.
        BundleError: The file is malformed, or has more tokens than the model.
    """

    def __init__(self, content: bytes, vocabulary: int) -> None:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise missing_package(error) from error
        try:
            self._tokenizer: Any = Tokenizer.from_str(content.decode())
            number = self._tokenizer.get_vocab_size(with_added_tokens=True)
            highest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        except Exception as error:
            raise BundleError(
                f"the tokenizer cannot be read: {str(error)[:200]}", found_in=TOKENIZER
            ) from error
        if highest >= vocabulary:
            raise BundleError(
                f"the tokenizer has {number} tokens up to {highest}, the model {vocabulary}",
                found_in=TOKENIZER,
                remedy="build the bundle with the tokenizer of its model",
            )
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, text: str, *, context: int, is_whole: bool) -> list[int]:
        """Return the tokens of a prompt.

        Args:
            text: The prompt.
            context: Tokens that the model takes.
            is_whole: Whether the prompt has its special tokens, as the chat template writes them.

        Raises:
            ValueError: The prompt is empty, or too long.
        """
        if len(text) > LETTERS_PER_TOKEN * context:
            raise ValueError(
                f"the prompt has {len(text)} characters, the model's context is {context} tokens"
            )
        try:
            tokens = self.tokens_of(text, has_special=is_whole)
        except ValueError as error:
            raise ValueError(f"the prompt has no tokens: {error}") from error
        if not tokens:
            raise ValueError("the prompt has no tokens")
        if len(tokens) >= context:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, the model's context is {context}: at least "
                "one must be left for the answer"
            )
        return tokens

    def tokens_of(self, text: str, *, has_special: bool) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: The text.
            has_special: Whether the text has its special tokens; else these are added.

        Raises:
            ValueError: The tokenizer cannot read the text.
        """
        try:
            tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=not has_special).ids
        except Exception as error:
            raise ValueError(str(error)[:200]) from error
        return tokens

    def special_tokens(self) -> frozenset[int]:
        """Return the tokens that stand for no text."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, facts in added.items() if facts.special)

    def texts_behind_a_word(self, tokens: Sequence[int] = ()) -> dict[int, str]:
        """Return the text that each token adds to a word, with a space where a word begins.

        Args:
            tokens: The tokens; all for ().
        """
        known: list[int] = sorted(self._tokenizer.get_vocab(with_added_tokens=True).values())
        singles = ((token, self._tokenizer.decode([token])) for token in known)
        words = ((token, text) for token, text in singles if text.isascii() and text.isalpha())
        word, before = next(words, (None, ""))
        if word is None:
            return {}
        chosen = tokens or known
        texts: list[str] = self._tokenizer.decode_batch([[word, token] for token in chosen])
        return {token: text[len(before) :] for token, text in zip(chosen, texts, strict=True)}

    def find_token(self, text: str) -> int | None:
        """Return the token of a text; None if no single token is this text."""
        token: int | None = self._tokenizer.token_to_id(text)
        return token

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class TextStream:
    """New text of tokens that come one by one, up to a stop string.

    A character of several tokens comes with its last token. Text that may begin a stop string comes
    once the next tokens decide.

    Args:
        tokenizer: Decodes.
        stop: Strings that end the text; they are not part of the text.

    Attributes:
        is_stopped: Whether a stop string was found.
    """

    def __init__(self, tokenizer: TextTokenizer, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._tokens: list[int] = []
        self._shown = 0
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """Return the text that the token brings."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[: self._shown])
        now = self._tokenizer.decode(self._tokens)
        is_open = now.endswith(_HOLE) or len(now) <= len(before)
        if is_open and len(self._tokens) - self._shown < _MOST_HELD:
            return ""
        # The tokens just shown remain: a decoder may strip the space before the first token.
        self._tokens = self._tokens[self._shown :]
        self._shown = len(self._tokens)
        return self._pass(now[len(before) :], is_last=False)

    def end(self) -> str:
        """Return the text that was held back."""
        before = self._tokenizer.decode(self._tokens[: self._shown])
        now = self._tokenizer.decode(self._tokens)
        self._tokens = []
        self._shown = 0
        return self._pass(now[len(before) :], is_last=True)

    def _pass(self, text: str, *, is_last: bool) -> str:
        """Return the text up to a stop string, without what may begin one."""
        if self.is_stopped:
            return ""
        text, self._held = self._held + text, ""
        found = [at for at in (text.find(one) for one in self._stop) if at >= 0]
        if found:
            self.is_stopped = True
            return text[: min(found)]
        if is_last:
            return text
        held = max((_count_begun(text, one) for one in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _count_begun(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that begins a stop string."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)


def missing_package(error: ModuleNotFoundError) -> DeviceError:
    """Return the error of a device without the packages of texts."""
    return DeviceError(
        f"texts need the package {error.name}, which is not installed",
        remedy=install_command("generative"),
    )
