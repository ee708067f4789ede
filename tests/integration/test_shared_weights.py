"""Weights that stages share are stored once: in the bundle, in its archive, and on the device."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.agent import open_model
from edgepack.bundle.manifest import decode_manifest
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.packager import build
from tests.integration.picture_builds import edgepack, install
from tests.integration.test_encoder_decoders import FOLDERS, RECORDED, draw_sample
from tests.integration.test_pipeline_budget import save_graph
from tests.simulators.pipelines import pipeline_of_two

_VOCABULARY = 4096
_EMBEDDING_BYTES = _VOCABULARY * 8 * 4


def save_t5(folder: Path) -> None:
    """Write a T5 whose tied embedding is most of its bytes: more tokens, alike the first one."""
    shutil.copytree(FOLDERS / "t5", folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": _VOCABULARY}))
    for path in folder.glob("*.onnx"):
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            if sorted(tensor.dims) == [8, 48]:
                axis = list(tensor.dims).index(48)
                value = numpy_helper.to_array(tensor)
                first = value.take([0] * (_VOCABULARY - 48), axis)
                wide = np.concatenate([value, first], axis)
                tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
        for one in model.graph.output:
            if one.name == "logits":
                one.type.tensor_type.shape.dim[-1].dim_value = _VOCABULARY
        onnx.save(model, path)


def stored_bytes(folder: Path) -> int:
    """Return the bytes of a folder's files, each inode once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


def test_tied_embedding_of_encoder_decoder_and_head_is_stored_once(
    tmp_path: Path, key: Path
) -> None:
    save_t5(tmp_path / "t5")
    samples = tmp_path / "samples"
    samples.mkdir()
    for number in range(len(RECORDED["t5"])):
        (samples / f"{number}.npz").write_bytes(encode_arrays(draw_sample("t5", number)))
    words = ("build", tmp_path / "t5", "--profile", "fp32", "--calibration", samples, "--key", key)
    for name in ("t5-1.0.0", "t5-1.0.0.edgepack"):
        edgepack(*words, "-o", tmp_path / name)
    given_bytes = sum(path.stat().st_size for path in (tmp_path / "t5").glob("*.onnx"))
    assert given_bytes > 3 * _EMBEDDING_BYTES
    model = tmp_path / "t5-1.0.0" / "model"
    assert stored_bytes(model) < given_bytes - 2 * _EMBEDDING_BYTES + 4096
    files = [path for path in model.rglob("shared-*.data") if path.is_file()]
    assert len(files) == 2
    assert files[0].samefile(files[1])
    archive = tmp_path / "t5-1.0.0.edgepack"
    of_others = sum(
        path.stat().st_size
        for path in (tmp_path / "t5-1.0.0").rglob("*")
        if path.is_file() and model not in path.parents
    )
    assert archive.stat().st_size < stored_bytes(model) + of_others + 32 * 1024
    install(archive, key, tmp_path / "state")
    slots = [path for path in (tmp_path / "state").rglob("shared-*.data") if path.is_file()]
    assert len(slots) == 2
    assert slots[0].samefile(slots[1])
    with open_model("t5", tmp_path / "state", threads=1) as opened:
        texts = [opened.run(draw_sample("t5", n))["tokens"][0].tolist() for n in range(9)]
    assert texts == RECORDED["t5"]


def test_file_of_two_stages_is_stored_once(tmp_path: Path, key: Path) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 1 / 8, (64, 64)).astype(np.float32)
    save_graph(tmp_path / "product.onnx", (("MatMul", "w"),), w=weight)
    (tmp_path / "pipeline.toml").write_text(
        pipeline_of_two("product.onnx", "product.onnx", size=64)
    )
    samples = tmp_path / "samples"
    samples.mkdir()
    for number in range(8):
        start = rng.normal(0, 1, (1, 64)).astype(np.float32)
        (samples / f"{number}.npz").write_bytes(encode_arrays({"start": start}))
    output = tmp_path / "twice-1.0.0"
    build(
        tmp_path / "pipeline.toml",
        profiles=["fp32"],
        calibration=samples,
        key=key,
        output=output,
    )
    manifest = decode_manifest((output / "manifest.json").read_bytes())
    one, other = manifest.graphs
    assert [file.sha256 for file in one.facts.files] == [file.sha256 for file in other.facts.files]
    for first, second in zip(one.facts.files, other.facts.files, strict=True):
        assert (output / first.path).samefile(output / second.path)
    report = json.loads((output / "report.json").read_text())
    assert report["variants"][0]["size_bytes"] < 2 * weight.nbytes
