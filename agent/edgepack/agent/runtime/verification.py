"""Verification in the field: the golden samples run again, on the serving provider.

A verification runs in a child process with limits, like a probe:

    python -m edgepack.agent.runtime.verifying   (`VerificationRequest` on stdin, `Verified` on
    stdout, both JSON)
"""

import time
from collections.abc import Sequence

import msgspec

from edgepack.agent.config import ProbeConfig
from edgepack.agent.runtime.bases import BaseRelease
from edgepack.agent.runtime.child import run_child
from edgepack.agent.runtime.plain_files import remove_stale_plain_files
from edgepack.bundle.manifest import Variant
from edgepack.decoding import decode_json
from edgepack.halt import NEVER, Halt
from edgepack.python_child import python_command

CHILD = python_command("edgepack.agent.runtime.verifying")


class FirstAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """First answer to a sample.

    Attributes:
        digest: SHA-256 of all outputs with names, types and shapes, lower-case hex.
        projections: Projections of each output, in the order of the names.
    """

    digest: str
    projections: tuple[tuple[float, ...], ...]


class FirstAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """First answers of a device to its golden samples.

    Attributes:
        answers: An answer for each sample.
        worst: Greatest distance of 20 own runs from the first; 0 if the bits repeat.
    """

    answers: tuple[FirstAnswer, ...]
    worst: float = 0.0


class VerificationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the child.

    Attributes:
        bundle_folder: Root of the unpacked bundle.
        variant: The serving variant.
        timeout_s: See `ProbeConfig`.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        key_file: The device's private key, for an encrypted bundle; "" without a key.
        first: The device's own first answers; None to make them.
        base: The base of an adapter; None for a model that runs by itself.
    """

    bundle_folder: str
    variant: Variant
    timeout_s: float
    threads: int = 0
    key_file: str = ""
    first: FirstAnswers | None = None
    base: BaseRelease | None = None


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a verification.

    Attributes:
        because: How answers differ from the first answers, or are wrong; "" if not.
        trouble: Why the samples cannot be run, which tells nothing of the answers; "" if they ran.
        samples: Samples that ran.
        taken_s: Duration with start and loading, seconds.
        first: The first answers, if the child made them.
    """

    because: str = ""
    trouble: str = ""
    samples: int = 0
    taken_s: float = 0.0
    first: FirstAnswers | None = None


def verify_in_child(
    request: VerificationRequest,
    config: ProbeConfig,
    *,
    command: Sequence[str] = CHILD,
    halt: Halt = NEVER,
) -> Verified:
    """Run the golden samples in a child process.

    Returns:
        The result. A failure to run is a result, never an exception.

    Raises:
        HaltedError: Because of `halt`.
    """
    began = time.monotonic()
    ending = run_child(
        command,
        msgspec.json.encode(request),
        timeout_s=config.timeout_s,
        memory_bytes=config.memory_bytes,
        halt=halt,
    )
    taken_s = time.monotonic() - began
    if ending.answer is None:
        remove_stale_plain_files()
        return Verified(trouble=ending.because, taken_s=taken_s)
    try:
        result = decode_json(ending.answer, Verified)
    except msgspec.DecodeError as error:
        result = Verified(trouble=f"its answer cannot be read: {error}")
    return msgspec.structs.replace(result, taken_s=taken_s)
