"""Texts of a release: prompt, inferences, sampling and text pieces."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from importlib.util import find_spec
from time import monotonic
from typing import Protocol

import msgspec
import numpy as np

from edgepack.agent.generation.decoding import (
    CacheMemoryError,
    Decoding,
    check_wiring,
    running_bytes,
)
from edgepack.agent.generation.fixed_decoding import open_decoding
from edgepack.agent.generation.grammar import Grammar, Grammars, Schema
from edgepack.agent.generation.prefixes import Prefix, Prefixes
from edgepack.agent.generation.sampling import Sampler, Sampling, choose_sampling
from edgepack.agent.generation.template import ChatTemplate, Message
from edgepack.agent.generation.tokenizing import TextStream, TextTokenizer
from edgepack.agent.generation.wiring import Wiring, read_wiring
from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.bundle.generation import GENAI_CONFIG, TOKENIZER
from edgepack.tasks.tokens.sketch import SURPRISAL_TOKENS, surprisal_of

PACKAGES = ("jinja2", "tokenizers")
TEXT_LOGITS_BYTES = 16 * 1024 * 1024
"""Logits of a text that runs at once, at most."""
MOST_STOPS = 16
MOST_STOP_LETTERS = 1000

Prompt = str | Sequence[Message]
"""A text that the model continues, or messages that it answers."""


class TextPiece(msgspec.Struct, frozen=True, kw_only=True):
    """New part of a text.

    Attributes:
        text: Characters; "" while a character or a stop string is not complete.
        token: The token that brought the part.
        finish_reason: `stop` at an end token or a stop string, `length` at the limit; "" before.

    Example:
        ```python
        from edgepack.agent import TextPiece, open_model

        def show(piece: TextPiece) -> None:
            print(piece.text, end="", flush=True)

        with open_model("chat") as model:
            for piece in model.generate("Once upon a time", max_tokens=20):
                show(piece)
        ```
    """

    text: str
    token: int
    finish_reason: str = ""


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a text; None leaves the choice to the model.

    Attributes:
        prompt: What comes before.
        max_tokens: New tokens at most; None fills the context.
        temperature, top_k, top_p, seed: See `Sampling`.
        stop: Strings that end the text.
        most_tokens: Tokens of prompt and text together, at most; 0 for the model's context.
        adapter: Name of the adapter that writes with the model; None for the model alone.
        schema: JSON schema that the text follows; None for a free text.
    """

    prompt: Prompt
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    most_tokens: int = 0
    adapter: str | None = None
    schema: Schema | None = None


class PreparedText(msgspec.Struct, frozen=True, kw_only=True):
    """Request that was checked against a release.

    Attributes:
        tokens: The prompt.
        most: New tokens, at most.
        sampling: Choice of tokens.
        stop: Strings that end the text.
        grammar: Schema that the text follows; None for a free text.
    """

    tokens: list[int]
    most: int
    sampling: Sampling
    stop: tuple[str, ...]
    grammar: Grammar | None = None

    @property
    def capacity(self) -> int:
        """Tokens that the cache holds: the last token is not fed."""
        return len(self.tokens) + self.most - 1


class NoteStep(Protocol):
    """Function that is called after each token of a text."""

    def __call__(self, taken_s: float, surprisal: float | None, /) -> object:
        """Note a token.

        Args:
            taken_s: Seconds that its inference took.
            surprisal: See `surprisal_of`; None for later tokens, and for texts whose sampling is
                not the release's own, since a build draws the surprisal that is usual with that.
        """
        ...


def has_packages() -> bool:
    """Check whether the packages of texts are installed."""
    return all(find_spec(name) is not None for name in PACKAGES)


