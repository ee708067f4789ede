"""ONNX Runtime itself opens a bundle as a model package, without edgepack."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edgepack.bundle.chunks import entry
from edgepack.bundle.keys import PrivateKey
from edgepack.bundle.manifest import (
    Manifest,
    Variant,
    VariantFacts,
    decode_manifest,
    encode_manifest,
)
from edgepack.bundle.signature import sign_folder
from tests.graphs import graph_model

onnx = pytest.importorskip("onnx", reason="needs onnx to make a model")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

PROGRAM = Path(__file__).with_name("open_with_onnxruntime.py")

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31),
    reason="model packages need onnxruntime 1.31",
)


def open_with_onnxruntime(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, folder], capture_output=True, text=True, check=False
    )


@pytest.fixture
def package(bundle: Path, private_key: PrivateKey) -> Path:
    """Return the bundle, with a loadable model in its variant `cpu`."""
    model = graph_model("(float[2,3] x) => (float[2,3] y) { [relu] y = Relu(x) }")
    path = bundle / "model/cpu/model.onnx"
    path.write_bytes(model.SerializeToString())
    before = decode_manifest((bundle / "manifest.json").read_bytes())
    variants = tuple(with_files(bundle, variant) for variant in before.variants)
    manifest = encode_manifest(Manifest(facts=before.facts, variants=variants))
    (bundle / "manifest.json").write_bytes(manifest)
    sign_folder(bundle, private_key)
    return bundle


def with_files(folder: Path, variant: Variant) -> Variant:
    files = tuple(entry(folder, old.path) for old in variant.facts.files)
    facts: VariantFacts = msgspec.structs.replace(variant.facts, files=files)
    changed: Variant = msgspec.structs.replace(variant, facts=facts)
    return changed


def test_onnxruntime_lists_the_variants_and_runs_the_one_for_its_provider(package: Path) -> None:
    done = open_with_onnxruntime(package)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "providers": {"qnn-htp": "QNNExecutionProvider", "cpu": "CPUExecutionProvider"},
        "chosen": "cpu",
        "input_count": 1,
    }


def test_onnxruntime_would_refuse_a_key_that_its_format_does_not_have(package: Path) -> None:
    document = json.loads((package / "manifest.json").read_bytes())
    (package / "manifest.json").write_text(json.dumps(document | {"edgepack": {}}))
    done = open_with_onnxruntime(package)
    assert done.returncode == 1
    assert "edgepack" in done.stderr
