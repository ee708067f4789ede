"""A model in the server: queue, threads, sequences and statistics.

A model that takes less than `QUICK_S` runs in the event loop's thread: a hop to another thread
costs 54 us. Other models run in threads of their own, so that no model waits for another model.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from edgepack.agent.config import ServerConfig
from edgepack.agent.generation.decoding import CacheMemoryError, TextCancelledError
from edgepack.agent.generation.grammar import GrammarError
from edgepack.agent.runtime.bases import AdapterOutageError
from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.server.http_messages import FAULT, HttpError
from edgepack.agent.server.statistics import ModelStatistics, Stopwatch
from edgepack.agent.serving.answers import answer_picture
from edgepack.agent.serving.following import Follower
from edgepack.agent.serving.model_session import HOLD_S, MAX_HOLD_S, ModelSession
from edgepack.errors import EdgepackError, PictureError, SoundError
from edgepack.pictures.answers import reads_pages
from edgepack.pictures.results import Answer
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.orders import BundleRef

log = logging.getLogger(__name__)

QUICK_S = 0.0002
RECENT = 16
"""Inferences that decide where the next one runs."""
MOST_SLOW = 2
"""Slow inferences among the recent ones of a quick model, at most: the machine has other work."""
_HUNG_TIMES = 20
OUTAGE_RETRY_S = 10
"""Seconds until a client may ask again for an adapter that does not serve."""
MAX_SEQUENCES = 1024
"""Sequences of a model; the one that was used least recently ends first."""


class Inference:
    """Inference of a request.

    Attributes:
        feeds: Inputs.
        picture: File of a picture in place of inputs; None without a picture.
        version: Version that must run the inference; "" for any version.
        session: Sequence that runs the inference; None for the serving release.
        watch: Times.
        outputs: Outputs once the inference has run.
        answer: Answer to the picture, likewise.
        reads_pages: True if the release that ran reads the lines of pages.
        bundle: Release that ran.
        error: What the inference raised.
    """

    is_long = False
    """True for a request of many inferences, which no inference's duration is compared with."""

    def __init__(
        self,
        feeds: dict[str, Tensor],
        session: ModelSession | None,
        watch: Stopwatch,
        picture: memoryview | None = None,
        version: str = "",
    ) -> None:
        self.feeds, self.session, self.watch, self.picture = feeds, session, watch, picture
        self.version = version
        self.answer: Answer | None = None
        self.reads_pages = False
        self.outputs: Mapping[str, Tensor] = {}
        self.bundle: BundleRef | None = None
        self.error: Exception | None = None

    @property
    def progress_ns(self) -> int:
        """Time at which the inference began, nanoseconds; of several, the last that began."""
        return self.watch.started

    def cancel(self) -> None:
        """End at the next inference, where a request has several."""

    def run(self, follower: Follower) -> None:
        """Run the inference in any thread.

        Raises:
            Exception: Whatever the inference raises.
        """
        if self.session is not None:
            self.bundle = self.session.bundle
            self.outputs = self.session.run(self.feeds)
            return
        serving = follower.serving
        bundle = serving.pointer.bundle
        check_version(bundle, self.version)
        self.bundle = bundle
        if self.picture is not None:
            self.reads_pages = reads_pages(serving.description)
            self.answer = answer_picture(serving, self.picture)
        else:
            self.outputs = serving.run(self.feeds)


