"""Bundles of every released format version are read."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.agent.runtime.plain_files import plain_files
from edgepack.bundle.forms import open_bundle
from edgepack.bundle.golden import read_golden
from edgepack.bundle.keys import load_public_key
from edgepack.bundle.manifest import FORMAT_MINOR, FORMAT_VERSION
from edgepack.bundle.verify import VerifiedBundle, verify_folder

BUNDLES = Path(__file__).parent / "bundles"
FROZEN = sorted(BUNDLES.glob("*.edgepack"))


def test_the_present_format_has_a_frozen_bundle_of_each_kind() -> None:
    present = f"{FORMAT_VERSION}.{FORMAT_MINOR}"
    assert {f"{present}-plain", f"{present}-encrypted"} <= {path.stem for path in FROZEN}


@pytest.mark.parametrize("archive", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_bundle_verifies(archive: Path) -> None:
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
    assert cpu.facts.tolerances["y"].cosine_min == pytest.approx(0.99)
    assert [(one.part.task, one.keep) for one in cpu.facts.agreements] == [("values", 0.9)]
    assert [each.tensor for each in facts.reference] == ["x"]
    assert facts.generation is not None
    assert facts.generation.cache_bytes == 256 * 1024
    with plain_files(verified.folder, cpu, key_file, manifest) as folder:
        golden = read_golden(folder / "golden/golden.npz")
        assert onnx.load(folder / "model/cpu/model.onnx").graph.node[0].op_type == "Relu"
    assert np.array_equal(golden.outputs[0]["y"], np.maximum(golden.inputs[0]["x"], 0))
