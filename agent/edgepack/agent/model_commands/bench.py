"""Latency of the serving variant on this device: measured now, at its probe, by applications."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgepack.agent.model_commands.serving import find_runnable
from edgepack.agent.runtime.child import run_child
from edgepack.agent.state.state_file import read_regular
from edgepack.agent.telemetry.counts import read_counts
from edgepack.agent.telemetry.journal import JOURNAL_FILE, STORED
from edgepack.agent.telemetry.spool import COUNTS, spool_folder
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError, TransferError
from edgepack.python_child import python_command
from edgepack.text import counted
from edgepack.versions import NewerVersionError
from edgepack.wire.histogram import percentile

CHILD = python_command("edgepack.agent.model_commands.bench_child")
OPENING_S = 300.0
"""Time limit of the opening, besides that of the measurement."""


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the child.

    Attributes:
        state_dir, digest, variant: The release and its variant.
        seconds: Length of the measurement.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        timeout_s: Time limit of the child.
    """

    state_dir: str
    digest: str
    variant: str
    seconds: float
    threads: int
    timeout_s: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies, milliseconds; a percentile is None if unknown.

    Attributes:
        source: Source of the numbers.
        count: Inferences.
        p50_ms, p90_ms, p99_ms: Percentiles.
        tokens_per_s: Tokens that a text grows by in a second; None for other rows.
    """

    source: str
    count: int
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    tokens_per_s: float | None = None


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of a serving variant.

    Attributes:
        name, version, variant, provider: The serving variant.
        rows: Now, at the probe before the switch, and of applications in the last hour; of a model
            that writes texts also the time to the first token, and the time of a further token.
        beside: Inferences of applications while the measurement ran; 0 means quiet.
        load: Load average of the last minute for each core.
    """

    name: str
    version: str
    variant: str
    provider: str
    rows: tuple[Measured, ...]
    beside: int
    load: float


def measure(state_dir: Path, name: str, *, seconds: float, threads: int) -> Bench:
    """Run golden samples on the serving variant for some seconds, and texts, in a child process.

    The inferences count in no statistics. Applications continue to run: `beside` has their
    inferences of the same seconds.

    Args:
        state_dir: The agent's state folder.
        name: The model.
        seconds: Length of the measurement.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.

    Raises:
        DeviceError: Nothing serves, or the variant cannot run.
    """
    pointer = find_runnable(state_dir, name)
    choice = pointer.choice
    request = BenchRequest(
        state_dir=str(state_dir.resolve()),
        digest=pointer.digest,
        variant=choice.chosen,
        seconds=seconds,
        threads=threads,
        timeout_s=OPENING_S + seconds,
    )
    before = _count_inferences(state_dir)
    ending = run_child(CHILD, msgspec.json.encode(request), timeout_s=request.timeout_s)
    beside = _count_inferences(state_dir) - before
    if ending.answer is None:
        raise DeviceError(
            f"{choice.chosen} cannot be measured: {ending.because}",
            remedy="edgepack-agent doctor examines the provider",
        )
    rows = decode_json(ending.answer, list[Measured])
    for probe in choice.probes:
        if probe.variant == choice.chosen and probe.inference_ms is not None:
            rows.append(Measured(source="at its probe", count=0, p50_ms=probe.inference_ms))
    rows += _of_applications(state_dir, f"{pointer.digest} {choice.chosen}")
    return Bench(
        name=name,
        version=pointer.bundle.version,
        variant=choice.chosen,
        provider=choice.provider,
        rows=tuple(rows),
        beside=max(0, beside),
        load=os.getloadavg()[0] / (os.cpu_count() or 1),
    )


def describe_bench(bench: Bench) -> Iterator[str]:
    """Yield the latencies as lines for a person."""
    beside = (
        f"beside {counted(bench.beside, 'inference')} of applications"
        if bench.beside
        else "quiet: no application ran an inference meanwhile"
    )
    yield f"model     {bench.name} {bench.version}: {bench.variant} on {bench.provider}"
    yield f"measured  {beside}"
    yield f"load      {bench.load:.1f} for each core, in the last minute"
    yield f"{'':24} {'p50 ms':>9} {'p90 ms':>9} {'p99 ms':>9} {'runs':>8}"
    for row in bench.rows:
        cells = (row.p50_ms, row.p90_ms, row.p99_ms)
        shown = " ".join(f"{'' if one is None else format(one, '.3g'):>9}" for one in cells)
        tokens = "" if row.tokens_per_s is None else f"  {row.tokens_per_s:.3g} tokens/s"
        yield f"{row.source:24} {shown} {row.count or '':>8}{tokens}"


def _count_inferences(state_dir: Path) -> int:
    """Return the inferences that serving processes have counted so far."""
    total = 0
    for path in spool_folder(state_dir).glob(f"*{COUNTS}"):
        try:
            found = read_counts(path)
        except (OSError, TransferError):
            continue
        total += found.latency.count if found else 0
    return total


def _of_applications(state_dir: Path, key: str) -> Iterator[Measured]:
    """Yield the latencies that applications had in the last hour, if the agent stored some."""
    try:
        content = read_regular(state_dir / JOURNAL_FILE)
        stored = STORED.decode(content).value if content else None
    except (OSError, ValueError, NewerVersionError):
        return
    pace = stored.paces.get(key) if stored else None
    of_texts = pace.first_tokens if pace else None
    title = "applications, last hour" if of_texts is None else "texts' tokens, last hour"
    for source, found in ((title, pace), ("texts' first, last hour", of_texts)):
        if found is not None and found.latency.count:
            p50, p90, p99 = (percentile(found.latency, one) for one in (50, 90, 99))
            yield Measured(
                source=source, count=found.latency.count, p50_ms=p50, p90_ms=p90, p99_ms=p99
            )