class TextModel:
    """Decoder of a release with its tokenizer and chat template; for any number of threads.

    Args:
        session: The decoder.
        files: Files of the release by name, with a wiring and a tokenizer.

    Attributes:
        wiring: Tensors and sizes of the decoder.
        tokenizer, template: Tokenizer and chat template.

    Raises:
        BundleError: The files do not fit the model.
        DeviceError: The packages are not installed.
    """

    def __init__(self, session: Session, files: Mapping[str, bytes]) -> None:
        self.wiring: Wiring = read_wiring(files[GENAI_CONFIG])
        check_wiring(self.wiring, session)
        self.tokenizer = TextTokenizer(files[TOKENIZER], self.wiring.vocabulary)
        self.template = ChatTemplate(files)
        self._grammars = Grammars(files[TOKENIZER], self.wiring.vocabulary, self.wiring.end_tokens)
        self._session = session
        self._owner, self._prefixes = object(), Prefixes()

    def with_session(self, session: Session) -> "TextModel":
        """Return the same with another session, such as that of an adapter."""
        texts = copy(self)
        texts._session, texts._owner = session, object()
        return texts

    def prepare(self, request: TextRequest) -> PreparedText:
        """Check a request, and return its tokens.

        Raises:
            ValueError: A value is out of range, the prompt does not fit, or the schema cannot be
                used.
            GrammarError: No text can follow a schema here.
        """
        wiring, prompt = self.wiring, request.prompt
        stop = _check_stop(request.stop)
        is_chat = not isinstance(prompt, str)
        text = self.template.render(prompt) if not isinstance(prompt, str) else prompt
        sampling = choose_sampling(
            wiring.sampling,
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            seed=request.seed,
        )
        context = min(wiring.context, request.most_tokens or wiring.context)
        tokens = self.tokenizer.encode(text, context=context, is_whole=is_chat)
        room = context - len(tokens)
        most = room if request.max_tokens is None else request.max_tokens
        if most < 1:
            raise ValueError(f"max_tokens is at least 1, not {most}")
        return PreparedText(
            tokens=tokens,
            most=min(most, room),
            sampling=sampling,
            stop=stop,
            grammar=None if request.schema is None else self._grammars.open(request.schema),
        )

    def feeds_of(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        """Return the inputs that run a text at once, with an empty cache.

        Args:
            tokens: The text; of a long text the last tokens, so that the logits stay small.
        """
        graph, session = self.wiring.graph, self._session
        logits = next(one for one in session.outputs if one.name == graph.outputs.logits)
        most = max(
            1, TEXT_LOGITS_BYTES // (self.wiring.vocabulary * np.dtype(logits.dtype).itemsize)
        )
        ids = np.array([list(tokens)[-most:]])
        empty = (1, graph.num_key_value_heads, 0, graph.head_size)
        rows = {
            graph.inputs.input_ids: ids,
            graph.inputs.attention_mask: np.ones_like(ids),
            graph.inputs.position_ids: np.arange(ids.size)[None],
        }
        return {
            one.name: rows.get(one.name, np.zeros(empty)).astype(one.dtype)
            for one in session.inputs
        }

    def begin(self, capacity: int) -> Decoding:
        """Return the cache of a text.

        Args:
            capacity: Tokens that the cache holds.

        Raises:
            CacheMemoryError: There is no memory for the cache.
        """
        try:
            return open_decoding(self._session, self.wiring, capacity)
        except CacheMemoryError:
            if not self._prefixes.size_bytes:
                raise
            self._prefixes.shrink(0)
            return open_decoding(self._session, self.wiring, capacity)

    def _most_prefix_bytes(self, own_bytes: int) -> int:
        """Return the memory that kept beginnings may take: what running texts leave of a context.

        `limits.memory_bytes` counts the cache of a full context for each model.

        Args:
            own_bytes: Memory of a running text that ends.
        """
        return max(0, self._token_bytes * self.wiring.context - running_bytes() + own_bytes)

    @property
    def _token_bytes(self) -> int:
        """Memory of a token's keys and values."""
        graph, past = self.wiring.graph, self.wiring.cache_names[0][0]
        dtype = np.dtype(next(one.dtype for one in self._session.inputs if one.name == past))
        values = graph.num_key_value_heads * graph.head_size
        return 2 * graph.num_hidden_layers * values * dtype.itemsize

    def _take_prefix(self, prompt: list[int], decoding: Decoding) -> list[int]:
        """Begin a text with a kept beginning; return the tokens of the prompt that remain."""
        if decoding.length:
            return prompt
        length, prefix = self._prefixes.find(self._owner, decoding.steps, prompt)
        if prefix is not None:
            decoding.take_cache(prefix.cache, length)
        self._prefixes.shrink(self._most_prefix_bytes(0))
        decoding.cached = length
        return prompt[length:]

    def _keep_prefix(self, prompt: list[int], decoding: Decoding) -> None:
        """Keep the beginning of a prompt that a text computed."""
        steps = decoding.steps
        length = len(prompt) // steps * steps
        if not length or decoding.length < len(prompt):
            return
        if self._prefixes.find(self._owner, steps, [*prompt, 0])[0] == length:
            return
        most = self._most_prefix_bytes(decoding.size_bytes)
        if length * self._token_bytes > most:
            return
        with suppress(MemoryError):
            cache = decoding.copy_cache(length)
            tokens = np.array(prompt[:length], np.int64)
            self._prefixes.keep(Prefix(self._owner, steps, tokens, cache), most)

    def write(
        self, prepared: PreparedText, decoding: Decoding, note_step: NoteStep
    ) -> Iterator[TextPiece]:
        """Yield the pieces of a text; the beginning of the prompt is kept for the next text.

        Args:
            prepared: The request.
            decoding: Its cache.
            note_step: Called after each token.

        Raises:
            DeviceError: The provider failed.
        """
        try:
            yield from self._write(prepared, decoding, note_step)
        finally:
            self._keep_prefix(prepared.tokens, decoding)

    def _write(
        self, prepared: PreparedText, decoding: Decoding, note_step: NoteStep
    ) -> Iterator[TextPiece]:
        sampler, grammar = Sampler(prepared.sampling, prepared.tokens), prepared.grammar
        is_own = grammar is None and self._is_own_sampling(prepared.sampling)
        measured = SURPRISAL_TOKENS if is_own else 0
        stream = TextStream(self.tokenizer, prepared.stop)
        for number in range(1, prepared.most + 1):
            began = monotonic()
            if number == 1:
                tokens = self._take_prefix(prepared.tokens, decoding)
            logits = decoding.feed(tokens)
            if grammar is not None:
                grammar.restrict(logits)
            token = sampler.pick(logits)
            if grammar is not None:
                grammar.take(token)
            surprisal = surprisal_of(logits, token) if number <= measured else None
            note_step(monotonic() - began, surprisal)
            is_end = token in self.wiring.end_tokens
            text = "" if is_end else stream.add(token)
            is_end = is_end or (grammar is not None and grammar.is_complete)
            is_over = is_end or stream.is_stopped or number == prepared.most
            if is_over and not stream.is_stopped:
                text += stream.end()
            reason = "stop" if is_end or stream.is_stopped else "length" if is_over else ""
            yield TextPiece(text=text, token=token, finish_reason=reason)
            if is_over:
                return
            tokens = [token]

    def _is_own_sampling(self, sampling: Sampling) -> bool:
        """Return True if a text is sampled as the release asks for; the seed may be any."""
        return sampling == choose_sampling(self.wiring.sampling, seed=sampling.seed)


def _check_stop(stop: Sequence[str]) -> tuple[str, ...]:
    """Return stop strings.

    Raises:
        ValueError: One is empty or too long, or there are too many.
    """
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MOST_STOPS:
        raise ValueError(f"a text has at most {MOST_STOPS} stop strings, not {len(strings)}")
    for one in strings:
        if not isinstance(one, str) or not 0 < len(one) <= MOST_STOP_LETTERS:
            raise ValueError(f"a stop string has 1 to {MOST_STOP_LETTERS} characters")
    return strings
