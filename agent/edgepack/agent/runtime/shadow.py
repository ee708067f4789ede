"""The shadow release, in a separate process: the process computes received inferences, and compares
outputs with those of the serving release.

    python -m edgepack.agent.runtime.shadow

    parent: a `ShadowRequest`, a line of JSON; then inferences, see `write_inference`
    child: a `ShadowAnswer` to each, a line of JSON; the child ends with its stdin

The process may hang, crash or take too much memory: the parent detects and ends such a process. The
process runs at the lowest priority of the device; a previous release runs on a single thread.
"""

import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, BinaryIO

import msgspec
import numpy as np

from edgepack.agent.runtime.child import be_first_to_go, end_with_parent, redirect_stdout
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.agent.runtime.slot_opening import OpenedSlot, open_slot
from edgepack.bundle.golden import is_same_answer
from edgepack.bundle.metadata import GoldenAgreement, GoldenTolerance
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError, EdgepackError
from edgepack.python_child import python_command

CHILD = python_command("edgepack.agent.runtime.shadow")

_LOWEST_PRIORITY = 19


_SHORT_MS = 10.0
"""A new release that takes no longer computes each inference twice: the first finds cold caches."""


class ShadowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the child: the release to open, and the release to compare with.

    Attributes:
        state_dir: The agent's state folder.
        digest, variant: The shadow release.
        is_next: Whether the shadow release is the newer one: failed inferences are then evidence.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        inputs, outputs: Tensors of the release that serves now.
        tolerances, agreements: See `VariantFacts`: values of the newer release.
    """

    state_dir: str
    digest: str
    variant: str
    is_next: bool = False
    threads: int = 1
    inputs: tuple[SessionTensor, ...]
    outputs: tuple[SessionTensor, ...]
    tolerances: dict[str, GoldenTolerance]
    agreements: tuple[GoldenAgreement, ...] = ()

    @property
    def judged(self) -> frozenset[str]:
        """Return the names of the outputs by which both releases are compared."""
        of_tasks = {name for one in self.agreements for name in one.part.outputs}
        return frozenset(of_tasks | self.tolerances.keys())


class ShadowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the child: once after opening, then for each inference.

    Attributes:
        agreed: Whether both releases agreed.
        failed: Whether the newer release failed, or gave NaN or infinity where the float model
            gave none.
        taken_ms: Duration of the inference, milliseconds.
        because: Why there will be no answers; the process then ends.
    """

    agreed: bool = False
    failed: bool = False
    taken_ms: float = 0.0
    because: str = ""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of which the bytes follow."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The line before an inference's tensors, which follow in this order."""

    feeds: tuple[Sent, ...]
    outputs: tuple[Sent, ...]


