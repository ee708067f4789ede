"""Precompiled contexts: the provider judges a token before any file of the variant is fetched."""

import sys
from pathlib import Path

import msgspec
import pytest

from edgepack.agent.runtime import compatibility
from edgepack.agent.runtime.child import run_child
from edgepack.agent.runtime.compatibility import Answer, Precompiled, Question, find_unsupported
from edgepack.decoding import decode_json
from tests.simulators.bundles import make_bundle
from tests.simulators.manifests import CPU, QNN, make_variant
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases

JUDGING = """
import onnxruntime
from edgepack.agent.runtime import compatibility

found = onnxruntime.capi._pybind_state
words = found.OrtCompiledModelCompatibility

def answer(devices, token):
    assert devices
    if token == "raises":
        raise RuntimeError("no NPU")
    return getattr(words, token)

found.get_model_compatibility_for_ep_devices = answer
compatibility.main()
"""
TOKENS = ("EP_UNSUPPORTED", "EP_NOT_APPLICABLE", "EP_SUPPORTED_PREFER_RECOMPILATION", "raises", "")


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the token of a context say what ONNX Runtime answers."""
    monkeypatch.setattr(compatibility, "CHILD", (sys.executable, "-P", "-c", JUDGING))


@pytest.mark.usefixtures("judging")
def test_only_the_word_unsupported_rejects_a_variant() -> None:
    variants = [make_variant(f"v{n}", token=token) for n, token in enumerate(TOKENS)]
    found = find_unsupported(variants)
    assert set(found) == {"v0"}
    assert found["v0"] == (
        f"{CPU} does not support its precompiled context here "
        "(compatibility string 'EP_UNSUPPORTED')"
    )


@pytest.mark.parametrize("script", ["import os; os.abort()", "print('[1]')", "print('x' * 9)"])
def test_child_without_an_answer_rejects_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    monkeypatch.setattr(compatibility, "CHILD", (sys.executable, "-P", "-c", script))
    assert find_unsupported([make_variant(token="t")]) == {}
    assert "compatibility of precompiled variants is not known" in caplog.text


def test_variants_without_a_context_start_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "CHILD", ("/no/such/program",))
    assert find_unsupported([make_variant()]) == {}


def test_real_runtime_rejects_no_token_of_a_missing_device() -> None:
    contexts = tuple(
        Precompiled(variant=provider, provider=provider, device="npu", token="v2:6:2.51.0:73")
        for provider in (CPU, QNN, "VitisAIExecutionProvider")
    )
    request = msgspec.json.encode(Question(contexts=contexts))
    ending = run_child(compatibility.CHILD, request, timeout_s=compatibility.TIMEOUT_S)
    assert ending.answer is not None, ending.because
    opinions = decode_json(ending.answer, Answer).opinions
    assert opinions[CPU] == "EP_NOT_APPLICABLE"
    assert opinions["VitisAIExecutionProvider"] == "no such device is here"
    assert set(opinions.values()).isdisjoint({compatibility.UNSUPPORTED})


@pytest.mark.usefixtures("judging")
def test_unsupported_variant_is_not_downloaded_and_the_reason_is_reported(
    tmp_path: Path, world: World, releases: Releases
) -> None:
    world.unsupported = find_unsupported
    tokens = {"old": "EP_UNSUPPORTED", "new": "EP_NOT_APPLICABLE"}
    mixed = make_bundle(
        tmp_path / "mixed", releases.key, release=7, variants=("old", "new"), tokens=tokens
    )
    only_old = make_bundle(
        tmp_path / "old", releases.key, release=8, variants=("old",), tokens=tokens
    )
    for bundle in (mixed, only_old):
        world.link.hold(bundle)
    world.updater.orders.offer(mixed.order(2))
    assert world.settle() == "COMMITTED"
    assert world.pointer is not None
    assert world.pointer.choice.chosen == "new"
    assert "does not support" in world.pointer.choice.rejected["old"]
    slot = world.state_dir / "slots" / mixed.ref.digest / "model"
    assert [path.name for path in slot.iterdir()] == ["new"]

    world.link.needs.clear()
    world.updater.orders.offer(only_old.order(3))
    assert world.settle() == "REJECTED"
    assert "does not support its precompiled context here" in world.journal.because
    assert "'EP_UNSUPPORTED'" in world.journal.because
