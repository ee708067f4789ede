"""Bundles of every format version that ever was are read for ever."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.agent.runtime.plain_files import plain_files
from edgepack.bundle.forms import open_bundle
from edgepack.bundle.golden import read_golden
from edgepack.bundle.keys import load_public_key
from edgepack.bundle.manifest import ENCRYPTED_FORMAT, FORMAT_MINOR, FORMAT_VERSION
from edgepack.bundle.verify import VerifiedBundle, verify_folder

BUNDLES = Path(__file__).parent / "bundles"
FROZEN = sorted(BUNDLES.glob("*.edgepack"))

SHA256 = {
    "format-1": "a558ba1a6cce2342e531d611cb0d248b5fef0384830cd003e542c7f172c5504b",
    "format-1.1": "9628f600180a4547eb94d166028d4f1a79f1804d78685d3b08512763b505bc60",
    "format-1.2": "a0de13209208768f1893a0dda3684e5979b367f7cb7c7b4917dcd8f19ec18609",
    "format-2.1": "8e2edc7a1285a1ad7be15ef4a7bd7c80deefa4f6bc4386f6b6f6b8b78579c5f0",
    "format-2.2": "7b9d9b3e7eec895c891389c2fc20299f03a1b785b2b3bd43cf06284612559d4e",
}
"""A frozen bundle is never written again; `freeze_bundle.py` makes the next version's."""


def test_there_is_a_frozen_bundle_of_every_format_version() -> None:
    assert sorted(path.stem for path in FROZEN) == sorted(SHA256)
    assert f"format-{FORMAT_VERSION}.{FORMAT_MINOR}" in SHA256
    assert f"format-{ENCRYPTED_FORMAT}.{FORMAT_MINOR}" in SHA256


@pytest.mark.parametrize("archive", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_bundle_is_unchanged_and_verifies(archive: Path) -> None:
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256[archive.stem]
    key = load_public_key(archive.with_suffix(".pub"))
    with open_bundle(archive) as folder:
        verified = verify_folder(folder, [key])
        own = archive.with_suffix(".key")
        check_content(verified, str(own) if own.exists() else "")


def check_content(verified: VerifiedBundle, key_file: str) -> None:
    manifest = verified.manifest
    facts = manifest.facts
    assert (facts.name, facts.version, facts.release) == ("tiny", "1.0.0", 1)
    assert [variant.name for variant in manifest.variants] == ["qnn-htp", "cpu"]
    npu, cpu = manifest.variants
    assert (npu.device, npu.compatibility_string, cpu.device) == ("npu", "v73", "cpu")
    assert npu.provider_options == {"htp_arch": "73"}
    assert npu.facts.requires.drivers == {"qnn": ">=2.28"}
    assert cpu.facts.accuracy.details == {"sqnr_db": 31.5}
    assert cpu.facts.tolerances["y"].top1_agreement_min == pytest.approx(0.9)
    if facts.minor >= 2:
        assert isinstance(facts.reference, tuple)
        assert [each.tensor for each in facts.reference] == ["x"]
    with plain_files(verified.folder, cpu, key_file, manifest) as folder:
        golden = read_golden(folder / "golden/golden.npz")
        assert onnx.load(folder / "model/cpu/model.onnx").graph.node[0].op_type == "Relu"
    assert np.array_equal(golden.outputs[0]["y"], np.maximum(golden.inputs[0]["x"], 0))
