"""A signed bundle of random bytes: incompressible, and long enough for a measurement."""

from pathlib import Path

import numpy as np

from edgepack.bundle.archive import pack
from edgepack.bundle.chunks import entry
from edgepack.bundle.golden import Golden, Tensor, write_golden
from edgepack.bundle.keys import PrivateKey
from edgepack.bundle.manifest import BundleFacts, Manifest, encode_manifest
from edgepack.bundle.signature import sign_folder
from tests.simulators.manifests import DIGEST, make_variant

MODEL = "model/cpu/model.onnx"
GOLDEN = "golden/golden.npz"


def make_archive(folder: Path, key: PrivateKey, size_bytes: int) -> Path:
    """Make an archive with a model of the given size.

    Args:
        folder: For the bundle, with the archive next to the folder; created.
        key: Signing key.
        size_bytes: Of the model.
    """
    for path in (MODEL, GOLDEN):
        (folder / path).parent.mkdir(parents=True)
    (folder / MODEL).write_bytes(np.random.default_rng(size_bytes).bytes(size_bytes))
    sample: dict[str, Tensor] = {"x": np.zeros((1, 2), np.float32)}
    write_golden(folder / GOLDEN, Golden(inputs=(sample,), outputs=({"y": sample["x"]},)))
    facts = BundleFacts(
        name="bench",
        version=f"{size_bytes}.0.0",
        release=1,
        source_sha256=DIGEST,
        files=(entry(folder, GOLDEN),),
    )
    manifest = Manifest(facts=facts, variants=(make_variant(files=(entry(folder, MODEL),)),))
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    sign_folder(folder, key)
    archive = folder.with_suffix(".edgepack")
    pack(folder, archive)
    return archive
