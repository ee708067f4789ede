"""An adapter and its base on a device: which variant fits, what is awaited, what is rejected."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.adapters import read_adapter
from edgepack.agent.runtime.bases import base_basis, find_base, find_base_of
from edgepack.agent.runtime.matching import match_here
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.update.context import UpdateContext, Wait
from edgepack.agent.update.fetching import _wait_for_base
from edgepack.bundle.adapters import AdaptedPart, AdaptedProduct, AdapterFacts, AdapterPlaces
from edgepack.bundle.manifest import MANIFEST_FILE, BundleFacts, Manifest
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import BundleError, DeviceError
from edgepack.packager.bundling.adapter_file import write_adapter
from tests.simulators.manifests import DIGEST, make_variant
from tests.simulators.pointers import write_pointer
from tests.simulators.text_bundles import install_texts, make_text_bundle
from tests.unit.agent_runtime.examples import make_facts

PLACES = AdapterPlaces(
    layers=2,
    products=(
        AdaptedProduct(
            path="/model/layers.%d/attn/o_proj",
            inputs=6,
            parts=(AdaptedPart(module="self_attn.o_proj", size=4),),
        ),
    ),
)
FIRST, SECOND = PLACES.products[0].tensors(0)


def adapter_of(digest: str) -> Manifest:
    facts = BundleFacts(
        name="support",
        version="1.0.0",
        release=1,
        source_sha256=DIGEST,
        files=(),
        adapter=AdapterFacts(
            base="chat", base_version="1.1.0", base_digest=digest, rank=2, modules=("o_proj",)
        ),
    )
    return Manifest(facts=facts, variants=(make_variant("cpu"), make_variant("other")))


@pytest.fixture
def base(tmp_path: Path) -> ActivePointer:
    pointer = install_texts(tmp_path / "state", make_text_bundle(tmp_path / "base"))
    write_pointer(tmp_path / "state", pointer)
    return pointer


def test_adapter_takes_the_variant_that_its_base_runs(tmp_path: Path, base: ActivePointer) -> None:
    state, trust = tmp_path / "state", TrustPolicy(keys=())
    found = find_base(state, adapter_of(base.digest))
    assert found is not None
    assert found.variant.name == base.choice.chosen
    facts = make_facts()
    matches = match_here(adapter_of(base.digest), facts, ProviderConfig(), trust, state)
    assert [one.name for one in matches.candidates] == [base.choice.chosen]
    assert matches.rejected == {"other": f"its base runs {base.choice.chosen}"}
    other = match_here(adapter_of(DIGEST), facts, ProviderConfig(), trust, state)
    assert not other.candidates
    assert base.digest[:12] in other.rejected["cpu"]
    assert DIGEST[:12] in other.rejected["cpu"]
    assert base_basis(state, "chat")["base"].startswith(f"chat {base.bundle.version}")
    assert base_basis(state, "") == {}
    assert base_basis(state, "gone") == {"base": "nothing serves"}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT])
def test_only_a_failing_disk_is_no_verdict_on_the_base(
    tmp_path: Path, base: ActivePointer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.open

    def fail(path: Path, flags: int) -> int:
        if Path(path).name == MANIFEST_FILE:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags)

    state = tmp_path / "state"
    assert find_base_of(slot_folder(state, base.digest)) is None
    monkeypatch.setattr("edgepack.bundle.chunks.os.open", fail)
    expected = OSError if number == errno.EIO else BundleError
    with pytest.raises(expected):
        find_base(state, adapter_of(base.digest))
    with pytest.raises(expected):
        find_base_of(slot_folder(state, base.digest))


def test_adapter_waits_only_for_a_base_on_its_way(tmp_path: Path, base: ActivePointer) -> None:
    def judge(digest: str, coming: str) -> Wait | None:
        others = SimpleNamespace(is_coming=lambda found: found == coming)
        context: Any = SimpleNamespace(
            deps=SimpleNamespace(state_dir=tmp_path / "state"),
            model=SimpleNamespace(others=others),
        )
        return _wait_for_base(cast(UpdateContext, context), adapter_of(digest))

    assert judge(base.digest, "") is None
    wait = judge(DIGEST, DIGEST)
    assert wait is not None
    assert f"chat 1.1.0 ({DIGEST[:12]})" in wait.because
    with pytest.raises(DeviceError, match=f"is for chat 1.1.0 .{DIGEST[:12]}.*serves"):
        judge(DIGEST, base.digest)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({FIRST: zeros(6, 2), "x.lora_B.weight": zeros(2, 4)}, "no place for 'x.lora_B.weight'"),
        ({FIRST: zeros(5, 2), SECOND: zeros(2, 4)}, r"\[5, 2\], and the base takes .*\[6, 'rank'"),
        ({FIRST: zeros(6, 2), SECOND: zeros(3, 4)}, "has rank 3, and its pair 2"),
        ({FIRST: zeros(6, 0), SECOND: zeros(0, 4)}, "has rank 0"),
        ({FIRST: zeros(6, 2)}, "1 tensors for 1 products"),
        ({}, "0 tensors for 0 products"),
    ],
)
def test_file_that_does_not_fit_the_places_is_rejected_with_sizes(
    tmp_path: Path, tensors: dict[str, np.ndarray], problem: str
) -> None:
    write_adapter(tmp_path / "adapter", tensors)
    with pytest.raises(BundleError, match=problem):
        read_adapter(tmp_path / "adapter", PLACES)


def test_file_is_read_as_written_and_damage_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "adapter"
    drawn = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    write_adapter(file, {SECOND: zeros(2, 4), FIRST: drawn})
    found = read_adapter(file, PLACES)
    assert found.keys() == {FIRST, SECOND}
    assert np.array_equal(found[FIRST], drawn)
    file.write_bytes(b"no adapter" * 20)
    with pytest.raises(BundleError, match="not an adapter of ONNX Runtime"):
        read_adapter(file, PLACES)
