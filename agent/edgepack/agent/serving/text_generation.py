"""A text that a model writes: all its tokens come from one release."""

from contextlib import suppress
from time import perf_counter_ns
from typing import Protocol

from edgepack.agent.generation.decoding import Decoding, TextCancelledError
from edgepack.agent.generation.texts import (
    PACKAGES,
    TextModel,
    TextPiece,
    TextRequest,
    has_packages,
)
from edgepack.agent.serving.adapters import OpenedAdapter
from edgepack.agent.serving.opened import OpenedModel
from edgepack.agent.serving.text_pieces import Generation
from edgepack.errors import DeviceError
from edgepack.extras import install_command
from edgepack.wire.orders import BundleRef

TEXT_HOLD_S = 3600.0
"""How long a text keeps a release that was replaced."""


class HeldRelease(Protocol):
    """Release that a session holds."""

    @property
    def bundle(self) -> BundleRef:
        """The bundle of the release."""

    def release(self) -> OpenedModel:
        """Return the release; raise as `ModelSession.release` does."""

    def close(self) -> None:
        """End the hold."""


class _Pace:
    """Pace of a text. The text refers to it: a reference to `Generation` would be a cycle."""

    def __init__(self) -> None:
        self.tokens = 0
        self.first_ms = self.further_ms = 0.0
        self.surprisals: list[float] = []

    def note(self, taken_s: float, surprisal: float | None) -> None:
        """Count a token; see `NoteStep`."""
        if surprisal is not None:
            self.surprisals.append(surprisal)
        if self.tokens:
            self.further_ms += taken_s * 1000
        else:
            self.first_ms = taken_s * 1000
        self.tokens += 1


class OwnGeneration(Generation):
    """Text that this process writes.

    Args:
        session: Holds the release.
        request: The request.
        closes_session: Whether the session ends with the text.
    """

    def __init__(self, session: HeldRelease, request: TextRequest, *, closes_session: bool) -> None:
        self._session, self._closes_session = session, closes_session
        self._is_over = True
        self._prompt_tokens = self._cached_tokens = 0
        self._pace = _Pace()
        try:
            release = session.release()
            texts = _texts_of(release)
            self._bundle, self._record = session.bundle, release.record
            self._adapter: OpenedAdapter | None = None
            if request.adapter is not None and release.adapters is not None:
                self._adapter = adapter = release.adapters.find(request.adapter)
                texts, self._bundle, self._record = adapter.texts, adapter.bundle, adapter.record
            prepared = texts.prepare(request)
            decoding = texts.begin(prepared.capacity)
        except BaseException:
            self._end_session()
            raise
        self._prompt_tokens = len(prepared.tokens)
        self._tokens = list(prepared.tokens)
        self._is_over = False
        decoding.note_progress = release.note_running
        self._decoding: Decoding | None = decoding
        self._pieces = texts.write(prepared, decoding, self._pace.note)

    @property
    def bundle(self) -> BundleRef:
        """The bundle that writes the text: of an adapter, its own."""
        return self._bundle

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that an earlier text of the release computed; 0 before the first."""
        return self._cached_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens written so far."""
        return self._pace.tokens

    @property
    def first_token_ms(self) -> float:
        """Milliseconds of inference until the first token; 0 before."""
        return self._pace.first_ms

    @property
    def progress_ns(self) -> int:
        """Start of the last inference, nanoseconds of the process's clock; now after the end."""
        decoding = self._decoding
        return perf_counter_ns() if decoding is None else decoding.progress_ns

    @property
    def token_ms(self) -> float:
        """Mean milliseconds of inference of each token after the first; 0 before the second."""
        return self._pace.further_ms / max(1, self._pace.tokens - 1)

    def __next__(self) -> TextPiece:
        """Return the next piece.

        Raises:
            DeviceError: The provider failed, or a newer release serves and the text's time for its
                own is over.
            TextCancelledError: The text is cancelled.
            ValueError: The model is closed.
        """
        if self._is_over:
            raise StopIteration
        release: OpenedModel | None = None
        try:
            release = self._session.release()
            with release.running():
                piece = next(self._pieces)
        except BaseException as error:
            is_failure = isinstance(error, Exception) and not isinstance(error, TextCancelledError)
            if release is not None and is_failure:
                self._record.fail()
            self._end()
            raise
        self._tokens.append(piece.token)
        self._cached_tokens = self._decoding.cached if self._decoding else 0
        if piece.finish_reason:
            self._count(release)
            self._end()
        return piece

    def cancel(self) -> None:
        """Let the next inference raise `TextCancelledError`, also within a prompt; any thread."""
        decoding = self._decoding
        if decoding is not None:
            decoding.is_cancelled = True

    def close(self) -> None:
        """End the text; a text that was begun counts as an inference."""
        if not self._is_over:
            with suppress(ValueError, DeviceError):  # The model is closed, or the time is over.
                if self.completion_tokens:
                    self._count(self._session.release())
            self._end()

    def __del__(self) -> None:
        if hasattr(self, "_is_over"):
            self.close()

    def _count(self, release: OpenedModel) -> None:
        """Count and sketch the text as one inference, and offer the text for comparison."""
        token_ms = self.token_ms or self.first_token_ms / self.prompt_tokens
        self._record.latency.record_text(self.first_token_ms, token_ms)
        self._record.sketches.offer_text(self._tokens[: self._prompt_tokens], self._pace.surprisals)
        shadow, texts = release.shadow, release.texts
        if shadow is not None and texts is not None and self._adapter is None:
            shadow.offer_text(texts.feeds_of(self._tokens), texts.feeds_of(self._tokens[-1:]))

    def _end(self) -> None:
        self._is_over = True
        self._pieces, self._decoding = iter(()), None  # The cache is freed.
        self._end_session()

    def _end_session(self) -> None:
        if self._closes_session:
            self._session.close()


def _texts_of(release: OpenedModel) -> TextModel:
    """Return what writes the texts of a release.

    Raises:
        ValueError: The model writes no texts.
        DeviceError: The packages are not installed.
    """
    if release.texts is not None:
        return release.texts
    if release.description.prompt is not None:
        raise ValueError("the model makes a text of a text: call complete")
    if not release.has_texts:
        raise ValueError("the model writes no texts: its bundle has no facts of a generation")
    if not has_packages():
        raise DeviceError(
            f"texts need the packages {' and '.join(PACKAGES)}, which are not installed",
            remedy=install_command("generative"),
        )
    raise DeviceError(
        "the packages for texts were installed after the model was opened",
        remedy="open the model again",
    )
