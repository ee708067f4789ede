"""Releases of an equal model, laid out in the slots of a state folder as an agent does."""

import shutil
from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.opening import open_session
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.chunks import digest_file, entry
from edgepack.bundle.golden import Golden, Tensor, write_golden
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    BundleFacts,
    Manifest,
    encode_manifest,
)
from edgepack.bundle.signature import root_digest
from edgepack.bundle.tree import list_files
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice
from tests.simulators.manifests import CPU, DIGEST, make_variant

NAME = "swapped"


def lay_out(
    state_dir: Path, model: Path, shape: tuple[int, ...], releases: int, name: str = NAME
) -> list[ActivePointer]:
    """Write releases with equal weights into slots.

    Args:
        state_dir: The state folder; exists.
        model: A model with a single input, ONNX.
        shape: Of that input.
        releases: How many.
        name: Of the model.

    Returns:
        A pointer to each.
    """
    source = onnx.load(model)
    tensor: str = source.graph.input[0].name
    del source.graph.value_info[:]
    sizes = source.graph.input[0].type.tensor_type.shape.dim
    for size, value in zip(sizes, shape, strict=True):
        size.dim_value = value
    sample: dict[str, Tensor] = {
        tensor: np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    }
    pointers = []
    for release in range(1, releases + 1):
        source.doc_string = f"release {release}"
        folder = slot_folder(state_dir, f"{name}-{release}")
        variant = make_variant()
        path = f"{variant.folder}/{variant.model_file}"
        (folder / path).parent.mkdir(parents=True)
        onnx.save(source, folder / path)
        outputs = open_session(folder, variant, threads=1).run(sample)
        (folder / GOLDEN_FILE).parent.mkdir()
        write_golden(folder / GOLDEN_FILE, Golden(inputs=(sample,), outputs=(outputs,)))
        facts = BundleFacts(
            name=name,
            version=f"1.{release}.0",
            release=release,
            source_sha256=DIGEST,
            files=(entry(folder, GOLDEN_FILE),),
        )
        variant = replace(variant, facts=replace(variant.facts, files=(entry(folder, path),)))
        manifest = Manifest(facts=facts, variants=(variant,))
        (folder / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
        digest = root_digest({path: digest_file(folder / path) for path in list_files(folder)})
        shutil.move(folder, slot_folder(state_dir, digest))
        bundle = BundleRef(name=name, version=facts.version, release=release, digest=digest)
        choice = Choice(
            wanted="", chosen=variant.name, provider=CPU, because="benchmark", is_fallback=False
        )
        pointers.append(
            ActivePointer(bundle=bundle, choice=choice, since=float(release), committed=True)
        )
    return pointers
