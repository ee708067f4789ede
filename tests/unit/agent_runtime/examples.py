"""Manifests, facts, tiny models and slots for the tests of the agent's run-time parts."""

import io
import shutil
from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.opening import open_session
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.chunks import digest_file, entry
from edgepack.bundle.encrypted_files import encrypt_stream
from edgepack.bundle.golden import Golden, write_golden
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    BundleFacts,
    Feature,
    Manifest,
    Variant,
    encode_manifest,
)
from edgepack.bundle.recipients import seal_content_key
from edgepack.bundle.signature import root_digest
from edgepack.bundle.tree import list_files
from edgepack.tasks.description import NOTHING_KNOWN, ModelDescription
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice, DeviceFacts, ProviderFacts
from tests.graphs import graph_model
from tests.simulators.manifests import CPU, DIGEST, QNN, make_variant

CONTENT_KEY = bytes(range(32))


def make_manifest(*variants: Variant) -> Manifest:
    facts = BundleFacts(name="tiny", version="1.0.0", release=1, source_sha256=DIGEST, files=())
    return Manifest(facts=facts, variants=variants)


def make_facts(
    *,
    arch: str = "x86_64",
    cpu_features: tuple[str, ...] = ("avx2",),
    soc: str = "",
    runtime: str = "1.31.1",
    drivers: dict[str, str] | None = None,
    providers: tuple[ProviderFacts, ...] | None = None,
) -> DeviceFacts:
    if providers is None:
        providers = (
            ProviderFacts(name=CPU, available=True, because="built in", devices=("cpu",)),
            ProviderFacts(
                name=QNN, available=True, because="plug-in", devices=("npu",), is_simulator=True
            ),
            ProviderFacts(name="VitisAIExecutionProvider", available=False, because="not here"),
        )
    return DeviceFacts(
        arch=arch,
        cpu_model="Example",
        cpu_count=2,
        cpu_features=cpu_features,
        memory_bytes=1,
        os="Example",
        soc=soc,
        python="3.11",
        agent_version="0",
        runtime=runtime,
        providers=providers,
        drivers=drivers or {},
        hardware_class=f"{arch}/example",
    )


def conv_model(scale: float = 1.0, side: int = 8, batch: int | str = 1) -> onnx.ModelProto:
    """Return Conv, Relu, pool, Flatten, times `scale`: x float32 (batch, 3, side, side) -> y
    (batch, 4).
    """
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((4, 3, 3, 3)) * 0.3 * scale).astype(np.float32)
    return graph_model(
        f"(float[{batch},3,{side},{side}] x) => (float[{batch},4] y) {{ "
        "[conv] c = Conv<pads=[1,1,1,1]>(x, w, b) [relu] r = Relu(c) "
        "[pool] p = GlobalAveragePool(r) [flat] y = Flatten(p) }",
        {"w": weight, "b": np.zeros(4, np.float32)},
    )


def make_inputs(count: int = 3, side: int = 8) -> tuple[dict[str, np.ndarray], ...]:
    """Return samples for `conv_model`, the same on every call."""
    rng = np.random.default_rng(5)
    shape = (1, 3, side, side)
    return tuple({"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count))


def save_variant(
    bundle_folder: Path,
    variant: Variant,
    *,
    scale: float = 1.0,
    side: int = 8,
    batch: int | str = 1,
) -> None:
    """Write `conv_model` as the variant's model file."""
    folder = bundle_folder / variant.folder
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(conv_model(scale, side, batch), folder / variant.model_file)


def install_model(
    state_dir: Path,
    release: int,
    *,
    scale: float,
    name: str = "tiny",
    reference: tuple[Feature, ...] = (),
    side: int = 8,
    batch: int | str = 1,
    recipient: PublicKey | None = None,
    description: ModelDescription = NOTHING_KNOWN,
    samples: int = 1,
) -> ActivePointer:
    """Write a slot with a model that multiplies by `scale`, and return its pointer.

    With a recipient the slot is encrypted, to that key. It has a number of golden samples.
    """
    folder = slot_folder(state_dir, f"{name}-{release}")
    variant = make_variant()
    save_variant(folder, variant, scale=scale, side=side, batch=batch)
    session = open_session(folder, variant)
    inputs = make_inputs(samples, side)
    (folder / GOLDEN_FILE).parent.mkdir(exist_ok=True)
    golden = Golden(inputs=inputs, outputs=tuple(session.run(feeds) for feeds in inputs))
    write_golden(folder / GOLDEN_FILE, golden)
    model = f"{variant.folder}/{variant.model_file}"
    if recipient is not None:
        for path in (model, GOLDEN_FILE):
            plain = io.BytesIO((folder / path).read_bytes())
            with (folder / path).open("wb") as sealed:
                encrypt_stream(plain, sealed, CONTENT_KEY, path)
    files = (entry(folder, model),)
    variant = replace(variant, facts=replace(variant.facts, files=files))
    manifest = make_manifest(variant)
    facts = replace(
        manifest.facts,
        files=(entry(folder, GOLDEN_FILE),),
        reference=reference,
        description=description,
    )
    if recipient is not None:
        encryption = seal_content_key(CONTENT_KEY, [recipient])
        facts = replace(facts, encryption=encryption)
    manifest = replace(manifest, facts=facts)
    (folder / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    digest = root_digest({path: digest_file(folder / path) for path in list_files(folder)})
    target = slot_folder(state_dir, digest)
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)
    return ActivePointer(
        bundle=BundleRef(name=name, version=f"1.{release}.0", release=release, digest=digest),
        choice=Choice(wanted="", chosen="cpu", provider=CPU, because="test", is_fallback=False),
        since=float(release),
        committed=False,
    )
