"""The proof of texts on a device: tokens over the cache, memory of a full context, pace."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepack.agent.config import ProbeConfig, ProviderConfig
from edgepack.agent.generation import decoding
from edgepack.agent.generation.probing import prove_texts
from edgepack.agent.runtime.matching import match_variants
from edgepack.agent.runtime.probe import ProbeRequest, probe_variant
from edgepack.agent.runtime.probing import probe_here
from edgepack.bundle.manifest import MANIFEST_FILE, Manifest, decode_manifest
from edgepack.bundle.trust import TrustPolicy
from edgepack.wire.reports import ProbeResult
from tests.simulators.text_bundles import CONTEXT, HEAD, KV_HEADS, LAYERS, make_text_bundle
from tests.unit.agent_runtime.examples import make_facts

CACHE_BYTES = 4 * 2 * LAYERS * KV_HEADS * HEAD * CONTEXT


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_bundle(tmp_path_factory.mktemp("bundles") / "one")


def read(bundle: Path) -> Manifest:
    return decode_manifest((bundle / MANIFEST_FILE).read_bytes())


def probe(bundle: Path) -> ProbeResult:
    request = ProbeRequest(
        bundle_folder=str(bundle),
        variant=read(bundle).variants[0],
        timeout_s=60.0,
        golden_s=1.0,
        runs=1,
        threads=1,
    )
    return probe_here(request, prove_texts=prove_texts)


def test_probe_in_a_child_proves_the_cache_and_measures_the_pace(bundle: Path) -> None:
    variant = read(bundle).variants[0]
    result = probe_variant(bundle, variant, config=ProbeConfig(runs=1), threads=1)
    assert result.right, result.because
    assert result.texts is not None
    assert result.texts.right
    assert "tokens over the cache are" in result.texts.because
    assert result.texts.cache_bytes == CACHE_BYTES
    (pace,) = result.texts.paces
    assert pace.prompt_tokens == CONTEXT // 2
    assert pace.first_token_ms > 0
    assert pace.tokens_per_s > 0


def test_graph_that_forgets_its_cache_is_wrong_with_the_divergence(tmp_path: Path) -> None:
    result = probe(make_text_bundle(tmp_path / "bundle", forgets=True))
    assert not result.right
    assert "nats from the text at once, at most 0.005 are right" in result.because


def test_full_context_without_memory_is_wrong_with_numbers(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "available_bytes", lambda: 5000)
    result = probe(bundle)
    assert not result.right
    assert f"the cache of a text of {CONTEXT} tokens needs" in result.because
    assert "5000 are free" in result.because


def test_device_without_memory_for_a_full_context_does_not_match(bundle: Path) -> None:
    manifest = read(bundle)
    weights = sum(entry.size_bytes for entry in manifest.variants[0].facts.files)
    for memory_bytes, fits in ((weights + CACHE_BYTES, True), (weights + CACHE_BYTES - 1, False)):
        facts = replace(make_facts(), memory_bytes=memory_bytes)
        found = match_variants(manifest, facts, ProviderConfig(), TrustPolicy(keys=()))
        assert bool(found.candidates) is fits
    assert f"the cache of {CONTEXT} tokens ({CACHE_BYTES} bytes)" in found.rejected["cpu"]
    assert manifest.memory_bytes("cpu") == weights + CACHE_BYTES, "limits.memory_bytes counts both"
