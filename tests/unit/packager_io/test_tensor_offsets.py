"""Files are cut along tensors, so that an unchanged tensor is an unchanged chunk."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.bundle.chunks import chunk_digests, index_file
from edgepack.packager.graph.tensor_offsets import tensor_offsets
from tests.unit.packager_io.models import save, save_with_external_data, small_cnn


def _large(seed: int) -> onnx.ModelProto:
    model = small_cnn()
    for number in range(4):
        values = np.random.default_rng(number).normal(0, 1, 50_000).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, f"large{number}"))
    changed = np.random.default_rng(seed).normal(0, 1, 77).astype(np.float32)
    model.graph.initializer.insert(0, numpy_helper.from_array(changed, f"changed{'x' * seed}"))
    return model


def test_offsets_point_at_the_tensors_bytes(tmp_path: Path) -> None:
    model = small_cnn()
    path = save(model, tmp_path / "model.onnx")
    content = path.read_bytes()
    offsets = tensor_offsets(tmp_path)["model.onnx"]
    for tensor in model.graph.initializer:
        start = content.index(tensor.raw_data)
        assert start in offsets
        assert start + len(tensor.raw_data) in offsets


def test_offsets_of_external_data_are_found(tmp_path: Path) -> None:
    save_with_external_data(small_cnn(), tmp_path / "model.onnx")
    assert len(tensor_offsets(tmp_path)["weights.bin"]) == 5


def test_tensors_that_moved_keep_their_chunks(tmp_path: Path) -> None:
    digests = []
    for seed in (1, 40):  # another size of the first name moves all that follows
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = save(_large(seed), folder / "model.onnx")
        digests.append(chunk_digests(index_file(path, tensor_offsets(folder)["model.onnx"])))
    shared = set(digests[0]) & set(digests[1])
    assert len(shared) >= 8, "four tensors of 200 kB, two or more chunks each"
