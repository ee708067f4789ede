"""A small signed bundle to read, change and break."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.chunks import entry
from edgepack.bundle.golden import Golden, Tensor, write_golden
from edgepack.bundle.keys import (
    PrivateKey,
    PublicKey,
    generate_key,
    load_private_key,
    write_key_pair,
)
from edgepack.bundle.manifest import (
    BundleFacts,
    Manifest,
    Requirements,
    Variant,
    encode_manifest,
)
from edgepack.bundle.signature import sign_folder
from tests.simulators.manifests import DIGEST, make_variant


@pytest.fixture(scope="session")
def key_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a key pair; return the path without the endings `.key` and `.pub`."""
    prefix = tmp_path_factory.mktemp("keys") / "release"
    write_key_pair(generate_key(), prefix)
    return prefix


@pytest.fixture(scope="session")
def private_key(key_prefix: Path) -> PrivateKey:
    return load_private_key(key_prefix.with_suffix(".key"))


@pytest.fixture(scope="session")
def public_key(private_key: PrivateKey) -> PublicKey:
    return private_key.public_key()


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    """Return an untrusted key."""
    prefix = tmp_path_factory.mktemp("keys") / "other"
    return load_private_key(write_key_pair(generate_key(), prefix)[0])


def variant_in(folder: Path, name: str, provider: str, device: str) -> Variant:
    paths = sorted((folder / "model" / name).rglob("*"))
    return make_variant(
        name,
        provider=provider,
        device=device,
        session_options={"session.intra_op_num_threads": "1"},
        provider_options={"htp_arch": "73"} if device == "npu" else {},
        requires=Requirements(arch=("x86_64", "aarch64"), runtime=">=1.23,<2"),
        files=[entry(folder, path.relative_to(folder).as_posix()) for path in paths],
    )


def make_manifest(folder: Path, *, release: int = 3) -> Manifest:
    return Manifest(
        facts=BundleFacts(
            name="digits",
            version="1.2.0",
            release=release,
            source_sha256=DIGEST,
            tools={"edgepack": "0.1.0"},
            files=tuple(
                entry(folder, path)
                for path in ("golden/golden.npz", "hooks/before-activate", "report.json")
            ),
        ),
        variants=(
            variant_in(folder, "qnn-htp", "QNNExecutionProvider", "npu"),
            variant_in(folder, "cpu", "CPUExecutionProvider", "cpu"),
        ),
    )


@pytest.fixture
def bundle(tmp_path: Path, private_key: PrivateKey) -> Path:
    """Make the folder of a signed bundle with two variants, golden samples, a hook and a report."""
    folder = tmp_path / "digits-1.2.0"
    for name, content in {
        "model/cpu/model.onnx": b"float model",
        "model/cpu/weights.bin": bytes(range(256)) * 600,
        "model/qnn-htp/model.onnx": b"context",
        "hooks/before-activate": b"#!/bin/sh\nexit 0\n",
        "report.json": b"{}",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "golden").mkdir()
    sample: dict[str, Tensor] = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    write_golden(
        folder / "golden/golden.npz", Golden(inputs=(sample,), outputs=({"y": sample["x"] * 2},))
    )
    (folder / "manifest.json").write_bytes(encode_manifest(make_manifest(folder)))
    sign_folder(folder, private_key)
    return folder
