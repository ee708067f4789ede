"""An encrypted variant is decrypted into memory only, for the time of the open."""

import fcntl
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from edgepack.agent.config import ProbeConfig
from edgepack.agent.runtime import plain_files as module
from edgepack.agent.runtime.opening import open_session
from edgepack.agent.runtime.plain_files import MEMORY_VARIABLE, check_readable, plain_files
from edgepack.agent.runtime.probe import probe_variant
from edgepack.bundle.chunks import entry
from edgepack.bundle.encrypted_files import encrypt_stream
from edgepack.bundle.keys import (
    PublicKey,
    generate_key,
    load_private_key,
    write_key_pair,
)
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    Manifest,
    encode_manifest,
)
from edgepack.bundle.recipients import seal_content_key
from edgepack.errors import BundleError, DeviceError
from tests.simulators.manifests import make_variant
from tests.unit.agent_runtime.examples import make_manifest

CONTENT_KEY = bytes(range(32))
FILES = {
    "model/cpu/model.onnx": b"a model",
    "model/cpu/context/w.bin": b"weights" * 30_000,
    "model/other/model.onnx": b"another model",
    GOLDEN_FILE: b"samples",
}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return write_key_pair(generate_key(), tmp_path / "device")[0]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder in memory for this test alone."""
    folder = Path(tempfile.mkdtemp(prefix="edgepack-test-", dir="/dev/shm"))
    monkeypatch.setenv(MEMORY_VARIABLE, str(folder))
    yield folder
    shutil.rmtree(folder)


def _encrypted(folder: Path, recipient: PublicKey, files: Mapping[str, bytes] = FILES) -> Manifest:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("wb") as target:
            encrypt_stream(io.BytesIO(content), target, CONTENT_KEY, path)
    variants = (
        make_variant(
            "cpu",
            files=[entry(folder, path) for path in FILES if path.startswith("model/cpu/")],
        ),
        make_variant("other", files=[entry(folder, "model/other/model.onnx")]),
    )
    plain = make_manifest(*variants)
    facts = replace(
        plain.facts,
        encryption=seal_content_key(CONTENT_KEY, [recipient]),
        files=(entry(folder, GOLDEN_FILE),),
    )
    manifest = replace(plain, facts=facts)
    (folder / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return manifest


def test_a_variant_lies_in_memory_while_it_is_opened(
    tmp_path: Path, key_file: Path, memory: Path
) -> None:
    bundle = tmp_path / "bundle"
    manifest = _encrypted(bundle, load_private_key(key_file).public_key())
    check_readable(manifest, str(key_file))
    with plain_files(bundle, manifest.variant("cpu"), str(key_file)) as folder:
        assert folder.parent == memory
        assert folder.stat().st_mode & 0o777 == 0o700
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
        assert found == set(FILES) - {"model/other/model.onnx"}
        assert all((folder / path).read_bytes() == FILES[path] for path in found)
    assert not list(memory.iterdir())


def test_a_plain_bundle_is_read_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "model/cpu").mkdir(parents=True)
    (tmp_path / "model/cpu/model.onnx").write_bytes(b"a model")
    variant = make_variant("cpu", files=[entry(tmp_path, "model/cpu/model.onnx")])
    (tmp_path / MANIFEST_FILE).write_bytes(encode_manifest(make_manifest(variant)))
    with plain_files(tmp_path, variant, "") as folder:
        assert folder == tmp_path


def test_what_does_not_fit_is_refused_and_nothing_stays(
    tmp_path: Path, key_file: Path, memory: Path
) -> None:
    bundle = tmp_path / "bundle"
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    for manifest, key, said in (
        (_encrypted(bundle, other), str(key_file), "encrypted to others"),
        (_encrypted(bundle, other), "", "this device has no key"),
    ):
        with pytest.raises(DeviceError, match=said):
            check_readable(manifest, key)
        with pytest.raises(DeviceError, match=said):
            _open(bundle, manifest, key)
    manifest = _encrypted(bundle, load_private_key(key_file).public_key())
    path = bundle / "model/cpu/context/w.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BundleError, match="cannot be decrypted"):
        _open(bundle, manifest, str(key_file))
    assert not list(memory.iterdir())


def _open(bundle: Path, manifest: Manifest, key: str) -> None:
    with plain_files(bundle, manifest.variant("cpu"), key):
        pass


def test_a_model_with_weights_beside_it_runs_when_its_files_are_gone(
    tmp_path: Path, key_file: Path, memory: Path
) -> None:
    weights = np.arange(300_000, dtype=np.float32).reshape(1, -1)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    shape = list(weights.shape)
    graph = helper.make_graph(
        [node],
        "add",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "plain/context").mkdir(parents=True)
    onnx.save(
        model, tmp_path / "plain/model.onnx", save_as_external_data=True, location="context/w.bin"
    )
    files = {
        "model/cpu/model.onnx": (tmp_path / "plain/model.onnx").read_bytes(),
        "model/cpu/context/w.bin": (tmp_path / "plain/context/w.bin").read_bytes(),
    }
    bundle = tmp_path / "bundle"
    recipient = load_private_key(key_file).public_key()
    manifest = _encrypted(bundle, recipient, FILES | files)
    variant = manifest.variant("cpu")
    with plain_files(bundle, variant, str(key_file)) as folder:
        session = open_session(folder, variant)
    assert not list(memory.iterdir())
    outputs = session.run({"x": np.ones_like(weights)})
    assert np.array_equal(outputs["y"], weights + 1)


def test_a_folder_on_a_disk_is_no_memory(
    tmp_path: Path, key_file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = _encrypted(tmp_path / "bundle", load_private_key(key_file).public_key())
    monkeypatch.setenv(MEMORY_VARIABLE, "/proc")
    with pytest.raises(DeviceError, match="a disk is not allowed"):
        check_readable(manifest, str(key_file))


def test_what_a_killed_process_left_is_removed_and_what_another_uses_is_not(
    tmp_path: Path, key_file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = _encrypted(tmp_path / "bundle", load_private_key(key_file).public_key())
    left, used = memory / "edgepack-plain-left", memory / "edgepack-plain-used"
    for folder in (left, used):
        folder.mkdir()
        (folder / "model.onnx").write_bytes(b"a model")
    monkeypatch.setattr(module, "_LEFT_AFTER_S", -1.0)
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _open(tmp_path / "bundle", manifest, str(key_file))
    os.close(lock)
    assert [path.name for path in memory.iterdir()] == ["edgepack-plain-used"]


def test_what_a_probe_left_that_was_killed_is_removed_with_it(tmp_path: Path, memory: Path) -> None:
    code = (
        "import os, pathlib, signal\n"
        f"folder = pathlib.Path({str(memory)!r}) / 'edgepack-plain-x'\n"
        "folder.mkdir()\n"
        "(folder / 'model.onnx').write_bytes(b'a model')\n"
        "os.utime(folder, (0, 0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = (sys.executable, "-P", "-c", code)
    result = probe_variant(
        tmp_path, make_variant(), config=ProbeConfig(timeout_s=400), command=command
    )
    assert "crashed with SIGKILL" in result.because
    assert not list(memory.iterdir())
