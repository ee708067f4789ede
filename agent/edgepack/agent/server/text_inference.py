"""Text of a request: written by a thread of the model, shown piece by piece to the event loop."""

from collections.abc import Callable
from time import perf_counter_ns

from edgepack.agent.generation.decoding import TextCancelledError
from edgepack.agent.generation.texts import TextPiece, TextRequest
from edgepack.agent.server.hosted_model import Inference
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.serving.following import Follower
from edgepack.agent.serving.model_session import ModelSession
from edgepack.agent.serving.text_generation import TEXT_HOLD_S, OwnGeneration


class TextInference(Inference):
    """Text of a request.

    Args:
        request: The request.
        watch: Times.
        show: Called with each piece, in the thread that writes the text.

    Attributes:
        prompt_tokens, completion_tokens: Tokens so far.
        cached_tokens: Tokens of the prompt that an earlier text computed.
        first_ms: Time from the request to the first token; 0 before.
        token_ms: Mean time of a token after the first; 0 before the second.
    """

    is_long = True

    def __init__(
        self, request: TextRequest, watch: Stopwatch, show: Callable[[TextPiece], object]
    ) -> None:
        super().__init__({}, None, watch)
        self._request, self._show = request, show
        self._is_cancelled = False
        self._generation: OwnGeneration | None = None
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.first_ms = self.token_ms = 0.0

    @property
    def progress_ns(self) -> int:
        """Time at which the last inference began, nanoseconds."""
        generation = self._generation
        return self.watch.started if generation is None else generation.progress_ns

    def cancel(self) -> None:
        """End the text at the next inference, also within the prompt: nobody reads it."""
        self._is_cancelled, generation = True, self._generation
        if generation is not None:
            generation.cancel()

    def run(self, follower: Follower) -> None:
        """Write the text in any thread.

        Raises:
            TextCancelledError: The text was cancelled.
            Exception: Whatever `Model.generate` raises.
        """
        if self._is_cancelled:
            raise TextCancelledError
        session = ModelSession(follower, hold_s=TEXT_HOLD_S)
        with OwnGeneration(session, self._request, closes_session=True) as generation:
            self.bundle, self.prompt_tokens = generation.bundle, generation.prompt_tokens
            self._generation = generation
            if self._is_cancelled:  # Before the line above.
                raise TextCancelledError
            for piece in generation:
                self.completion_tokens = generation.completion_tokens
                self.cached_tokens = generation.cached_tokens
                self.token_ms = generation.token_ms
                if not self.first_ms:
                    self.first_ms = (perf_counter_ns() - self.watch.began) / 1e6
                if self._is_cancelled:
                    raise TextCancelledError
                self._show(piece)
