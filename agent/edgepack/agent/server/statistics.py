"""Statistics of a model's requests, in the form of Triton's statistics extension."""

import time

import msgspec


class Duration(msgspec.Struct):
    """Number of requests, and the sum of their durations.

    Attributes:
        count: Requests.
        ns: Sum, nanoseconds.
    """

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Add a request."""
        self.count += 1
        self.ns += ns


class InferStatistics(msgspec.Struct):
    """Durations of requests by outcome, and of their parts."""

    success: Duration = msgspec.field(default_factory=Duration)
    fail: Duration = msgspec.field(default_factory=Duration)
    queue: Duration = msgspec.field(default_factory=Duration)
    compute_input: Duration = msgspec.field(default_factory=Duration)
    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)
    cache_hit: Duration = msgspec.field(default_factory=Duration)
    cache_miss: Duration = msgspec.field(default_factory=Duration)


class ModelStatistics(msgspec.Struct, kw_only=True):
    """Statistics of a model since the server opened the model.

    Attributes:
        name, version: Model, and the release that serves now.
        last_inference: Time of the last request, milliseconds since the epoch.
        inference_count, execution_count: Successful inferences.
        inference_stats: Durations.
        batch_stats: Empty: the server makes no batches.
    """

    name: str
    version: str
    last_inference: int = 0
    inference_count: int = 0
    execution_count: int = 0
    inference_stats: InferStatistics = msgspec.field(default_factory=InferStatistics)
    batch_stats: tuple[str, ...] = ()


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of models."""

    model_stats: list[ModelStatistics]


class Stopwatch:
    """Times of a request, nanoseconds of the process's clock.

    Attributes:
        began: Start of the request.
        ready: Inputs are decoded.
        started: The inference began, after the queue.
        ended: The inference ended.
    """

    __slots__ = ("began", "ended", "ready", "started")

    def __init__(self) -> None:
        self.began = self.ready = self.started = self.ended = time.perf_counter_ns()

    def read(self) -> None:
        """Note that the inputs are decoded."""
        self.ready = self.started = self.ended = time.perf_counter_ns()

    def add_to(self, statistics: ModelStatistics, *, is_good: bool) -> None:
        """Count the request that ends now."""
        now = time.perf_counter_ns()
        statistics.last_inference = time.time_ns() // 1_000_000
        of = statistics.inference_stats
        if not is_good:
            of.fail.add(now - self.began)
            return
        statistics.inference_count += 1
        statistics.execution_count += 1
        of.success.add(now - self.began)
        of.compute_input.add(self.ready - self.began)
        of.queue.add(self.started - self.ready)
        of.compute_infer.add(self.ended - self.started)
        of.compute_output.add(now - self.ended)
