"""Tensors outside the model file: loaded, part of the digest, and checked."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.source.model import load_source
from tests.unit.packager_io.models import save, save_with_external_data, small_cnn
from tests.unit.packager_io.refused_sources import refusal_of


def test_external_data_is_loaded_and_part_of_the_digest(tmp_path: Path) -> None:
    path = save_with_external_data(small_cnn(), tmp_path / "model.onnx")
    source = load_source(path)
    assert all(tensor.raw_data for tensor in source.model.graph.initializer)
    weights = tmp_path / "weights.bin"
    assert source.size_bytes == path.stat().st_size + weights.stat().st_size
    content = bytearray(weights.read_bytes())
    content[0] ^= 1
    weights.write_bytes(content)
    assert load_source(path).sha256 != source.sha256


def test_missing_external_data_names_the_file_and_the_tensor(tmp_path: Path) -> None:
    path = save_with_external_data(small_cnn(), tmp_path / "model.onnx")
    (tmp_path / "weights.bin").unlink()
    error = refusal_of(path)
    assert "external data file 'weights.bin' is missing" in error.problem
    assert error.found_in == f"{path}, tensor 'w1'"


def test_truncated_external_data_is_told_with_numbers(tmp_path: Path) -> None:
    path = save_with_external_data(small_cnn(), tmp_path / "model.onnx")
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:100])
    assert "external data file 'weights.bin' is truncated: tensor" in refusal_of(path).problem


def test_external_data_without_a_length_are_as_long_as_the_tensor(tmp_path: Path) -> None:
    path = save_with_external_data(small_cnn(), tmp_path / "model.onnx")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        kept = [(it.key, it.value) for it in tensor.external_data if it.key != "length"]
        del tensor.external_data[:]
        for key, value in kept:
            tensor.external_data.add(key=key, value=value)
    loaded = load_source(save(model, path)).model
    for tensor, original in zip(
        loaded.graph.initializer, small_cnn().graph.initializer, strict=True
    ):
        np.testing.assert_array_equal(
            numpy_helper.to_array(tensor), numpy_helper.to_array(original)
        )


def test_external_data_behind_a_link_to_elsewhere_say_so(tmp_path: Path) -> None:
    """Like the links in Hugging Face's cache."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    path = save_with_external_data(small_cnn(), folder / "model.onnx")
    (folder / "weights.bin").rename(tmp_path / "blob")
    (folder / "weights.bin").symlink_to(tmp_path / "blob")
    error = refusal_of(path)
    assert error.problem == (
        f"external data file 'weights.bin' is a link to {tmp_path / 'blob'}, outside the model's "
        "folder"
    )
    assert "cp -rL" in (error.remedy or "")


def test_a_tensor_with_more_bytes_than_its_shape_has_is_refused(tmp_path: Path) -> None:
    model = small_cnn()
    model.graph.initializer[0].dims[0] = 15
    path = save(model, tmp_path / "model.onnx")
    error = refusal_of(path)
    assert error.problem == (
        "tensor 'w1' holds 1,728 bytes, and one of shape [15, 3, 3, 3] has 1,620"
    )
    assert error.found_in == f"{path}, initializer 'w1'"


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(1 << 16))
    path = save_with_external_data(small_cnn(), folder / "model.onnx")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = location
    save(model, path)
    assert refusal_of(path).problem == (
        f"the model points outside its folder for external data: {location!r}"
    )


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("offset", "-4", "is negative"),
        ("length", "-4", "is negative"),
        ("length", "much", "is not a number"),
        ("length", "44", "external data of 44 bytes cannot be a tensor of shape [10]"),
    ],
)
def test_external_data_that_cannot_be_is_refused(
    tmp_path: Path, key: str, value: str, problem: str
) -> None:
    model = _with_function("shift.bin")
    entries = model.functions[0].node[0].attribute[0].t.external_data
    if key == "offset":
        entries.add(key="offset")
    next(entry for entry in entries if entry.key == key).value = value
    (tmp_path / "shift.bin").write_bytes(bytes(100))
    assert problem in refusal_of(save(model, tmp_path / "model.onnx")).problem


def _external_constant(location: str) -> onnx.TensorProto:
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[10])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="length", value="40")
    return tensor


def _with_function(location: str) -> onnx.ModelProto:
    """Return `small_cnn` with a model-local function that adds a constant from a file to its
    scores.
    """
    model = small_cnn()
    model.graph.node[-1].output[0] = "logits"
    model.graph.node.append(
        helper.make_node("Shift", ["logits"], ["scores"], name="shift", domain="mine")
    )
    model.opset_import.append(helper.make_opsetid("mine", 1))
    constant = helper.make_node("Constant", [], ["c"], value=_external_constant(location))
    model.functions.append(
        helper.make_function(
            "mine",
            "Shift",
            ["x"],
            ["y"],
            [constant, helper.make_node("Add", ["x", "c"], ["y"])],
            [helper.make_opsetid("", 17)],
        )
    )
    return model


def test_external_data_of_a_function_is_loaded_and_part_of_the_digest(tmp_path: Path) -> None:
    path = save(_with_function("shift.bin"), tmp_path / "model.onnx")
    (tmp_path / "shift.bin").write_bytes(np.ones(10, np.float32).tobytes())
    source = load_source(path)
    constant = source.model.functions[0].node[0].attribute[0].t
    assert numpy_helper.to_array(constant).tolist() == [1.0] * 10
    (tmp_path / "shift.bin").write_bytes(np.zeros(10, np.float32).tobytes())
    assert load_source(path).sha256 != source.sha256


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("../secret.bin", "points outside its folder"),
        ("/etc/hostname", "points outside its folder"),
        ("absent.bin", "external data file 'absent.bin' is missing"),
    ],
)
def test_external_data_of_a_function_is_checked_like_any(
    tmp_path: Path, location: str, problem: str
) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(1 << 16))
    error = refusal_of(save(_with_function(location), folder / "model.onnx"))
    assert problem in error.problem
    assert error.found_in == f"{folder / 'model.onnx'}, tensor 'c'"


def test_external_data_of_a_sparse_weight_is_checked_like_any(tmp_path: Path) -> None:
    model = small_cnn()
    sparse = model.graph.sparse_initializer.add(dims=[20])
    sparse.values.CopyFrom(_external_constant("../secret.bin"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(10), "at"))
    error = refusal_of(save(model, tmp_path / "model.onnx"))
    assert "points outside its folder" in error.problem
