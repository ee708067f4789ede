"""The basis of a choice: all facts and settings that the probes of a release depended on.

A pointer records the basis of its choice. When the agent starts on another basis (another ONNX
Runtime, a plug-in that is gone, a new driver), the choice no longer holds.
"""

from collections.abc import Iterator, Mapping

import msgspec

from edgepack.agent.config import ProviderConfig
from edgepack.wire.reports import DeviceFacts, ProviderFacts

Basis = Mapping[str, str]
"""Versions and settings by name; empty where the basis is not known."""

_SHOWN = 4
_ABSENT = "none"


def basis_of(facts: DeviceFacts, config: ProviderConfig) -> dict[str, str]:
    """Return the basis of a choice that is made on this device now.

    Args:
        facts: The device.
        config: The device's provider settings.
    """
    named = {
        "edgepack": facts.agent_version,
        "Python": facts.python,
        "onnxruntime": facts.runtime,
        "hardware": f"{facts.hardware_class} {facts.soc}".strip(),
        "CPU features": " ".join(facts.cpu_features),
        "operating system": facts.os,
        "firmware": facts.firmware,
        "settings of providers": msgspec.json.encode(config, order="sorted").decode(),
    }
    named |= {f"driver {name}": version for name, version in facts.drivers.items()}
    named |= {one.name: _describe(one) for one in facts.providers if one.available}
    return {name: value for name, value in named.items() if value}


def describe_change(before: Basis, now: Basis) -> str:
    """Return the differences between two bases, as a list for a sentence; "" if equal."""
    if not before:
        return "what the choice was based on is not known"
    changes = list(_changes(before, now))
    more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def _describe(provider: ProviderFacts) -> str:
    kind = "simulated" if provider.is_simulator else "real"
    return " ".join(filter(None, (provider.version, kind, *provider.devices)))


def _changes(before: Basis, now: Basis) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys(), key=str.lower):
        was, has = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if was == has:
            continue
        if len(was) + len(has) > 100:
            yield f"other {name}"
        else:
            yield f"{name}: {has} instead of {was}"
