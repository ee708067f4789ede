"""The rehearsal: a finished bundle goes through the steps of a device.

1. The agent's verifier checks the signature and every byte.
2. The agent's matching sorts the variants for this machine, simulators allowed.
3. The agent's probe runs the golden inputs through each that can run here, in a process of its own:
   the process of the variant's trial, if still running, else a fresh process. A slow simulator runs
   two samples, like a slow device, and more if time is left; samples of the trial are not run
   again.
4. The agent's choice picks a variant.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.config import ProviderConfig
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
from edgepack.packager.reports.report import Rehearsed
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain
from edgepack.packager.runtime.provider_process import (
    MODULE,
    ProviderProcess,
    report_waiting,
)
from edgepack.packager.runtime.trial import MORE_S, Asked
from edgepack.wire.messages import Choice, DeviceFacts, ProbeResult

_PROVIDERS = ProviderConfig(allow_simulator=True)
_TIMEOUT_S = 300.0
"""A simulator takes seconds an inference."""

TAIL_S = 5.0
"""What probes may take of a build whose time is used up: that of a trial's variant still runs."""

_NO_TIME = "the time of the build was used up"

_RUNS = 5
"""Few: the time is not what is looked at here."""


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the bundle on a device like this machine.

    Attributes:
        by_variant: Result of each variant.
        choice: The variant that would run here.
    """

    by_variant: dict[str, Rehearsed]
    choice: Choice


def rehearse(
    folder: Path,
    key: PublicKey,
    process: ProviderProcess,
    progress: Progress,
    toolchains: Mapping[str, PinnedToolchain] | None = None,
    deadline: Deadline | None = None,
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

    Raises:
        BundleError: The verifier rejects the build's result.
        BuildError: A variant that can run here is wrong, named with the observation.
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
            result = _probe(folder, variant, process, toolchain, told, deadline)
        except OutOfTimeError:
            unprobed[variant.name] = _NO_TIME
            continue
        if not result.right:
            there = f" of its toolchain, {toolchain.words}" if toolchain else ""
            raise BuildError(
                f"variant {variant.name!r} fails its rehearsal: {result.because}",
                found_in=f"{variant.folder}/{variant.model_file} on {variant.provider}{there}",
                remedy=f"a device would refuse it too: {_remedy(result, variant)}",
            )
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
    return Rehearsal(by_variant=seen, choice=choice)


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


def _rehearsed(
    probe: ProbeResult, facts: DeviceFacts, toolchain: PinnedToolchain | None
) -> Rehearsed:
    there = f"in its toolchain, {toolchain.words}" if toolchain else "here"
    providers = (toolchain.facts if toolchain else facts).providers
    is_simulator = any(it.is_simulator for it in providers if it.name == probe.provider)
    return Rehearsed(
        ran=True,
        because=f"Ran {there}: {probe.because}{_describe_preparation(probe)}",
        latency_ms=None if is_simulator else probe.latency_ms,
        is_simulator=is_simulator,
    )


def _describe_preparation(probe: ProbeResult) -> str:
    return "" if probe.preparation is None else f"; {probe.preparation.because}"


def _probe(
    folder: Path,
    variant: Variant,
    process: ProviderProcess,
    toolchain: PinnedToolchain | None,
    progress: Progress,
    deadline: Deadline,
) -> ProbeResult:
    timeout_s = deadline.timeout_s(_TIMEOUT_S)
    if variant.name != process.subject:
        command = toolchain.command(MODULE) if toolchain else None
        process.start_anew(variant.name, command=command)
    request = ProbeRequest(
        bundle_folder=str(folder),
        variant=variant,
        timeout_s=timeout_s,
        golden_s=MORE_S,
        runs=_RUNS,
        threads=0,
    )
    asked = msgspec.json.encode(Asked(probe=request))
    waiting = report_waiting(progress, timeout_s)
    ending = process.ask(asked, timeout_s=timeout_s, waiting=waiting)
    if ending.answer is None:
        deadline.check()  # it may have been ended for that
    return read_ending(variant, ending)
