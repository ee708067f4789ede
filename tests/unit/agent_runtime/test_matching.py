"""Matching: every reason for which a variant is not a candidate, in a sentence with its names."""

from dataclasses import dataclass

import pytest

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.matching import match_variants
from edgepack.bundle.manifest import Requirements, Variant
from edgepack.bundle.trust import TrustPolicy
from edgepack.wire.reports import DeviceFacts
from tests.simulators.manifests import CPU, QNN, make_variant
from tests.unit.agent_runtime.examples import make_facts, make_manifest

STRICT = TrustPolicy(keys=())
ANY = ProviderConfig()


def judge(
    variant: Variant,
    facts: DeviceFacts | None = None,
    providers: ProviderConfig = ANY,
    trust: TrustPolicy = STRICT,
) -> str:
    """Return the reason of the rejection, or "" for a candidate."""
    matches = match_variants(make_manifest(variant), facts or make_facts(), providers, trust)
    assert bool(matches.candidates) is not bool(matches.rejected)
    return matches.rejected.get(variant.name, "")


def test_candidates_keep_the_order_of_the_manifest() -> None:
    manifest = make_manifest(
        make_variant("b"), make_variant("npu", provider=QNN, device="npu"), make_variant("a")
    )
    matches = match_variants(manifest, make_facts(), ANY, STRICT)
    assert [variant.name for variant in matches.candidates] == ["b", "a"]
    assert list(matches.rejected) == ["npu"]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    requires: Requirements
    reason: str


REFUSALS = [
    Refusal(
        requires=Requirements(arch=("aarch64", "armv7l")),
        reason="it is for aarch64 or armv7l, this device is x86_64",
    ),
    Refusal(
        requires=Requirements(cpu_features=("avx2", "avx512_vnni", "amx_int8")),
        reason="the processor lacks avx512_vnni, amx_int8",
    ),
    Refusal(
        requires=Requirements(soc=("SM8550", "557")),
        reason="it is for SoC SM8550 or 557, this device is QCS6490, 497",
    ),
    Refusal(
        requires=Requirements(runtime=">=1.32,<2"),
        reason="it needs onnxruntime >=1.32,<2, this device has 1.31.1",
    ),
    Refusal(
        requires=Requirements(drivers={"amdxdna": ">=2.20"}),
        reason="it needs amdxdna >=2.20, this device has 2.19.5",
    ),
    Refusal(
        requires=Requirements(drivers={"fastrpc": ">=1"}),
        reason="it needs fastrpc >=1, this device has none",
    ),
    Refusal(
        requires=Requirements(drivers={"amdxdna": "newish"}),
        reason="its requirement on amdxdna cannot be judged: 'newish' is not a version range",
    ),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.reason)
def test_a_requirement_that_does_not_hold_is_told_with_both_sides(refusal: Refusal) -> None:
    facts = make_facts(soc="QCS6490, 497", drivers={"amdxdna": "2.19.5"})
    assert judge(make_variant(requires=refusal.requires), facts).startswith(refusal.reason)


def test_requirements_that_all_hold_make_a_candidate() -> None:
    requires = Requirements(
        arch=("x86_64",),
        cpu_features=("avx2",),
        soc=("qcs6490",),
        runtime=">=1.23,<2",
        drivers={"amdxdna": ">=2"},
    )
    facts = make_facts(soc="QCS6490, 497", drivers={"amdxdna": "2.19.5"})
    assert judge(make_variant(requires=requires), facts) == ""


def test_a_simulator_needs_the_settings_leave() -> None:
    variant = make_variant(provider=QNN, device="npu")
    assert "only simulates its hardware here" in judge(variant)
    assert judge(variant, providers=ProviderConfig(allow_simulator=True)) == ""


def test_a_degraded_variant_needs_the_settings_leave() -> None:
    variant = make_variant(degraded=True)
    assert "a gate was overridden when it was built" in judge(variant)
    assert judge(variant, trust=TrustPolicy(keys=(), allow_degraded_unsafe=True)) == ""


def test_only_allowed_providers_are_candidates() -> None:
    settings = ProviderConfig(allow=(QNN,))
    assert judge(make_variant(), providers=settings) == f"{CPU} is not allowed here, only {QNN}"


def test_a_provider_that_is_not_there_gives_its_own_reason() -> None:
    variant = make_variant(provider="VitisAIExecutionProvider", device="npu")
    assert judge(variant) == "VitisAIExecutionProvider is not available: not here"
    assert judge(make_variant(provider="NoSuch")) == "NoSuch is unknown here"


def test_a_device_kind_that_the_provider_does_not_drive_is_refused() -> None:
    variant = make_variant(device="gpu")
    assert judge(variant) == f"{CPU} offers cpu here, the variant is for gpu"