class HostedModel:
    """A model that serves requests.

    Args:
        follower: Its releases.
        settings: Limits.

    Attributes:
        first_tokens: Times from a request for a text to its first token.
        further_tokens: Mean times of a token after the first, by text.
    """

    def __init__(self, name: str, follower: Follower, settings: ServerConfig) -> None:
        self.name, self.follower = name, follower
        self.busy = self.rejected = 0
        self._limit, self.most_text_tokens = settings.queue, settings.text_tokens
        self._threads = ThreadPoolExecutor(settings.parallel, f"edgepack-run-{name}")
        self._loop = asyncio.get_running_loop()
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._slow = 0
        self._measured = ""
        self._running: set[Inference] = set()
        self._longest_ns = 0
        self._sequences: OrderedDict[str, ModelSession] = OrderedDict()
        self.first_tokens, self.further_tokens = LatencyRecorder(), LatencyRecorder()
        self.statistics = ModelStatistics(name=name, version=self.bundle.version)

    @property
    def bundle(self) -> BundleRef:
        """The bundle that serves now."""
        return self.follower.serving.pointer.bundle

    @property
    def is_quick(self) -> bool:
        """True if the next inference runs in the event loop's thread."""
        return len(self._recent) == RECENT and self._slow <= MOST_SLOW

    def has_hung(self, limit_s: float) -> bool:
        """Check whether an inference runs longer than a limit, and than 20 times the longest."""
        limit_ns = max(limit_s * 1e9, _HUNG_TIMES * self._longest_ns)
        now = time.perf_counter_ns()
        return any(now - one.progress_ns > limit_ns for one in tuple(self._running))

    @property
    def is_full(self) -> bool:
        """True if no other request may wait."""
        return self.busy >= self._limit

    def check_room(self) -> None:
        """Check that another request may wait.

        Raises:
            HttpError: Too many requests wait.
        """
        if self.is_full:
            self.rejected += 1
            raise HttpError(
                429, f"{self._limit} requests for model '{self.name}' run or wait", retry_s=1
            )

    def submit(
        self, inference: Inference, done: Callable[[Inference], None]
    ) -> Callable[[], object] | None:
        """Run an inference now or later, and call a function with its result.

        Args:
            inference: The inference.
            done: Called in the event loop's thread.

        Returns:
            A function that takes the inference out of the queue; None if it has run.

        Raises:
            HttpError: Too many requests wait.
        """
        self.check_room()
        self.busy += 1
        if self.is_quick and inference.picture is None and not inference.is_long:
            self._run(inference)
            self._finish(inference, done)
            return None
        future: Future[None] = self._threads.submit(self._run, inference)

        def end(future: Future[None]) -> None:
            self._loop.call_soon_threadsafe(self._finish, inference, done)

        future.add_done_callback(end)
        return future.cancel

    def begin_sequence(self, name: str, hold_s: float = HOLD_S) -> ModelSession:
        """Begin a sequence, in place of a sequence with the same name.

        Raises:
            HttpError: The time is out of range, or the release is being removed.
        """
        if not 0.0 <= hold_s <= MAX_HOLD_S:
            raise HttpError(400, f"hold_s is 0 to {MAX_HOLD_S:g} seconds, not {hold_s:g}")
        self.end_sequence(name)
        try:
            session = ModelSession(self.follower, hold_s=hold_s)
        except EdgepackError as error:
            raise HttpError(503, str(error), retry_s=1) from error
        while len(self._sequences) >= MAX_SEQUENCES:
            self._sequences.popitem(last=False)[1].close()
        self._sequences[name] = session
        return session

    def find_sequence(self, name: str) -> ModelSession:
        """Return a sequence.

        Raises:
            HttpError: There is none of that name.
        """
        try:
            self._sequences.move_to_end(name)
        except KeyError:
            raise HttpError(
                404,
                f"model '{self.name}' has no sequence {name[:100]!a}: begin it with sequence_start",
            ) from None
        return self._sequences[name]

    def end_sequence(self, name: str) -> bool:
        """End a sequence; return whether there was one."""
        session = self._sequences.pop(name, None)
        if session is not None:
            session.close()
        return session is not None

    def cancel_long(self) -> None:
        """End running requests of many inferences at their next inference."""
        for one in tuple(self._running):
            one.cancel()

    def close(self) -> None:
        """End the threads, and close the model; running inferences end undisturbed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.follower.close()

    def _run(self, inference: Inference) -> None:
        """Run an inference in any thread; errors are part of the result."""
        watch = inference.watch
        watch.started = time.perf_counter_ns()
        self._running.add(inference)
        try:
            inference.run(self.follower)
        except Exception as error:  # noqa: BLE001 - answered, and logged if unexpected
            inference.error = error
        watch.ended = time.perf_counter_ns()
        self._running.remove(inference)

    def _finish(self, inference: Inference, done: Callable[[Inference], None]) -> None:
        self.busy -= 1
        is_measured = inference.bundle is not None and inference.picture is None
        if is_measured and inference.error is None and not inference.is_long:
            self._measure(inference)
        done(inference)

    def _measure(self, inference: Inference) -> None:
        """Note whether an inference was slow; a new release is measured from the start."""
        digest = inference.bundle.digest if inference.bundle else ""
        if digest != self._measured and inference.session is None:
            self._measured, self._slow = digest, 0
            self._recent.clear()
        if len(self._recent) == RECENT:
            self._slow -= self._recent[0]
        taken_ns = inference.watch.ended - inference.watch.started
        self._longest_ns = max(self._longest_ns, taken_ns)
        is_slow = taken_ns > QUICK_S * 1e9
        self._recent.append(is_slow)
        self._slow += is_slow


def check_version(serving: BundleRef, version: str) -> None:
    """Check that a release has a version; "" for any version.

    Raises:
        HttpError: Another version serves.
    """
    if version and version != serving.version:
        raise HttpError(
            404, f"model '{serving.name}' serves version {serving.version}, not {version[:100]!a}"
        )


def find_version(model: str, inference: Inference) -> str:
    """Return the version that ran an inference.

    Raises:
        HttpError: The inference failed.
    """
    error = inference.error
    if isinstance(error, HttpError):
        raise error
    if isinstance(error, ValueError | PictureError | SoundError | GrammarError):
        raise HttpError(400, str(error)) from error
    if isinstance(error, TextCancelledError):
        raise HttpError(400, "the client ended the connection") from error
    if isinstance(error, CacheMemoryError):
        raise HttpError(429, str(error), retry_s=1) from error
    if isinstance(error, AdapterOutageError):
        raise HttpError(503, str(error), retry_s=OUTAGE_RETRY_S) from error
    if isinstance(error, EdgepackError):
        raise HttpError(500, str(error)) from error
    if error is not None:
        log.error("model=%s an inference fails because of a fault", model, exc_info=error)
        raise HttpError(500, FAULT) from error
    if inference.bundle is None:
        raise HttpError(503, "the server stops", retry_s=1)
    return inference.bundle.version
