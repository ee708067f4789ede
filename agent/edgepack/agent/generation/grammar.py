"""Texts by a JSON schema: before each choice of a token, all tokens that the schema excludes are
made impossible.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from edgepack.agent.generation.sampling import Logits
from edgepack.errors import DeviceError
from edgepack.extras import install_command

Schema = Mapping[str, Any]
"""A JSON schema."""

ANY_OBJECT: Schema = {"type": "object"}
MOST_SCHEMA_BYTES = 128 * 1024
"""Of a schema as JSON. A schema of 2,000 patterns took 0.4 s on a server's core; llguidance itself
bounds depth, size of the grammar, and work for a token."""

_OPTIONS = {"whitespace_pattern": r"\n?[ ]{0,16}", "lenient": False}
"""Between tokens of JSON a line break and an indent: a small model may go on with spaces for ever
where any number is allowed."""


class GrammarError(DeviceError):
    """The device cannot bind a model's texts to schemas."""


class Grammar:
    """Schema of a single text, at a place in the text.

    Args:
        matcher: llguidance's matcher, at the beginning of the text.
        vocabulary: Tokens that the logits are of.
    """

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def restrict(self, logits: Logits) -> None:
        """Make the tokens that cannot come next impossible, in place.

        Args:
            logits: float32 (vocabulary,).

        Raises:
            DeviceError: A token takes more work than llguidance allows.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._failed()
        excluded = np.unpackbits(~bits, count=self._vocabulary, bitorder="little").view(np.bool_)
        np.copyto(logits, np.float32(-np.inf), where=excluded)

    def take(self, token: int) -> None:
        """Note the next token.

        Raises:
            DeviceError: The schema excludes the token.
        """
        if not self._matcher.consume_token(token):
            raise self._failed()

    @property
    def is_complete(self) -> bool:
        """True if nothing can follow: the text is valid."""
        return bool(self._matcher.is_stopped())

    def _failed(self) -> DeviceError:
        reason = _first_line(self._matcher.get_error())
        return DeviceError(
            f"the schema allows no next token: {reason}",
            remedy="give a simpler schema, with fewer alternatives and shorter patterns",
        )


class Grammars:
    """Makes grammars for a tokenizer; for any number of threads.

    Args:
        tokenizer: A `tokenizer.json`.
        vocabulary: Tokens that the logits are of.
        end_tokens: Tokens that end a text.
    """

    def __init__(self, tokenizer: bytes, vocabulary: int, end_tokens: Iterable[int]) -> None:
        self._content, self._vocabulary = tokenizer, vocabulary
        self._end_tokens = sorted(end_tokens)
        self._guard = threading.Lock()
        self._tokenizer: Any = None

    def open(self, schema: Schema) -> Grammar:
        """Return a grammar at the beginning of a text.

        Raises:
            ValueError: The schema is too long, or llguidance cannot use it; with its reason.
            GrammarError: llguidance is not installed, or cannot read the tokenizer.
        """
        if not isinstance(schema, Mapping):
            raise ValueError(  # noqa: TRY004 - one kind of error for what does not fit
                f"a schema is an object, not {type(schema).__name__}"
            )
        try:
            content = msgspec.json.encode(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the schema is not JSON: {error}") from error
        if len(content) > MOST_SCHEMA_BYTES:
            raise ValueError(f"the schema has {len(content)} bytes, at most {MOST_SCHEMA_BYTES}")
        library = _import()
        tokenizer = self._open_tokenizer(library)
        try:
            grammar = library.LLMatcher.grammar_from_json_schema(
                content.decode(), overrides=_OPTIONS
            )
        except ValueError as error:
            raise _unusable(str(error)) from error
        limits = library.LLParserLimits(verbose_errors=False)
        matcher = library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _unusable(matcher.get_error())
        matcher.compute_bitmask()
        if matcher.is_stopped():
            raise _unusable("no text fits")
        return Grammar(matcher, self._vocabulary)

    def _open_tokenizer(self, library: Any) -> Any:
        """Return the tokenizer, opened once: of a large vocabulary this takes a second."""
        with self._guard:
            if self._tokenizer is None:
                try:
                    self._tokenizer = library.LLTokenizer(
                        self._content.decode(),
                        n_vocab=self._vocabulary,
                        eos_token=self._end_tokens,
                    )
                except Exception as error:
                    raise GrammarError(
                        "texts of this model cannot follow a schema: llguidance does not read its "
                        f"tokenizer: {_first_line(str(error))}"
                    ) from error
            return self._tokenizer


def _import() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError as error:
        raise GrammarError(
            "texts by a JSON schema need the package llguidance, which is not installed: "
            + install_command("json")
        ) from error
    return llguidance


def _unusable(reason: str) -> ValueError:
    return ValueError(f"the schema cannot be used: {_first_line(reason)}")


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " ".join(line for line in lines[:4] if line.strip("^ "))[:300]
