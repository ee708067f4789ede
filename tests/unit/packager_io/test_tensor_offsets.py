"""Files are cut along tensors, so that an unchanged tensor is an unchanged chunk."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import set_external_data

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
    offsets = tensor_offsets(tmp_path)["weights.bin"]
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        start = int(entries["offset"])
        assert {start, start + int(entries["length"])} <= set(offsets)


def test_padding_behind_a_tensor_is_in_no_chunk_of_it(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0, 1, 50_001).astype(np.float32)
    kept = []
    for pad in (0, 4092):
        folder = tmp_path / str(pad)
        folder.mkdir()
        tensors = [numpy_helper.from_array(values, "first"), numpy_helper.from_array(values, "b")]
        (folder / "w.bin").write_bytes(values.tobytes() + b"\0" * pad + values[::-1].tobytes())
        for tensor, start in zip(tensors, (0, values.nbytes + pad), strict=True):
            set_external_data(tensor, location="w.bin", offset=start, length=values.nbytes)
            tensor.ClearField("raw_data")
        graph = onnx.helper.make_graph([], "g", [], [], tensors)
        onnx.save(onnx.helper.make_model(graph), folder / "model.onnx")
        offsets = tensor_offsets(folder)["w.bin"]
        kept.append(set(chunk_digests(index_file(folder / "w.bin", offsets))))
    assert len(kept[1] - kept[0]) == 1, "the padding alone is new"


def test_tensors_that_moved_keep_their_chunks(tmp_path: Path) -> None:
    digests = []
    for seed in (1, 40):  # another size of the first name moves all that follows
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = save(_large(seed), folder / "model.onnx")
        digests.append(chunk_digests(index_file(path, tensor_offsets(folder)["model.onnx"])))
    shared = set(digests[0]) & set(digests[1])
    assert len(shared) >= 8, "four tensors of 200 kB, two or more chunks each"
