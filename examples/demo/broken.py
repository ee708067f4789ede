"""Make a deliberately broken release, signed with the genuine key.

The scenario: after the build had measured everything, a packaging script "optimized" the model
files and shifted their outputs by a class. Every signature and digest fits, every file loads, every
output has the right shape. Only the answers are wrong.
"""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.bundle.archive import pack
from edgepack.bundle.chunks import entry
from edgepack.bundle.forms import open_bundle
from edgepack.bundle.keys import load_private_key
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    Variant,
    decode_manifest,
    encode_manifest,
)
from edgepack.bundle.provenance import BILL_FILE, PROVENANCE_FILE
from edgepack.bundle.signature import sign_folder


def make_broken_release(good: Path, broken: Path, key: Path, *, version: str, release: int) -> None:
    """Write `broken`, an archive like `good` but for its version and its shifted outputs."""
    folder = broken.with_suffix(".folder")
    with open_bundle(good) as opened:
        shutil.copytree(opened, folder)
    (folder / SIGNATURE_FILE).unlink()
    manifest = decode_manifest((folder / MANIFEST_FILE).read_bytes())
    for variant in manifest.variants:
        _shift_classes(folder / variant.folder / variant.model_file)
    for name in (PROVENANCE_FILE, BILL_FILE):  # They would tell that the files are others.
        (folder / name).unlink(missing_ok=True)
    left = tuple(file for file in manifest.facts.files if (folder / file.path).exists())
    facts = msgspec.structs.replace(manifest.facts, version=version, release=release, files=left)
    variants = tuple(_indexed_again(folder, variant) for variant in manifest.variants)
    (folder / MANIFEST_FILE).write_bytes(encode_manifest(Manifest(facts=facts, variants=variants)))
    sign_folder(folder, load_private_key(key))
    pack(folder, broken)
    shutil.rmtree(folder)


def _shift_classes(path: Path) -> None:
    """Make the model answer the digit after the right digit."""
    model = onnx.load(path)
    output = model.graph.output[0].name
    for node in model.graph.node:
        for index, name in enumerate(node.output):
            if name == output:
                node.output[index] = f"{output}_before"
        for index, name in enumerate(node.input):
            if name == output:
                node.input[index] = f"{output}_before"
    order = numpy_helper.from_array(np.roll(np.arange(10), 1), "shifted_order")
    model.graph.initializer.append(order)
    model.graph.node.append(
        helper.make_node(
            "Gather", [f"{output}_before", order.name], [output], "shift_classes", axis=-1
        )
    )
    onnx.save(model, path)


def _indexed_again(folder: Path, variant: Variant) -> Variant:
    files = tuple(entry(folder, file.path) for file in variant.facts.files)
    return msgspec.structs.replace(
        variant, facts=msgspec.structs.replace(variant.facts, files=files)
    )
