"""Probing: a variant proves itself with the golden inputs on this device's own provider.

A probe runs in a child process with a time limit, since a provider may crash or hang:

    python -m edgepack.agent.generation.probing

The request on stdin and the `ProbeResult` on stdout are JSON.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgepack.agent.config import ProbeConfig
from edgepack.agent.runtime.bases import BaseRelease
from edgepack.agent.runtime.child import Ending, run_child
from edgepack.agent.runtime.plain_files import remove_stale_plain_files
from edgepack.bundle.manifest import Variant
from edgepack.decoding import decode_json
from edgepack.halt import NEVER, Halt
from edgepack.python_child import python_command
from edgepack.wire.reports import ProbeResult

logger = logging.getLogger(__name__)

CHILD = python_command("edgepack.agent.generation.probing")

GOLDEN_SHARE = 0.5
"""Share of the time limit that golden samples beyond those may take on a device."""


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the child.

    Attributes:
        bundle_folder: Root of the unpacked bundle.
        variant: The candidate.
        timeout_s, runs: See `ProbeConfig`.
        golden_s: Golden samples beyond the least are begun for this long, seconds.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        key_file: The device's private key, for an encrypted bundle; "" without a key.
        base: The base of an adapter; None for a model that runs by itself.
    """

    bundle_folder: str
    variant: Variant
    timeout_s: float
    golden_s: float
    runs: int
    threads: int
    key_file: str = ""
    base: BaseRelease | None = None


def probe_variant(
    bundle_folder: Path,
    variant: Variant,
    *,
    config: ProbeConfig,
    threads: int = 0,
    key_file: str = "",
    base: BaseRelease | None = None,
    command: Sequence[str] = CHILD,
    halt: Halt = NEVER,
) -> ProbeResult:
    """Run a candidate's golden samples in a child process and evaluate the outputs.

    Args:
        bundle_folder: Root of the verified, unpacked bundle.
        variant: The candidate; its files are there.
        config: Limits of time and memory, and the number of timed runs.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        key_file: The device's private key, for an encrypted bundle; "" without a key.
        base: The base of an adapter; None for a model that runs by itself.
        command: The child.
        halt: Ends the probe early.

    Returns:
        The verdict. A failure of the candidate is a verdict, never an exception.

    Raises:
        HaltedError: Because of `halt`.
    """
    request = ProbeRequest(
        bundle_folder=str(bundle_folder),
        variant=variant,
        timeout_s=config.timeout_s,
        golden_s=GOLDEN_SHARE * config.timeout_s,
        runs=config.runs,
        threads=threads,
        key_file=key_file,
        base=base,
    )
    ending = run_child(
        command,
        msgspec.json.encode(request),
        timeout_s=config.timeout_s,
        memory_bytes=config.memory_bytes,
        halt=halt,
    )
    return read_ending(variant, ending)


def read_ending(variant: Variant, ending: Ending) -> ProbeResult:
    """Return the verdict on a candidate from the end of its probe.

    Args:
        variant: The candidate.
        ending: How the child that was sent a `ProbeRequest` answered or ended.
    """
    if ending.answer is None:
        remove_stale_plain_files()
        result = wrong_result(variant, f"the probe {_as_verb(ending.because)}")
    else:
        try:
            result = decode_json(ending.answer, ProbeResult)
        except msgspec.DecodeError as error:
            result = wrong_result(variant, f"the probe's answer cannot be read: {error}")
    result = msgspec.structs.replace(result, peak_bytes=ending.peak_bytes)
    logger.info(
        "probe variant=%s provider=%s verdict=%s latency_ms=%s peak_mb=%.0f because=%s",
        result.variant,
        result.provider,
        "right" if result.right else "wrong",
        "none" if result.latency_ms is None else f"{result.latency_ms:.3g}",
        ending.peak_bytes / 1e6,
        result.because,
    )
    return result


def wrong_result(variant: Variant, because: str) -> ProbeResult:
    """Return the verdict on a candidate that did not prove itself."""
    return ProbeResult(
        variant=variant.name, provider=variant.provider, right=False, because=because
    )


def _as_verb(because: str) -> str:
    return f"gave {because}" if because.startswith("no answer") else because
