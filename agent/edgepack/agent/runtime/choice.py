"""Choosing the variant that serves: the fastest that is right, and the reason in numbers.

Pure: the function judges probe results. Variants that write texts are compared by the time of a
text: its first token, and the tokens after it. A simulated provider neither wins nor loses by its
time, which is meaningless; a simulated provider serves only if the device's settings prefer the
provider, or if no other candidate is right.
"""

import math
from collections.abc import Mapping, Sequence

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.wire.reports import Choice, DeviceFacts, ProbeResult, TextPace

NOISE = 1.05
"""Latencies within this ratio of the fastest count as equal; short timings vary by as much."""
TEXT_TOKENS = 128
"""Tokens of the text by whose time variants are compared, after the longest prompt that all of
them measured."""


def choose(
    probes: Sequence[ProbeResult],
    rejected: Mapping[str, str],
    facts: DeviceFacts,
    config: ProviderConfig,
    preference: Sequence[str],
) -> Choice:
    """Decide which candidate serves.

    1. Only candidates that are right count.
    2. A wanted provider that is simulated here is taken: its time says nothing.
    3. The fastest real provider is taken; among equally fast candidates the wanted provider, then
       an accelerator, then the manifest's order.
    4. A simulated provider is taken if no other candidate is right.

    Args:
        probes: Results of every candidate.
        rejected: Variants that were no candidates, with the reason.
        facts: Facts of the device.
        config: Settings of the device.
        preference: Variant names, best first, in the manifest's order.

    Returns:
        The decision; `chosen` is "" when nothing is right.
    """
    simulated = {provider.name for provider in facts.providers if provider.is_simulator}
    right = [probe for probe in probes if probe.right]  # 1
    real = [probe for probe in right if probe.provider not in simulated]
    wanted_simulated = [
        probe for probe in right if probe.provider in simulated and probe.provider == config.wanted
    ]
    if not right:
        chosen, because = None, _why_none(probes, rejected)
    elif wanted_simulated:  # 2
        chosen = _first(wanted_simulated, preference)
        because = f"{_name(chosen)} is wanted and right; it is simulated, so its time says nothing"
    elif real:  # 3
        chosen = _fastest(real, config.wanted, preference)
        because = _why_fastest(chosen, real, is_simulated=len(right) > len(real))
    else:  # 4
        chosen = _first(right, preference)
        because = f"{_name(chosen)} is right and no real provider is; it is simulated here"
    provider = chosen.provider if chosen else ""
    is_fallback = bool(config.wanted) and provider != config.wanted
    if is_fallback:
        because += f"; {config.wanted} is wanted: {why_not(config.wanted, probes, rejected)}"
    return Choice(
        wanted=config.wanted,
        chosen=chosen.variant if chosen else "",
        provider=provider,
        because=because,
        is_fallback=is_fallback,
        probes=tuple(probes),
        rejected=dict(rejected),
    )


class _Times:
    """Times by which candidates are compared.

    Args:
        probes: The candidates.
    """

    def __init__(self, probes: Sequence[ProbeResult]) -> None:
        paces = [
            {one.prompt_tokens: one for one in probe.texts.paces} if probe.texts else {}
            for probe in probes
        ]
        prompts = set.intersection(*map(set, paces)) if paces else set()
        self._prompt = max(prompts, default=0)

    def of(self, probe: ProbeResult) -> float:
        """Return the time of a candidate, milliseconds; infinity if unknown."""
        pace = self._pace(probe)
        if pace is not None:
            return pace.text_ms(TEXT_TOKENS)
        return math.inf if probe.latency_ms is None else probe.latency_ms

    def words(self, probe: ProbeResult) -> str:
        """Return the time of a candidate, in words."""
        pace = self._pace(probe)
        if pace is not None:
            return pace.words
        return "an unknown time" if probe.latency_ms is None else f"{probe.latency_ms:.3g} ms"

    def _pace(self, probe: ProbeResult) -> TextPace | None:
        paces = probe.texts.paces if probe.texts else ()
        return next((one for one in paces if one.prompt_tokens == self._prompt), None)


def _rank(probe: ProbeResult, preference: Sequence[str]) -> int:
    return preference.index(probe.variant) if probe.variant in preference else len(preference)


def _first(probes: Sequence[ProbeResult], preference: Sequence[str]) -> ProbeResult:
    return min(probes, key=lambda probe: _rank(probe, preference))


def _fastest(probes: Sequence[ProbeResult], wanted: str, preference: Sequence[str]) -> ProbeResult:
    times = _Times(probes)
    limit = min(map(times.of, probes)) * NOISE
    equal = [probe for probe in probes if times.of(probe) <= limit]
    return min(
        equal,
        key=lambda probe: (
            probe.provider != wanted,
            probe.provider == CPU_PROVIDER,
            _rank(probe, preference),
        ),
    )


def _name(probe: ProbeResult) -> str:
    return f"{probe.variant} on {probe.provider}"


def _why_fastest(chosen: ProbeResult, real: Sequence[ProbeResult], *, is_simulated: bool) -> str:
    times = _Times(real)
    own = times.words(chosen)
    others = sorted((probe for probe in real if probe is not chosen), key=times.of)
    if not others:
        kind = "right and not simulated" if is_simulated else "right"
        return f"{_name(chosen)} is the only candidate that is {kind}: {own}"
    against = ", ".join(f"{times.words(probe)} of {_name(probe)}" for probe in others)
    if times.of(others[0]) <= times.of(chosen):
        return f"{_name(chosen)} is preferred among equally fast: {own}, {against}"
    return f"{_name(chosen)} is the fastest that is right: {own} against {against}"


def _why_none(probes: Sequence[ProbeResult], rejected: Mapping[str, str]) -> str:
    if probes:
        reasons = "; ".join(f"{_name(probe)}: {probe.because}" for probe in probes)
        return f"no candidate is right: {reasons}"
    reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
    return f"no variant fits this device: {reasons or 'the bundle has none'}"


def why_not(wanted: str, probes: Sequence[ProbeResult], rejected: Mapping[str, str]) -> str:
    """Return why a wanted provider does not serve."""
    own = [probe for probe in probes if probe.provider == wanted]
    if any(probe.right for probe in own):
        return "it is slower"
    if own:
        return "; ".join(probe.because for probe in own)
    reasons = [f"{name}: {reason}" for name, reason in rejected.items() if wanted in reason]
    return "; ".join(reasons) or "the bundle has no candidate for it"
