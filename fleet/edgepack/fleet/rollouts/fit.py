"""Fit of a bundle's variants to a device, from the device's last report.

The device's own matching decides. Settings known only to the device (disabled providers, degraded
variants) are ignored here.
"""

from typing import NamedTuple

from msgspec.structs import replace

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.matching import match_variants
from edgepack.bundle.manifest import Manifest, Variant
from edgepack.bundle.trust import TrustPolicy
from edgepack.fleet.documents.devices import SIMULATED
from edgepack.fleet.documents.releases import full_title
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import DeviceFacts

_ANY_PROVIDER = ProviderConfig(allow_simulator=True)
_ANY_VARIANT = TrustPolicy(keys=(), allow_degraded_unsafe=True)
HARDWARE = "no variant fits their hardware and providers"
RUNTIME = "the release is for other versions of ONNX Runtime"
BASE = "the adapter is for another release of its base"


class Misfit(NamedTuple):
    """Reason why a device will reject a bundle.

    Attributes:
        because: `HARDWARE`, `RUNTIME` or `BASE`.
        detail: The problem of each variant there.
    """

    because: str
    detail: str


def find_misfit(manifest: Manifest, facts: DeviceFacts) -> Misfit | None:
    """Return why no variant of a bundle fits a device; None if a variant fits, or nothing can run
    there.

    Args:
        manifest: The bundle's manifest.
        facts: The device's reported facts.
    """
    if facts.agent_version == SIMULATED:
        return None
    found = match_variants(manifest, facts, _ANY_PROVIDER, _ANY_VARIANT)
    if found.candidates:
        return None
    lenient = replace(manifest, variants=tuple(map(_for_any_runtime, manifest.variants)))
    otherwise = match_variants(lenient, facts, _ANY_PROVIDER, _ANY_VARIANT).candidates
    because, names = (RUNTIME, [one.name for one in otherwise]) if otherwise else (HARDWARE, None)
    reasons = [f"{name}: {found.rejected[name]}" for name in names or found.rejected]
    return Misfit(because, "; ".join(reasons))


def find_other_base(manifest: Manifest, base: BundleRef | None) -> Misfit | None:
    """Return why an adapter does not fit the base of a device; None if the base fits, or for a
    model that runs by itself.

    Args:
        manifest: The bundle's manifest.
        base: The serving release of the base there; None if nothing serves.
    """
    adapter = manifest.facts.adapter
    if adapter is None or (base is not None and base.digest == adapter.base_digest):
        return None
    runs = f"{full_title(base)} serves" if base is not None else f"no {adapter.base} serves"
    return Misfit(BASE, f"it is for {adapter.words}, and {runs}")


def _for_any_runtime(variant: Variant) -> Variant:
    requires = replace(variant.facts.requires, runtime="")
    return replace(variant, facts=replace(variant.facts, requires=requires))