def write_inference(
    stream: IO[bytes], feeds: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> None:
    """Send an inference: a line of JSON that describes the values, and the values.

    Raises:
        OSError: The reader is gone.
    """
    header = Header(feeds=_described(feeds), outputs=_described(outputs))
    stream.write(msgspec.json.encode(header) + b"\n")
    for value in (*feeds.values(), *outputs.values()):
        stream.write(value.tobytes())
    stream.flush()


def _described(tensors: Mapping[str, Tensor]) -> tuple[Sent, ...]:
    return tuple(
        Sent(name=name, dtype=value.dtype.str, shape=value.shape) for name, value in tensors.items()
    )


def read_header(stream: BinaryIO) -> Header | None:
    """Return the next header of a stream; None at its end."""
    line = stream.readline()
    return decode_json(line, Header) if line else None


def read_tensors(stream: BinaryIO, sent: tuple[Sent, ...]) -> dict[str, Tensor]:
    """Return the tensors that a header said."""
    found: dict[str, Tensor] = {}
    for one in sent:
        dtype = np.dtype(one.dtype)
        content = stream.read(math.prod(one.shape) * dtype.itemsize)
        found[one.name] = np.frombuffer(content, dtype).reshape(one.shape)
    return found


def check_alike(title: str, now: Iterable[SessionTensor], before: Iterable[SessionTensor]) -> None:
    """Reject two releases with incomparable inferences.

    Args:
        title: Name of the values, in the plural.
        now, before: Tensors of the serving release, and of the shadow release.

    Raises:
        DeviceError: The releases differ in a name, a type or a size.
    """
    ours, theirs = {one.name: one for one in now}, {one.name: one for one in before}
    if theirs.keys() != ours.keys() or not all(_fits(theirs[name], ours[name]) for name in ours):
        raise DeviceError(
            f"it has other {title} than the serving release: {_listed(theirs)}; "
            f"the serving release has {_listed(ours)}"
        )


def _fits(one: SessionTensor, other: SessionTensor) -> bool:
    return (
        one.dtype == other.dtype
        and len(one.shape) == len(other.shape)
        and all(
            a == b or isinstance(a, str) or isinstance(b, str)
            for a, b in zip(one.shape, other.shape, strict=True)
        )
    )


def _listed(tensors: Mapping[str, SessionTensor]) -> str:
    return (
        ", ".join(
            f"{one.name} {one.dtype} [{', '.join(str(size) or '?' for size in one.shape)}]"
            for one in tensors.values()
        )
        or "none"
    )


def serve(request: ShadowRequest, inferences: BinaryIO, answers: BinaryIO) -> None:
    """Open the shadow release, and answer until nothing more is sent.

    Raises:
        EdgepackError: The release cannot be opened or compared, or the previous release failed.
        OSError: The parent is gone.
    """
    state_dir, digest = Path(request.state_dir), request.digest
    opened = open_slot(state_dir, digest, request.variant, threads=request.threads)
    check_alike("inputs", request.inputs, opened.session.inputs)
    now, before = (
        [one for one in outputs if one.name in request.judged]
        for outputs in (request.outputs, opened.session.outputs)
    )
    if not now:
        raise DeviceError("no output of this release has a tolerance for a comparison")
    check_alike("outputs", now, before)
    _answer(answers, ShadowAnswer())
    while header := read_header(inferences):
        feeds = read_tensors(inferences, header.feeds)
        outputs = read_tensors(inferences, header.outputs)
        _answer(answers, _compute(request, opened, feeds, outputs))


def _compute(
    request: ShadowRequest,
    opened: OpenedSlot,
    feeds: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
) -> ShadowAnswer:
    """Compute an inference with the shadow release, and compare it with the serving release's."""
    try:
        found, taken_ms = opened.session.run_timed(feeds)
        if request.is_next and taken_ms < _SHORT_MS:
            found, again_ms = opened.session.run_timed(feeds)
            taken_ms = min(taken_ms, again_ms)
    except DeviceError:
        if not request.is_next:
            raise
        return ShadowAnswer(failed=True)
    older, newer = (outputs, found) if request.is_next else (found, outputs)
    return ShadowAnswer(
        agreed=is_same_answer(
            older, newer, request.tolerances, request.agreements, opened.expected
        ),
        failed=request.is_next
        and not all(np.isfinite(found[name]).all() for name in opened.finite_outputs),
        taken_ms=taken_ms,
    )


def _answer(stream: BinaryIO, answer: ShadowAnswer) -> None:
    stream.write(msgspec.json.encode(answer) + b"\n")
    stream.flush()


def main() -> None:
    """Open the shadow release and answer until the stream ends. For the child."""
    end_with_parent()
    be_first_to_go()
    os.nice(_LOWEST_PRIORITY)
    answers = redirect_stdout()
    request = decode_json(sys.stdin.buffer.readline(), ShadowRequest)
    try:
        serve(request, sys.stdin.buffer, answers)
    except (EdgepackError, ValueError) as error:
        problem = error.problem if isinstance(error, EdgepackError) else str(error)
        _answer(answers, ShadowAnswer(because=problem))


if __name__ == "__main__":
    main()
