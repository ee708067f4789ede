"""Text of a request: written by a thread of the model, shown piece by piece to the event loop."""

import time
from collections.abc import Callable

from edgepack.agent.generation.texts import TextPiece, TextRequest
from edgepack.agent.server.hosted_model import Inference, TextCancelledError
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.serving.following import Follower
from edgepack.agent.serving.model_session import ModelSession
from edgepack.agent.serving.text_generation import TEXT_HOLD_S, Generation


class TextInference(Inference):
    """Text of a request.

    Args:
        request: The request.
        watch: Times.
        show: Called with each piece, in the thread that writes the text.

    Attributes:
        prompt_tokens, completion_tokens: Tokens so far.
        first_ns: When the first token was there; 0 before.
    """

    is_long = True

    def __init__(
        self, request: TextRequest, watch: Stopwatch, show: Callable[[TextPiece], object]
    ) -> None:
        super().__init__({}, None, watch)
        self._request, self._show = request, show
        self._is_cancelled = False
        self.prompt_tokens = self.completion_tokens = self.first_ns = 0

    def cancel(self) -> None:
        """End the text at the next token: nobody reads it."""
        self._is_cancelled = True

    def run(self, follower: Follower) -> None:
        """Write the text in any thread.

        Raises:
            TextCancelledError: The text was cancelled.
            Exception: Whatever `Model.generate` raises.
        """
        if self._is_cancelled:
            raise TextCancelledError
        session = ModelSession(follower, hold_s=TEXT_HOLD_S)
        with Generation(session, self._request, closes_session=True) as generation:
            self.bundle, self.prompt_tokens = generation.bundle, generation.prompt_tokens
            for piece in generation:
                self.since = time.perf_counter_ns()
                self.first_ns = self.first_ns or self.since
                self.completion_tokens = generation.completion_tokens
                if self._is_cancelled:
                    raise TextCancelledError
                self._show(piece)
