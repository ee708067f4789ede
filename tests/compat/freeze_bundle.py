"""Frozen bundles of the current version, plain and encrypted; see `freeze.py`.

The signing key is thrown away; the key of the encrypted bundle is next to the bundle.
"""

import io
import tempfile
from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace

from edgepack.bundle.archive import pack
from edgepack.bundle.chunks import entry
from edgepack.bundle.encrypted_files import KEY_BYTES, encrypt_stream
from edgepack.bundle.generation import GENAI_CONFIG, TOKENIZER, Generation
from edgepack.bundle.golden import Golden, Tensor, write_golden
from edgepack.bundle.keys import PublicKey, generate_key, load_private_key, write_key_pair
from edgepack.bundle.manifest import (
    FORMAT_MINOR,
    FORMAT_VERSION,
    GOLDEN_FILE,
    Accuracy,
    BundleFacts,
    Feature,
    FileEntry,
    GoldenTolerance,
    Manifest,
    Placement,
    PlainRuntime,
    Requirements,
    Toolchain,
    Variant,
    VariantFacts,
    decode_manifest,
    encode_manifest,
)
from edgepack.bundle.metadata import GoldenAgreement
from edgepack.bundle.recipients import seal_content_key
from edgepack.bundle.signature import sign_folder
from edgepack.tasks.description import TaskOutputs

BUNDLES = Path(__file__).parent / "bundles"


def freeze_bundles() -> None:
    """Write both bundles."""
    BUNDLES.mkdir(exist_ok=True)
    for kind in ("plain", "encrypted"):
        archive = BUNDLES / f"{FORMAT_VERSION}.{FORMAT_MINOR}-{kind}.edgepack"
        _freeze(archive, encrypted=kind == "encrypted")


def _freeze(archive: Path, *, encrypted: bool) -> None:
    public = archive.with_suffix(".pub")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tiny-1.0.0"
        write_bundle(folder)
        if encrypted:
            pair = generate_key()
            archive.with_suffix(".key").write_bytes(pair.private_pem)
            encrypt(folder, load_private_key(archive.with_suffix(".key")).public_key())
        private_path, public_path = write_key_pair(generate_key(), Path(temporary) / "release")
        sign_folder(folder, load_private_key(private_path))
        pack(folder, archive)
        public.write_bytes(public_path.read_bytes())


def write_bundle(folder: Path) -> None:
    """Write all files except the signature: a Relu for the CPU, and a QNN variant that is only
    listed.
    """
    (folder / "hooks").mkdir(parents=True)
    (folder / "golden").mkdir()
    x: Tensor = np.array([[-1, 0, 1], [2, -3, 4]], np.float32)
    y: Tensor = np.maximum(x, 0)
    write_golden(folder / GOLDEN_FILE, Golden(inputs=({"x": x},), outputs=({"y": y},)))
    (folder / "hooks/before-activate").write_text("#!/bin/sh\nexit 0\n")
    for name in (GENAI_CONFIG, TOKENIZER):
        (folder / name).write_text("{}")
    variants = (
        make_variant(folder, "qnn-htp", "QNNExecutionProvider", "npu", b"a context binary"),
        make_variant(folder, "cpu", "CPUExecutionProvider", "cpu", make_model()),
    )
    facts = BundleFacts(
        name="tiny",
        version="1.0.0",
        release=1,
        created_at="2026-11-21T00:00:00Z",
        source_sha256="5e" * 32,
        tools={"edgepack": "0.1.0", "onnx": "1.23.0"},
        files=tuple(
            entry(folder, name)
            for name in (GOLDEN_FILE, "hooks/before-activate", GENAI_CONFIG, TOKENIZER)
        ),
        reference=(
            Feature(tensor="x", name="level", words="level", mean=0.5, spread=1.5, samples=100),
        ),
        generation=Generation(context=256, vocabulary=512, cache_bytes_per_token=1024, prompts=3),
    )
    (folder / "manifest.json").write_bytes(
        encode_manifest(Manifest(facts=facts, variants=variants))
    )


def encrypt(folder: Path, recipient: PublicKey) -> None:
    """Encrypt the variants and the golden samples of an unsigned bundle."""
    content_key = bytes(range(KEY_BYTES))

    def encrypted(file: FileEntry) -> FileEntry:
        plain = (folder / file.path).read_bytes()
        with (folder / file.path).open("wb") as target:
            encrypt_stream(io.BytesIO(plain), target, content_key, file.path)
        return entry(folder, file.path)

    manifest = decode_manifest((folder / "manifest.json").read_bytes())
    facts = replace(
        manifest.facts,
        encryption=seal_content_key(content_key, [recipient]),
        files=tuple(
            encrypted(file) if file.path == GOLDEN_FILE else file for file in manifest.facts.files
        ),
    )
    variants = tuple(
        replace(each, facts=replace(each.facts, files=tuple(map(encrypted, each.facts.files))))
        for each in manifest.variants
    )
    (folder / "manifest.json").write_bytes(
        encode_manifest(Manifest(facts=facts, variants=variants))
    )


def make_model() -> bytes:
    """Return a Relu over float32 (2, 3)."""
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        "tiny",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])],
    )
    opset = helper.make_opsetid("", 17)
    model: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    return model


def make_variant(folder: Path, name: str, provider: str, device: str, model: bytes) -> Variant:
    """Return a variant with every kind of fact in the format."""
    path = folder / "model" / name / "model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(model)
    is_npu = device == "npu"
    return Variant(
        name=name,
        provider=provider,
        device=device,
        compatibility_string="v73" if is_npu else "",
        session_options={"session.intra_op_num_threads": "1"},
        provider_options={"htp_arch": "73"} if is_npu else {},
        facts=VariantFacts(
            profile=name,
            profile_sha256="7a" * 32,
            precision="a16w8" if is_npu else "fp32",
            requires=Requirements(
                arch=("aarch64",) if is_npu else (),
                soc=("60",) if is_npu else (),
                runtime=">=1.23",
                drivers={"qnn": ">=2.28"} if is_npu else {},
            ),
            toolchain=Toolchain(
                onnxruntime="1.31.1",
                tools={"qnn": "2.7.0"} if is_npu else {},
                compiled_for="v73" if is_npu else "",
            ),
            files=(entry(folder, f"model/{name}/model.onnx"),),
            accuracy=Accuracy(
                metric="cosine",
                value=0.998,
                float_value=1.0,
                budget=0.99,
                sample_count=8,
                provider=provider,
                details={"sqnr_db": 31.5},
            ),
            agreements=(
                GoldenAgreement(part=TaskOutputs(task="values", outputs=("y",)), keep=0.9),
            ),
            tolerances={"y": GoldenTolerance(cosine_min=0.99, nrmse_max=0.05)},
            placement=Placement(
                provider=provider, taken=1, total=2, left={"Relu": 1}, verified=not is_npu
            ),
            plain_runtime=PlainRuntime(
                releases=("1.31.1",),
                right=True,
                session_options={"session.x64quantprecision": "1"} if is_npu else {},
            ),
        ),
    )
