"""Probing: a variant proves itself with the golden inputs on this device's own provider.

A probe runs in a child process with a time limit, since a provider may crash or hang:

    python -m edgepack.agent.runtime.probe   (request on stdin, `ProbeResult` on stdout, both JSON)
"""

import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from edgepack.agent.config import ProbeConfig
from edgepack.agent.runtime.child import Ending, keep_stdout_clean, run_child, take_request
from edgepack.agent.runtime.opening import open_session
from edgepack.agent.runtime.plain_files import plain_files, remove_stale_plain_files
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.sessions import Tensor
from edgepack.bundle.golden import Golden, compare_outputs, read_golden
from edgepack.bundle.manifest import GOLDEN_FILE, Placement, Variant
from edgepack.errors import EdgepackError
from edgepack.halt import NEVER, Halt
from edgepack.python_child import python_command
from edgepack.wire.messages import ProbeResult

logger = logging.getLogger(__name__)

CHILD = python_command("edgepack.agent.runtime.probe")

LEAST_SAMPLES = 2
"""Golden samples that every probe computes, however slow: one alone may be right by chance."""

GOLDEN_SHARE = 0.5
"""Share of the time limit that golden samples beyond those may take on a device."""

TIMED_S = 2.0
"""Timed runs end after this long, seconds, and after one at the least."""


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the child.

    Attributes:
        bundle_folder: Root of the unpacked bundle.
        variant: The candidate.
        timeout_s, runs: See `ProbeConfig`.
        golden_s: Golden samples beyond the least are begun for this long, seconds.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        key_file: The device's private key, for an encrypted bundle; "" without a key.
    """

    bundle_folder: str
    variant: Variant
    timeout_s: float
    golden_s: float
    runs: int
    threads: int
    key_file: str = ""


class ProbedSession(Protocol):
    """Part of `Session` that a probe needs."""

    @property
    def provider(self) -> str:
        """See `Session`."""

    @property
    def placement(self) -> Placement:
        """See `Session`."""

    def run_timed(self, feeds: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """Run inputs and measure the time; see `Session.run_timed`."""


class OpenVariant(Protocol):
    """Opens a variant of an unpacked bundle, as `open_session` does."""

    def __call__(self, bundle_folder: Path, variant: Variant, *, threads: int) -> ProbedSession:
        """Open a session; see `open_session`."""


def probe_variant(
    bundle_folder: Path,
    variant: Variant,
    *,
    config: ProbeConfig,
    threads: int = 0,
    key_file: str = "",
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
        result = _wrong(variant, f"the probe {_as_verb(ending.because)}")
    else:
        try:
            result = msgspec.json.decode(ending.answer, type=ProbeResult)
        except msgspec.DecodeError as error:
            result = _wrong(variant, f"the probe's answer cannot be read: {error}")
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


def judge(
    session: ProbedSession, golden: Golden, variant: Variant, *, runs: int, golden_s: float
) -> ProbeResult:
    """Run golden samples in this process, compare the outputs and time the provider.

    1. The provider must have taken nodes: a model all on the CPU is not an accelerated variant.
    2. At least two samples run, and as many more as the time allows; the first warms up.
    3. Their outputs must hold the variant's tolerances.
    4. Further runs are timed, up to `runs` or for two seconds.
    """
    placement = session.placement
    if placement.verified and not placement.taken and session.provider != CPU_PROVIDER:  # 1
        return msgspec.structs.replace(
            _wrong(variant, f"{session.provider} took none of {placement.total} nodes"),
            total=placement.total,
        )
    got: list[dict[str, Tensor]] = []
    times_ms: list[float] = []
    spent_ms = 0.0
    for feeds in golden.inputs:  # 2
        if len(got) >= LEAST_SAMPLES and spent_ms > golden_s * 1000:
            break
        outputs, taken_ms = session.run_timed(feeds)
        got.append(outputs)
        spent_ms += taken_ms
        if len(got) > 1:
            times_ms.append(taken_ms)
    comparison = compare_outputs(  # 3
        golden.outputs[: len(got)], got, variant.facts.tolerances, variant.facts.agreements
    )
    while not times_ms or (  # 4
        comparison.right and len(times_ms) < runs and sum(times_ms) < TIMED_S * 1000
    ):
        _, taken_ms = session.run_timed(golden.inputs[len(times_ms) % len(golden.inputs)])
        times_ms.append(taken_ms)
    of = f"{len(got)} of {len(golden.inputs)} golden samples"
    return ProbeResult(
        variant=variant.name,
        provider=session.provider,
        right=comparison.right,
        because=f"{comparison.because}; {of}",
        latency_ms=statistics.median(times_ms),
        taken=placement.taken,
        total=placement.total,
        task_lost=comparison.task_lost,
        worst_nrmse=comparison.worst_nrmse if math.isfinite(comparison.worst_nrmse) else None,
    )


def _wrong(variant: Variant, because: str) -> ProbeResult:
    return ProbeResult(
        variant=variant.name, provider=variant.provider, right=False, because=because
    )


def _as_verb(because: str) -> str:
    return f"gave {because}" if because.startswith("no answer") else because


def main() -> None:
    """Read a request, probe and answer. For the child."""
    request = msgspec.json.decode(take_request(), type=ProbeRequest)
    answer = keep_stdout_clean(request.timeout_s)
    with answer:
        answer.write(msgspec.json.encode(probe_here(request)) + b"\n")


def probe_here(request: ProbeRequest, open_variant: OpenVariant = open_session) -> ProbeResult:
    """Probe in this process, which should be a child: a provider may crash or hang.

    Args:
        request: Variant to probe.
        open_variant: Opens the candidate.
    """
    try:
        bundle, variant = Path(request.bundle_folder), request.variant
        with plain_files(bundle, variant, request.key_file) as folder:
            golden = read_golden(folder / GOLDEN_FILE)
            session = open_variant(folder, variant, threads=request.threads)
        return judge(
            session,
            golden,
            request.variant,
            runs=request.runs,
            golden_s=request.golden_s,
        )
    except (EdgepackError, ValueError) as error:
        problem = error.problem if isinstance(error, EdgepackError) else str(error)
        return _wrong(request.variant, problem)


if __name__ == "__main__":
    main()
