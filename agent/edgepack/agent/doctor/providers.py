"""Checks of execution providers: each runs a small model in a child; placement decides."""

import importlib.metadata
from collections.abc import Iterator

import msgspec

from edgepack.agent.config import ProviderConfig
from edgepack.agent.doctor.findings import Device, Finding, ok, warn, wrong
from edgepack.agent.runtime.child import run_child
from edgepack.agent.runtime.facts_reader import FactsReader
from edgepack.agent.runtime.providers import why_nothing_runs
from edgepack.bundle.manifest import Placement
from edgepack.decoding import decode_json
from edgepack.python_child import python_command
from edgepack.wire.reports import ProviderFacts

CHILD = python_command("edgepack.agent.doctor.provider_child")
TIMEOUT_S = 60.0
MEMORY_BYTES = 2 * 1024**3
_MODULE_FILE = "onnxruntime/__init__.py"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the child: a provider and a device kind."""

    provider: str
    device: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the child.

    Attributes:
        placement: Nodes that the provider took.
        latency_ms: Time of an inference, milliseconds.
        problem: Reason of a failure; "" after success.
    """

    placement: Placement | None = None
    latency_ms: float = 0.0
    problem: str = ""


def check_wheels(device: Device) -> Iterator[Finding]:
    """Find several installed wheels that own the module `onnxruntime`: one of them is damaged."""
    del device
    owners = find_owners()
    if len(owners) > 1:
        names = [name for name, _ in owners]
        yield wrong(
            "runtime",
            f"{len(owners)} wheels own the module onnxruntime: "
            f"{', '.join(f'{name} {version}' for name, version in owners)}; the last one installed "
            "has overwritten the other",
            f"pip uninstall --yes {' '.join(names)}, then pip install the wanted one",
        )
    elif owners:
        yield ok("runtime", f"{owners[0][0]} {owners[0][1]} alone owns the module onnxruntime")


def find_owners() -> list[tuple[str, str]]:
    """Return name and version of each installed wheel with the module `onnxruntime`, sorted."""
    found = set()
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"] or ""
        if name.lower().startswith("onnxruntime") or name.lower().startswith("ort"):
            record = one.read_text("RECORD") or ""
            if any(line.startswith(f"{_MODULE_FILE},") for line in record.splitlines()):
                found.add((name, one.version))
    return sorted(found)


def check_providers(device: Device) -> Iterator[Finding]:
    """Run a small model on each provider that the runtime offers, as the agent would."""
    settings = device.config.providers if device.config else ProviderConfig(allow_simulator=True)
    facts = FactsReader(settings).read()
    if because := why_nothing_runs(facts.providers, settings.allow):
        yield wrong("providers", because, "pip install 'edgepack[cpu]'")
    for provider in facts.providers:
        if provider.available and (not settings.allow or provider.name in settings.allow):
            for kind in provider.devices or ("cpu",):
                yield _try_provider(provider, kind, settings)
        elif provider.name == settings.wanted:
            fact = f"{provider.name} is wanted and not here: {provider.because}"
            remedy = provider.brought_by or "see edgepack-agent providers"
            yield wrong("providers", fact, remedy)


def _try_provider(provider: ProviderFacts, kind: str, settings: ProviderConfig) -> Finding:
    outcome = run_trial(Trial(provider=provider.name, device=kind))
    title = f"{provider.name} ({kind}{', simulated' if provider.is_simulator else ''})"
    is_needed = provider.name == settings.wanted
    say = wrong if is_needed else warn
    remedy = f"check driver and device nodes; {provider.brought_by or 'edgepack-agent providers'}"
    placement = outcome.placement
    if outcome.problem or placement is None:
        return say("providers", f"{title} cannot run a small model: {outcome.problem}", remedy)
    if placement.verified and not placement.taken:
        fact = f"{title} took none of the {placement.total} nodes of a small model"
        return say("providers", fact, remedy)
    took = (
        f"{placement.taken} of {placement.total} nodes" if placement.verified else "nodes unknown"
    )
    return ok("providers", f"{title} ran a small model: {took}, {outcome.latency_ms:.2f} ms")


def run_trial(trial: Trial) -> Outcome:
    """Run the small model on a provider, in a child that may crash or hang."""
    request = msgspec.json.encode(trial)
    ending = run_child(CHILD, request, timeout_s=TIMEOUT_S, memory_bytes=MEMORY_BYTES)
    if ending.answer is None:
        return Outcome(problem=ending.because)
    try:
        return decode_json(ending.answer, Outcome)
    except msgspec.DecodeError as error:
        return Outcome(problem=f"the answer of the child cannot be read: {error}")
