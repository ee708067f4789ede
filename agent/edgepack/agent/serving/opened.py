"""A release opened by a process, with the shadow runner of another release."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import NamedTuple, TypeVar

import numpy as np
from numpy import isfinite

from edgepack.agent.generation.completions import Completer, Completion
from edgepack.agent.generation.texts import TextModel, has_packages
from edgepack.agent.generation.transcripts import Transcriber, Transcript
from edgepack.agent.generation.vectors import (
    Rows,
    Text,
    TextVectors,
    has_tokenizers,
    texts_need_package,
)
from edgepack.agent.runtime.sessions import (
    SessionTensor,
    Tensor,
    check_feeds,
    check_shared_sizes,
    check_tokens,
    name_single,
)
from edgepack.agent.runtime.slot_opening import OpenedSlot, open_slot
from edgepack.agent.serving.adapters import Adapters, RecordOf
from edgepack.agent.serving.capture import SampleKeeper
from edgepack.agent.serving.shadow import ShadowRunner
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.running_marks import IDLE, RUNNING, RunningMarks
from edgepack.agent.state.slot_lock import SlotLock, lock_for_session
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.telemetry.record import Record
from edgepack.bundle.features import shifted
from edgepack.bundle.generation import TOKENIZER
from edgepack.sound.waves import Sound

_FEW = 4096
"""Values that are searched as bytes: half the time of `all`."""

Call = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


_T = TypeVar("_T")


class AcceptedFeeds(NamedTuple):
    """Feeds that a release takes.

    Attributes:
        inputs: Its inputs.
        token_counts: By input the number of tokens.
    """

    inputs: tuple[SessionTensor, ...] = ()
    token_counts: Mapping[str, int] = {}


class OpenedModel:
    """Opened model. A running inference holds the model, so that a swap never closes a model in
    use.

    Args:
        state_dir: The agent's state folder.
        pointer: Names the release.
        opened: The release.
        record: Counts inferences.
        keeper: Keeps samples of inputs, if the device keeps any.
        marks: Marks of running inferences, for the agent.

    Attributes:
        description: Meaning of inputs and outputs.
        shadow: Runs another release next to this release; None without shadow mode.
        accepted_before: What the release before takes, which the application ran in this process;
            empty if there is none.
        has_texts: Whether the model writes texts.
        texts: Writes texts; None for a model without texts, or a device without the packages.
        adapters: Adapters for these texts; None without texts.
        vectors: Makes vectors of texts; None for a model without such vectors, or a device without
            the package.
        transcriber: Makes texts of sounds; None likewise.
        completer: Makes texts of texts; None likewise.
    """

    def __init__(
        self,
        state_dir: Path,
        pointer: ActivePointer,
        opened: OpenedSlot,
        record: Record,
        keeper: SampleKeeper,
        marks: RunningMarks,
    ) -> None:
        self.pointer = pointer
        self.marks = marks
        self.session = opened.session
        self.variant = opened.variant
        self.description = opened.manifest.facts.description
        self.samples = opened.samples
        self.record = record
        self.shadow: ShadowRunner | None = None
        self.accepted_before = AcceptedFeeds()
        self.texts: TextModel | None = None
        self.adapters: Adapters | None = None
        self.vectors: TextVectors | None = None
        self.transcriber: Transcriber | None = None
        self.completer: Completer | None = None
        self.has_texts = opened.manifest.facts.generation is not None
        self._has_run = False
        self._offer_at = 0.0
        self._keeper = keeper
        self._finite_outputs = opened.finite_outputs
        self._slot = slot_folder(state_dir, pointer.digest)
        self._running: dict[int, float] = {}
        self._guard = threading.Lock()
        self._holders = 0
        self._lock: SlotLock | None = None

    def run(
        self, feeds: Mapping[str, Tensor] | Tensor, call: Call | None = None
    ) -> dict[str, Tensor]:
        """Run an inference and count the inference; see `Model.run`.

        Args:
            feeds: Inputs.
            call: Runs the inference in place of the session's own `run`.

        Raises:
            ValueError: The feeds do not fit the inputs.
            DeviceError: The provider failed.
        """
        if not isinstance(feeds, Mapping):
            feeds = name_single([one.name for one in self.session.inputs], feeds)
        thread, running, marks = get_ident(), self._running, self.marks
        place = marks.places[thread]
        marks.cells[place] = RUNNING
        started = running[thread] = monotonic()
        try:
            outputs = (call or self.session.run)(feeds)
        except Exception as error:
            misuse = self._find_misuse(error, feeds)
            if misuse is None or self._is_fed_as_before(feeds):
                self.record.fail()
            if misuse is None or misuse is error:
                raise
            raise misuse from error
        finally:
            running[thread] = math.inf
            marks.cells[place] = IDLE
        now = monotonic()
        taken_ms = (now - started) * 1000
        self.record.latency.record(taken_ms)
        is_finite = True
        for name in self._finite_outputs:
            flags = isfinite(outputs[name])
            if not (flags.all() if flags.size > _FEW else b"\0" not in flags.tobytes()):
                is_finite = False
        if now >= self._offer_at or not is_finite or self.shadow is not None:
            self._offer(feeds, outputs, taken_ms, is_finite=is_finite)
        return outputs

    def tokens_of(self, texts: Sequence[Text]) -> list[list[int]]:
        """Return the tokens of texts that vectors are wanted of.

        Raises:
            ValueError: A text is empty or too long, or the model makes no vectors of texts.
            DeviceError: The package of tokenizers is missing.
        """
        is_described = self.description.text is not None
        vectors = _require(self.vectors, "vectors of texts", is_described=is_described)
        tokens = []
        for number, text in enumerate(texts):
            try:
                tokens.append(vectors.tokens_of(text))
            except ValueError as error:
                raise ValueError(f"text {number} of {len(texts)} does not fit: {error}") from error
        return tokens

    def vector_of(self, tokens: Sequence[int]) -> Rows:
        """Run an inference, and return the vector of a text.

        Args:
            tokens: As of `tokens_of`.

        Raises:
            DeviceError: The provider failed.
        """
        if self.vectors is None:
            raise texts_need_package("vectors of texts")
        outputs = self.run(self.vectors.feeds_of(tokens))
        return self.vectors.vector_of(outputs, len(tokens))

    def embed_texts(self, texts: Sequence[str]) -> Rows:
        """Return the vectors of texts, float32 (texts, dimensions); see `Answering.embed`."""
        return np.stack([self.vector_of(tokens) for tokens in self.tokens_of(texts)])

    def open_transcriber(self) -> Transcriber:
        """Return what makes texts of sounds.

        Raises:
            ValueError: The model makes no texts of sounds.
            DeviceError: The package of tokenizers is missing.
        """
        is_described = self.description.sound is not None
        return _require(self.transcriber, "texts of sounds", is_described=is_described)

    def transcribe(self, sound: Sound) -> Transcript:
        """Return the text of a sound; see `Answering.transcribe`."""
        return self.open_transcriber().transcribe(sound, self.run)

    def open_completer(self) -> Completer:
        """Return what makes texts of texts.

        Raises:
            ValueError: The model makes no texts of texts.
            DeviceError: The package of tokenizers is missing.
        """
        is_described = self.description.prompt is not None
        return _require(self.completer, "texts of texts", is_described=is_described)

    def complete(self, text: str, most: int | None) -> Completion:
        """Return the text of a text; see `Answering.complete`."""
        return self.open_completer().complete(text, self.run, most)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note that this thread runs an inference of a text, which counts once the text ends."""
        self.note_running()
        try:
            with self.marks.running():
                yield
        finally:
            self._running[get_ident()] = math.inf

    def note_running(self) -> None:
        """Note that this thread begins an inference of a text."""
        self._running[get_ident()] = monotonic()

    def _offer(
        self,
        feeds: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        taken_ms: float,
        *,
        is_finite: bool,
    ) -> None:
        """Offer an inference to all that look at inferences now and then."""
        self._has_run = True
        bad_input = ""
        if not is_finite:
            if bad_input := _find_not_finite(feeds):
                self.record.count_bad_input(bad_input)
            else:
                self.record.count_not_finite()
        self.record.sketches.offer(feeds, outputs)
        self._keeper.offer(feeds, outputs, self.record.sketches)
        self._offer_at = min(self.record.sketches.next_at, self._keeper.next_at)
        if (shadow := self.shadow) is not None and not bad_input:
            shadow.offer(feeds, outputs, taken_ms)

    @property
    def inputs(self) -> tuple[SessionTensor, ...]:
        """Inputs of the model, in its own order."""
        return self.session.inputs

    @property
    def accepted_that_ran(self) -> "AcceptedFeeds":
        """Inputs of the newest release that the application has run in this process."""
        own = AcceptedFeeds(self.session.inputs, self.description.token_counts)
        return own if self._has_run else self.accepted_before

    def _find_misuse(self, error: Exception, feeds: Mapping[str, Tensor]) -> ValueError | None:
        """Return what an application did wrong; None if the release failed."""
        if isinstance(error, ValueError):
            return error
        try:
            check_tokens(self.description.token_counts, feeds)
        except ValueError as misuse:
            return misuse
        return None

    def _is_fed_as_before(self, feeds: Mapping[str, Tensor]) -> bool:
        """Check whether feeds fit the release before: the release is wrong, not the application."""
        before = self.accepted_before
        if not before.inputs:
            return False
        try:
            check_feeds(before.inputs, feeds)
            check_shared_sizes(before.inputs, feeds)
            check_tokens(before.token_counts, feeds)
        except ValueError:
            return False
        return True

    @property
    def running_since(self) -> float:
        """Start of the oldest running inference, monotonic clock, seconds; 0 without one."""
        started = min(tuple(self._running.values()), default=math.inf)
        return started if started < math.inf else 0.0

    def counts_in(self, record: Record) -> bool:
        """Return True if the release, or an adapter with it, counts in a record."""
        return record is self.record or (
            self.adapters is not None and self.adapters.counts_in(record)
        )

    def hold(self) -> bool:
        """Keep the agent from removing the release's files; return True if the files are still
        there.
        """
        with self._guard:
            if self._lock is None:
                try:
                    self._lock = lock_for_session(self._slot)
                except FileNotFoundError:
                    return False
            if self._lock is None:
                return False
            self._holders += 1
        return True

    def let_go(self) -> None:
        """End a single `hold`."""
        with self._guard:
            self._holders -= 1
            if not self._holders and self._lock is not None:
                self._lock.release()
                self._lock = None

    def end_shadow(self) -> None:
        """Stop the shadow process."""
        shadow, self.shadow = self.shadow, None
        if shadow is not None:
            shadow.close()


