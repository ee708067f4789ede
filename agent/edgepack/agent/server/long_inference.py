"""Inferences of a request one after the other, in a thread of the model."""

from time import perf_counter_ns

from edgepack.agent.generation.decoding import TextCancelledError
from edgepack.agent.server.hosted_model import Inference
from edgepack.agent.server.statistics import Stopwatch


class LongInference(Inference):
    """Inferences of a request, all of one release; a subclass runs them.

    Args:
        watch: Times.
    """

    is_long = True

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__({}, None, watch)
        self._is_cancelled, self._began_ns = False, 0

    @property
    def progress_ns(self) -> int:
        """Time at which the last inference began, nanoseconds."""
        return self._began_ns or self.watch.started

    def cancel(self) -> None:
        """End at the next inference: nobody reads the answer."""
        self._is_cancelled = True

    def note_next(self) -> None:
        """Note that the next inference begins.

        Raises:
            TextCancelledError: The request was cancelled.
        """
        if self._is_cancelled:
            raise TextCancelledError
        self._began_ns = perf_counter_ns()
