"""Matching of a bundle's variants with this device, with the reason for each rejected variant.

`match_variants` is pure: it compares the manifest's requirements with the device's facts. Whether a
candidate is right, its probe decides.
"""

import re
from pathlib import Path

import msgspec

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.bases import find_base
from edgepack.agent.runtime.versions import is_within
from edgepack.bundle.manifest import Manifest, Requirements, Variant
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import EdgepackError
from edgepack.wire.reports import DeviceFacts, ProviderFacts


class Matches(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle's variants, sorted out.

    Attributes:
        candidates: Candidates for probes, in the manifest's order of preference.
        rejected: All other variants by name, each with its reason in a sentence.
    """

    candidates: tuple[Variant, ...]
    rejected: dict[str, str]


def match_variants(
    manifest: Manifest, facts: DeviceFacts, providers: ProviderConfig, trust: TrustPolicy
) -> Matches:
    """Sort a bundle's variants into candidates and rejected variants.

    1. Degraded variants need the device's leave.
    2. The provider must be allowed, there, and drive the device kind.
    3. A simulated provider needs the device's leave.
    4. Every requirement must hold.
    5. The memory must hold the weights and the cache of a full context, for a model of texts.

    Args:
        manifest: The verified manifest.
        facts: Facts of the device.
        providers: Providers that the device may use.
        trust: Whether the device accepts degraded variants.
    """
    candidates = []
    rejected = {}
    for variant in manifest.variants:
        reason = trust.refusal_of(variant) or _why_graph_unfit(variant, facts, providers)  # 1
        reason = reason or _why_no_memory(manifest, variant, facts)  # 5
        if reason:
            rejected[variant.name] = reason
        else:
            candidates.append(variant)
    return Matches(candidates=tuple(candidates), rejected=rejected)


def match_here(
    manifest: Manifest,
    facts: DeviceFacts,
    providers: ProviderConfig,
    trust: TrustPolicy,
    state_dir: Path,
) -> Matches:
    """Sort a bundle's variants as `match_variants` does; of an adapter, only the variant fits that
    its base runs.

    Args:
        manifest, facts, providers, trust: See `match_variants`.
        state_dir: The agent's state folder.
    """
    matches = match_variants(manifest, facts, providers, trust)
    try:
        base = find_base(state_dir, manifest)
    except EdgepackError as error:
        because = f"{error.problem}; {error.remedy}" if error.remedy else error.problem
        others = dict.fromkeys((one.name for one in matches.candidates), because)
        return Matches(candidates=(), rejected=matches.rejected | others)
    if base is None:
        return matches
    chosen = base.variant.name
    kept = tuple(one for one in matches.candidates if one.name == chosen)
    others = {
        one.name: f"its base runs {chosen}" for one in matches.candidates if one.name != chosen
    }
    return Matches(candidates=kept, rejected=matches.rejected | others)


def _why_graph_unfit(variant: Variant, facts: DeviceFacts, providers: ProviderConfig) -> str:
    """Return why a device cannot run a graph of a variant; "" if it can run all."""
    for graph in variant.graphs:
        reason = why_unfit(graph.provider, graph.device, graph.facts.requires, facts, providers)
        if reason:
            return f"stage '{graph.component}': {reason}" if variant.parts else reason
    return ""


def _why_no_memory(manifest: Manifest, variant: Variant, facts: DeviceFacts) -> str:
    """Return the reason why texts do not fit into the device's memory; "" if they do."""
    generation = manifest.facts.generation
    if generation is None or not facts.memory_bytes:
        return ""
    needed = manifest.memory_bytes(variant.name)
    if needed <= facts.memory_bytes:
        return ""
    weights = needed - generation.cache_bytes
    return (
        f"weights ({weights} bytes) and the cache of {generation.context} tokens "
        f"({generation.cache_bytes} bytes) need more memory than the {facts.memory_bytes} bytes "
        "of this device: build with a shorter --context"
    )


def why_unfit(
    provider: str,
    device: str,
    requires: Requirements,
    facts: DeviceFacts,
    config: ProviderConfig,
) -> str:
    """Return why a device cannot run what is made for a provider, as a sentence; "" if it can.

    Args:
        provider, device: The provider, and the kind of device that it drives.
        requires: Required facts.
        facts: Facts of the device.
        config: Providers that the device may use.
    """
    return _refuse_provider(provider, device, facts, config) or _refuse_requirements(  # 2, 3
        requires, facts
    )  # 4


def _refuse_provider(name: str, device: str, facts: DeviceFacts, config: ProviderConfig) -> str:
    if config.allow and name not in config.allow:
        return f"{name} is not allowed here, only {', '.join(config.allow)}"
    provider = _find_provider(facts, name)
    if provider is None:
        return f"{name} is unknown here"
    if not provider.available:
        return f"{name} is not available: {provider.because}"
    if provider.devices and device not in provider.devices:
        offered = ", ".join(provider.devices)
        return f"{name} offers {offered} here, the variant is for {device}"
    if provider.is_simulator and not config.allow_simulator:
        return f"{name} only simulates its hardware here, and this device's settings forbid that"
    return ""


def _find_provider(facts: DeviceFacts, name: str) -> ProviderFacts | None:
    return next((provider for provider in facts.providers if provider.name == name), None)


def _refuse_requirements(requires: Requirements, facts: DeviceFacts) -> str:
    if requires.arch and facts.arch not in requires.arch:
        return f"it is for {' or '.join(requires.arch)}, this device is {facts.arch}"
    lacking = [name for name in requires.cpu_features if name not in facts.cpu_features]
    if lacking:
        return f"the processor lacks {', '.join(lacking)}"
    if requires.soc and not _is_soc(requires.soc, facts.soc):
        return f"it is for SoC {' or '.join(requires.soc)}, this device is {facts.soc or 'unknown'}"
    reason = _refuse_version("onnxruntime", facts.runtime, requires.runtime)
    if reason:
        return reason
    for driver, version_range in sorted(requires.drivers.items()):
        reason = _refuse_version(driver, facts.drivers.get(driver, ""), version_range)
        if reason:
            return reason
    return ""


def _is_soc(wanted: tuple[str, ...], soc: str) -> bool:
    """Return True if any wanted name is a name of the device's SoC, case ignored."""
    names = {name for name in re.split(r"[,\s]+", soc.lower()) if name}
    return any(name.lower() in names for name in wanted)


def _refuse_version(what: str, version: str, version_range: str) -> str:
    if not version_range:
        return ""
    if not version:
        return f"it needs {what} {version_range}, this device has none"
    try:
        fits = is_within(version, version_range)
    except ValueError as error:
        return f"its requirement on {what} cannot be judged: {error}"
    return "" if fits else f"it needs {what} {version_range}, this device has {version}"