def _require(opened: _T | None, what: str, *, is_described: bool) -> _T:
    """Return what makes texts or vectors.

    Args:
        opened: It, if it is opened.
        what: What it makes, a plural.
        is_described: Whether the bundle describes its input.

    Raises:
        ValueError: The model makes none.
        DeviceError: The package of tokenizers is missing.
    """
    if opened is not None:
        return opened
    if is_described:
        raise texts_need_package(what)
    raise ValueError(f"the model makes no {what}: its bundle describes no such input")


def _find_not_finite(feeds: Mapping[str, Tensor]) -> str:
    """Return the name of an input with NaN or infinity; "" without one."""
    values = {name: np.asarray(value) for name, value in feeds.items()}
    floats = {name: value for name, value in values.items() if value.dtype.kind == "f"}
    return next((name for name, value in floats.items() if not np.isfinite(value).all()), "")


def open_release(
    state_dir: Path,
    pointer: ActivePointer,
    record: Record,
    keeper: SampleKeeper,
    marks: RunningMarks,
    *,
    threads: int,
    record_of: RecordOf,
) -> OpenedModel:
    """Open the release of a pointer.

    Args:
        state_dir: The agent's state folder.
        pointer: Names the release.
        record: Counts inferences.
        keeper: Keeps samples of inputs.
        marks: Marks of running inferences, for the agent.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        record_of: Returns the record of a release, such as an adapter's.

    Raises:
        BundleError: The files differ from the installed files.
        DeviceError: The provider is not here, or fails, the files cannot be decrypted, or the
            release is an adapter.
    """
    opened = open_slot(state_dir, pointer.digest, pointer.choice.chosen, threads=threads)
    facts = opened.manifest.facts
    reference = shifted(facts.reference, opened.variant.facts.confidence)
    record.sketches.expect(reference, facts.description)
    keeper.are_texts = facts.generation is not None or facts.description.text is not None
    release = OpenedModel(state_dir, pointer, opened, record, keeper, marks)
    if facts.description.text is not None and has_tokenizers():
        release.vectors = TextVectors(
            facts.description.text, opened.session.inputs, opened.assets[TOKENIZER]
        )
    if facts.description.sound is not None and has_tokenizers():
        release.transcriber = Transcriber(
            facts.description.sound, opened.session.inputs, opened.assets[TOKENIZER]
        )
    if facts.description.prompt is not None and has_tokenizers():
        release.completer = Completer(
            facts.description.prompt, opened.session.inputs, opened.assets[TOKENIZER]
        )
    if facts.generation is not None and has_packages():
        release.texts = TextModel(opened.session, opened.assets)
        release.adapters = Adapters(
            state_dir,
            pointer,
            facts.generation.adapters,
            opened.session,
            release.texts,
            record_of,
        )
    return release
