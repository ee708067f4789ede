"""The child of a probe: opens the candidate, runs and times the golden samples. See `probe`."""

import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from edgepack.agent.runtime.adapters import open_variant_session
from edgepack.agent.runtime.child import keep_stdout_clean, take_request
from edgepack.agent.runtime.one_cpu import keep_to_one_cpu, providers_of
from edgepack.agent.runtime.opening import open_session
from edgepack.agent.runtime.plain_files import plain_files
from edgepack.agent.runtime.preparation import prove_preparation
from edgepack.agent.runtime.probe import ProbeRequest, wrong_result
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.sessions import Tensor
from edgepack.bundle.golden import Golden, compare_outputs, read_golden
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    Manifest,
    Placement,
    Variant,
    decode_manifest,
)
from edgepack.decoding import decode_json
from edgepack.errors import EdgepackError
from edgepack.wire.reports import Preparation, ProbeResult, TextProof

LEAST_SAMPLES = 2
"""Golden samples that every probe computes, however slow: one alone may be right by chance."""

TIMED_S = 2.0
"""Timed runs end after this long, seconds, and after one at the least."""


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
            wrong_result(variant, f"{session.provider} took none of {placement.total} nodes"),
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


ProveTexts = Callable[[Path, ProbedSession, Golden, Variant], TextProof | None]
"""Proves the texts of a model; None for other models."""


def main(prove_texts: ProveTexts) -> None:
    """Read a request, probe and answer. For the child.

    Args:
        prove_texts: See `probe_here`.
    """
    request = decode_json(take_request(), ProbeRequest)
    keep_to_one_cpu(*providers_of(request.variant))
    answer = keep_stdout_clean(request.timeout_s)
    with answer:
        result = probe_here(request, prove_texts=prove_texts)
        answer.write(msgspec.json.encode(result) + b"\n")


def probe_here(
    request: ProbeRequest,
    open_variant: OpenVariant = open_session,
    prove_texts: ProveTexts | None = None,
) -> ProbeResult:
    """Probe in this process, which should be a child: a provider may crash or hang.

    Args:
        request: Variant to probe.
        open_variant: Opens the candidate.
        prove_texts: Proves texts; None leaves texts out.
    """
    try:
        bundle, variant = Path(request.bundle_folder), request.variant
        manifest = _read_manifest(bundle)
        with plain_files(bundle, variant, request.key_file, manifest) as folder:
            golden = read_golden(folder / GOLDEN_FILE)
            if request.base is None:
                session = open_variant(folder, variant, threads=request.threads)
            else:
                session = open_variant_session(
                    folder,
                    variant,
                    request.base,
                    threads=request.threads,
                    key_file=request.key_file,
                )
            result = judge(session, golden, variant, runs=request.runs, golden_s=request.golden_s)
            if manifest is None or not result.right:
                return result
            if prove_texts is not None:
                texts = Path(request.base.folder) if request.base else bundle
                result = _with_texts(result, prove_texts(texts, session, golden, variant))
            preparation = prove_preparation(
                folder,
                manifest,
                variant,
                golden,
                session,
                least=LEAST_SAMPLES,
                limit_s=request.golden_s,
            )
        return _with_preparation(result, preparation)
    except (EdgepackError, ValueError) as error:
        problem = error.problem if isinstance(error, EdgepackError) else str(error)
        return wrong_result(request.variant, problem)


def _read_manifest(bundle: Path) -> Manifest | None:
    """Return the manifest of a bundle; None for files without a manifest."""
    try:
        return decode_manifest((bundle / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        return None


def _with_texts(result: ProbeResult, proof: TextProof | None) -> ProbeResult:
    """Return a result with the proof of texts; wrong texts are a wrong result."""
    if proof is None or proof.right:
        return msgspec.structs.replace(result, texts=proof)
    return msgspec.structs.replace(result, right=False, because=proof.because, texts=proof)


def _with_preparation(result: ProbeResult, preparation: Preparation | None) -> ProbeResult:
    """Return a result with the proof of the preparation; a wrong preparation is a wrong result."""
    if preparation is None or preparation.right is not False:
        return msgspec.structs.replace(result, preparation=preparation)
    return msgspec.structs.replace(
        result, right=False, because=preparation.because, preparation=preparation
    )
