"""The rehearsal: a finished bundle goes through the steps of a device.

1. The agent's verifier checks the signature and every byte.
2. The agent's matching sorts the variants for this machine, simulators allowed.
3. The agent's probe runs the golden inputs through each that can run here, in a process of its own:
   the process of the variant's trial, if still running, else a fresh process. A slow simulator runs
   two samples, like a slow device, and more if time is left; samples of the trial are not run
   again.
4. The agent's choice picks a variant.
5. The agent's probe runs on each board of a variant.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.bases import BaseRelease
from edgepack.agent.runtime.choice import choose
from edgepack.agent.runtime.facts import read_device_facts
from edgepack.agent.runtime.matching import match_variants
from edgepack.agent.runtime.probe import ProbeRequest, read_ending
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import Manifest, Variant
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import BuildError
from edgepack.packager.progress import BuildStep, Progress, for_profile
from edgepack.packager.reports.reasons import FLOAT_PRECISION
from edgepack.packager.reports.report import BoardResult, Rehearsed
from edgepack.packager.runtime.board import Board, BoardError
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain
from edgepack.packager.runtime.provider_process import (
    MODULE,
    ProviderProcess,
    TrialProcess,
    report_waiting,
)
from edgepack.packager.runtime.trial import MORE_S, Asked
from edgepack.wire.reports import Choice, DeviceFacts, ProbeResult

_PROVIDERS = ProviderConfig(allow_simulator=True)
_TIMEOUT_S = 300.0
_SIMULATED_TIMEOUT_S = 1800.0
"""QNN's simulator takes minutes for a page of text on a loaded machine."""

TAIL_S = 5.0
"""What probes may take of a build whose time is used up: that of a trial's variant still runs."""

_NO_TIME = "the time of the build was used up"

NO_BASES: Mapping[str, BaseRelease] = {}

_MEASURED = 5, _TIMEOUT_S
_SIMULATED = 1, _SIMULATED_TIMEOUT_S
"""Timed runs, few since time is not the subject here, and the time limit. A simulator's time says
nothing.
"""


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the bundle on a device like this machine.

    Attributes:
        by_variant: Result of each variant.
        choice: The variant that would run here.
        on_boards: By variant and board the result of the agent's probe, and how often the
            connection was lost.
    """

    by_variant: dict[str, Rehearsed]
    choice: Choice
    on_boards: dict[str, dict[str, tuple[ProbeResult, int]]] = {}

    def with_probes(self, variant: str, boards: tuple[BoardResult, ...]) -> tuple[BoardResult, ...]:
        """Return the results of a variant's boards, with those of the probes."""
        probes = self.on_boards.get(variant, {})
        return tuple(
            replace(
                board,
                golden=_describe_golden(probes[board.board][0]),
                probe_ms=probes[board.board][0].latency_ms,
                losses=probes[board.board][1],
            )
            if board.board in probes
            else board
            for board in boards
        )


def rehearse(
    folder: Path,
    key: PublicKey,
    process: ProviderProcess,
    progress: Progress,
    toolchains: Mapping[str, PinnedToolchain] | None = None,
    deadline: Deadline | None = None,
    boards: Mapping[str, tuple[Board, ...]] | None = None,
    bases: Mapping[str, BaseRelease] = NO_BASES,
) -> Rehearsal:
    """Verify, match, probe and choose, as a device does.

    Args:
        folder: The signed bundle's folder.
        key: The signer's public key.
        process: Process of a variant's trial; the same process probes the variant.
        progress: Called for each probe.
        toolchains: By variant the environment for matching and probing, if other than this
            environment. Its result does not enter the choice, which is this environment's.
        deadline: The end of the build; None for no end. Probes may take `TAIL_S` at the least, and
            variants that are not probed until then are reported as not rehearsed.
        boards: By variant the boards that prove the variant: they are probed in any case.
        bases: By variant the base of an adapter.

    Raises:
        BundleError: The verifier rejects the build's result.
        BuildError: A variant that can run here or on its board is wrong, named with the
            observation.
        BoardLostError: A board does not answer any longer.
    """
    # 1
    trust = TrustPolicy(keys=(key,), allow_degraded_unsafe=True)
    verified = trust.check_folder(folder)
    # 2
    facts = read_device_facts(_PROVIDERS)
    matches = match_variants(verified.manifest, facts, _PROVIDERS, trust)
    # 3
    pinned = toolchains or {}
    elsewhere = _match_elsewhere(verified.manifest, pinned, trust)
    here = {variant.name: variant for variant in matches.candidates}
    probes: dict[str, ProbeResult] = {}
    unprobed: dict[str, str] = {}
    deadline = (deadline or Deadline()).at_least(TAIL_S)
    todo = sorted((here | elsewhere).values(), key=lambda it: it.name != process.subject)
    for variant in todo:
        progress(BuildStep(what="rehearsing", profile=variant.name))
        toolchain = pinned.get(variant.name)
        try:
            told = for_profile(progress, variant.name)
            base = bases.get(variant.name)
            own = toolchain.facts if toolchain else facts
            runs, most_s = _SIMULATED if _is_simulated(variant, own) else _MEASURED
            result = _probe(folder, variant, process, toolchain, told, deadline, runs, most_s, base)
        except OutOfTimeError:
            unprobed[variant.name] = _NO_TIME
            continue
        if not result.right:
            there = f" of its toolchain, {toolchain.words}" if toolchain else ""
            raise RehearsalError(result, variant, there)
        probes[variant.name] = result
    # 4
    order = [variant.name for variant in verified.manifest.variants]
    candidates = [probes[name] for name in here if name in probes]
    not_run = {**matches.rejected, **unprobed}
    choice = choose(candidates, not_run, facts, _PROVIDERS, order)
    if not choice.chosen and unprobed:
        choice = replace(choice, because=f"{', '.join(unprobed)} not rehearsed: {_NO_TIME}")
    seen = {
        name: Rehearsed(ran=False, because=f"Not run here: {reason}")
        for name, reason in not_run.items()
    }
    seen |= {name: _rehearsed(probe, facts, pinned.get(name)) for name, probe in probes.items()}
    # 5
    on_boards = {
        variant.name: _probe_boards(folder, variant, boards[variant.name], progress, deadline)
        for variant in verified.manifest.variants
        if boards and boards.get(variant.name)
    }
    for name, results in on_boards.items():
        slowest = max(
            (result for result, _ in results.values()), key=lambda it: it.latency_ms or 0.0
        )
        because = "; ".join(
            f"Ran on board {board}: {_describe_golden(result)}"
            for board, (result, _) in results.items()
        )
        seen[name] = Rehearsed(ran=True, because=because, latency_ms=slowest.latency_ms)
    return Rehearsal(by_variant=seen, choice=choice, on_boards=on_boards)


