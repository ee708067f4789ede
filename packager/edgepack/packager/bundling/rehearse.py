"""The dress rehearsal: a finished bundle goes through what a device would do with it.

1. The agent's verifier checks the signature and every byte.
2. The agent's matching sorts the variants for this machine, simulators allowed.
3. The agent's probe runs the golden inputs through each that can run here, in a process of its own:
   that of the variant's trial, if it still runs, else a fresh one. Of slow simulators it runs two,
   as a slow device does, and more where there is time; what the trial ran is not run again.
4. The agent's choice picks one.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgepack.agent.config import ProviderConfig, TrustConfig
from edgepack.agent.runtime.choice import choose
from edgepack.agent.runtime.facts import read_device_facts
from edgepack.agent.runtime.matching import match_variants
from edgepack.agent.runtime.probe import ProbeRequest, read_ending
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import Variant
from edgepack.bundle.verify import verify_folder
from edgepack.errors import BuildError
from edgepack.packager.judging.provider_process import ProviderProcess
from edgepack.packager.judging.trial import Asked
from edgepack.packager.progress import Progress
from edgepack.packager.reports.report import Rehearsed
from edgepack.wire.messages import Choice, ProbeResult

_PROVIDERS = ProviderConfig(allow_simulator=True)
_TRUST = TrustConfig(keys=(), allow_degraded_unsafe=True)
_TIMEOUT_S = 300.0
"""A simulator takes seconds an inference."""

_GOLDEN_S = 1.0
"""Golden samples beyond two are begun for this long: the held-out samples gave the verdict, and the
trial found the provider to compute what was judged."""

_RUNS = 5
"""Few: the time is not what is looked at here."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What a device like this machine would have made of the bundle.

    Attributes:
        by_variant: What was seen of each.
        choice: What would run here.
    """

    by_variant: dict[str, Rehearsed]
    choice: Choice


def rehearse(
    folder: Path, key: PublicKey, process: ProviderProcess, progress: Progress
) -> Rehearsal:
    """Verifies, matches, probes and chooses, as a device does.

    Args:
        folder: The signed bundle's folder.
        key: The public key of who signed it.
        process: Where a variant was tried; it probes the same one.
        progress: Told of each probe.

    Raises:
        BundleError: The verifier refuses what was built.
        BuildError: A variant that can run here is not right, named with what was seen.
    """
    # 1
    verified = verify_folder(folder, [key])
    # 2
    facts = read_device_facts(_PROVIDERS)
    matches = match_variants(verified.manifest, facts, _PROVIDERS, _TRUST)
    # 3
    probes: list[ProbeResult] = []
    total = len(matches.candidates)
    still_running_first = sorted(matches.candidates, key=lambda it: it.name != process.subject)
    for done, variant in enumerate(still_running_first):
        progress(f"rehearsing {variant.name}", done, total)
        result = _probe(folder, variant, process)
        if not result.right:
            raise BuildError(
                f"variant {variant.name!r} fails its rehearsal: {result.because}",
                found_in=f"{variant.folder}/{variant.model_file} on {variant.provider}",
                remedy="a device would refuse it too: widen the profile's golden tolerances only "
                "if the outputs are good enough, else take a more precise profile",
            )
        probes.append(result)
        progress(f"rehearsing {variant.name}", done + 1, total)
    # 4
    order = [variant.name for variant in verified.manifest.variants]
    choice = choose(probes, matches.rejected, facts, _PROVIDERS, order)
    simulated = {provider.name for provider in facts.providers if provider.is_simulator}
    seen = {
        probe.variant: Rehearsed(
            ran=True,
            because=f"Ran here: {probe.because}",
            latency_ms=probe.latency_ms,
            is_simulator=probe.provider in simulated,
        )
        for probe in probes
    }
    seen |= {
        name: Rehearsed(ran=False, because=f"Not run here: {reason}")
        for name, reason in matches.rejected.items()
    }
    return Rehearsal(by_variant=seen, choice=choice)


def _probe(folder: Path, variant: Variant, process: ProviderProcess) -> ProbeResult:
    if variant.name != process.subject:
        process.start_anew(variant.name)
    request = ProbeRequest(
        bundle_folder=str(folder),
        variant=variant,
        timeout_s=_TIMEOUT_S,
        golden_s=_GOLDEN_S,
        runs=_RUNS,
        threads=0,
    )
    asked = msgspec.json.encode(Asked(probe=request))
    return read_ending(variant, process.ask(asked, timeout_s=_TIMEOUT_S))