def _probe_boards(
    folder: Path,
    variant: Variant,
    boards: tuple[Board, ...],
    progress: Progress,
    deadline: Deadline,
) -> dict[str, tuple[ProbeResult, int]]:
    """Probe a variant on its boards, whatever time is left: a bundle that says that it was proven
    was proven.
    """
    results = {}
    for board in boards:
        progress(BuildStep(what=f"rehearsing on {board.name}", profile=variant.name))
        told = for_profile(progress, variant.name)
        long_enough = deadline.at_least(_TIMEOUT_S)
        try:
            result = _probe(folder, variant, board.process, None, told, long_enough, *_MEASURED)
        except BoardError as error:
            error.found_in = f"not proven: {variant.name}, in its rehearsal; no bundle was written"
            raise
        if not result.right:
            raise RehearsalError(result, variant, f" of board {board.name}, {board.words}")
        results[board.name] = (result, board.process.losses)
    return results


class RehearsalError(BuildError):
    """A variant failed its rehearsal.

    Args:
        result: Result of the probe.
        variant: The variant.
        there: The place of the probe, as the end of a sentence; "" for this machine.
    """

    def __init__(self, result: ProbeResult, variant: Variant, there: str) -> None:
        super().__init__(
            f"variant {variant.name!r} fails its rehearsal: {result.because}",
            found_in=f"{variant.folder}/{variant.model_file} on {variant.provider}{there}",
            remedy=f"a device would refuse it too: {_remedy(result, variant)}",
        )
        self.variant = variant.name


def _remedy(result: ProbeResult, variant: Variant) -> str:
    if result.latency_ms is None:  # it gave no outputs
        return (
            f"take another profile, or export the model with operators that {result.provider} has"
        )
    more = "" if variant.facts.precision == FLOAT_PRECISION else "take a more precise profile, or "
    return f"{more}export the model with operators that {result.provider} computes rightly"


def _match_elsewhere(
    manifest: Manifest, pinned: Mapping[str, PinnedToolchain], trust: TrustPolicy
) -> dict[str, Variant]:
    """Return variants that a device with their own toolchain would take, by name."""
    return {
        variant.name: variant
        for name, toolchain in pinned.items()
        for variant in match_variants(manifest, toolchain.facts, _PROVIDERS, trust).candidates
        if variant.name == name
    }


def _is_simulated(variant: Variant, facts: DeviceFacts) -> bool:
    """Return True if a simulator runs a variant, or a stage of it."""
    simulated = {one.name for one in facts.providers if one.is_simulator}
    return not simulated.isdisjoint(one.provider for one in (variant, *variant.parts))


def _rehearsed(
    probe: ProbeResult, facts: DeviceFacts, toolchain: PinnedToolchain | None
) -> Rehearsed:
    there = f"in its toolchain, {toolchain.words}" if toolchain else "here"
    providers = (toolchain.facts if toolchain else facts).providers
    is_simulator = any(it.is_simulator for it in providers if it.name == probe.provider)
    return Rehearsed(
        ran=True,
        because=f"Ran {there}: {_describe_golden(probe)}",
        latency_ms=None if is_simulator else probe.latency_ms,
        is_simulator=is_simulator,
    )


def _describe_golden(probe: ProbeResult) -> str:
    preparation = "" if probe.preparation is None else f"; {probe.preparation.because}"
    return f"{probe.because}{preparation}"


def _probe(
    folder: Path,
    variant: Variant,
    process: TrialProcess,
    toolchain: PinnedToolchain | None,
    progress: Progress,
    deadline: Deadline,
    runs: int,
    most_s: float,
    base: BaseRelease | None = None,
) -> ProbeResult:
    timeout_s = deadline.timeout_s(most_s)
    if variant.name != process.subject:
        command = toolchain.command(MODULE) if toolchain else None
        process.start_anew(variant.name, command=command)
    request = ProbeRequest(
        bundle_folder=str(folder),
        variant=variant,
        timeout_s=timeout_s,
        golden_s=MORE_S,
        runs=runs,
        threads=0,
        base=base,
    )
    asked = msgspec.json.encode(Asked(probe=request))
    waiting = report_waiting(progress, timeout_s)
    ending = process.ask(asked, timeout_s=timeout_s, waiting=waiting)
    if ending.answer is None:
        deadline.check()  # it may have been ended for that
    return read_ending(variant, ending)
