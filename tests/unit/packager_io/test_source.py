"""A model file is loaded and checked, and each mistake has its own words."""

import gzip
import hashlib
import pickle
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.source.model import load_source
from tests.graphs import graph_model
from tests.unit.packager_io.models import save, small_cnn
from tests.unit.packager_io.refused_sources import refusal_of


def test_a_good_model_tells_its_inputs_outputs_and_digest(tmp_path: Path) -> None:
    path = save(small_cnn(), tmp_path / "model.onnx")
    source = load_source(path)
    assert [str(spec) for spec in source.inputs] == ["images: float32[batch,3,8,8]"]
    assert [str(spec) for spec in source.outputs] == ["scores: float32[batch,10]"]
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.opset == 17


def test_initializers_listed_as_inputs_are_not_inputs(tmp_path: Path) -> None:
    model = small_cnn()
    for tensor in model.graph.initializer:
        model.graph.input.add().CopyFrom(
            helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims))
        )
    source = load_source(save(model, tmp_path / "model.onnx"))
    assert [spec.name for spec in source.inputs] == ["images"]


def test_inputs_with_default_values_among_weights_that_are_none_are_told_of(
    tmp_path: Path,
) -> None:
    model = small_cnn()
    first = model.graph.initializer[0]
    model.graph.input.add().CopyFrom(
        helper.make_tensor_value_info(first.name, TensorProto.FLOAT, list(first.dims))
    )
    source = load_source(save(model, tmp_path / "model.onnx"))
    assert [spec.name for spec in source.inputs] == ["images"]
    assert source.notes == (
        f"Inputs with a default value keep it and cannot be fed any more: {first.name}.",
    )


def _pytorch_zip() -> bytes:
    import io

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("model/data.pkl", b"")
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "looks_like"),
    [
        (_pytorch_zip(), "a PyTorch checkpoint (a zip archive with data.pkl)"),
        (b"PK\x03\x04nonsense", "a damaged zip archive"),
        (pickle.dumps({"weights": [1.0]}), "a Python pickle, perhaps an old PyTorch checkpoint"),
        (b"\x1c\0\0\0TFL3" + bytes(64), "a TensorFlow Lite model"),
        (b"\x1c\0\0\0ORTM" + bytes(64), "a model in ONNX Runtime's own .ort format"),
        (b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file, perhaps a Keras model"),
        (b"\n<!DOCTYPE html><html>", "an HTML page: the download gave a page instead of the file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer, not the file itself"),
        (gzip.compress(b"x", mtime=0), "a gzip archive"),
        (b'{"model": 1}', "a JSON or text file"),
        (b"\x93NUMPY\x01\0" + bytes(64), "a NumPy array"),
    ],
)
def test_another_format_is_named(tmp_path: Path, content: bytes, looks_like: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert (
        refusal_of(path).problem == f"model.onnx is not an ONNX model: it looks like {looks_like}"
    )


def test_bytes_of_no_known_format_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x7fELF\x02\x01\x01\x00" + bytes(100))
    assert "does not hold an ONNX protobuf (it begins with 7f 45 4c 46" in refusal_of(path).problem


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    assert refusal_of(path).problem == "model.onnx is empty"


def test_a_missing_file_lists_the_models_that_are_there(tmp_path: Path) -> None:
    save(small_cnn(), tmp_path / "other.onnx")
    error = refusal_of(tmp_path / "model.onnx")
    assert error.problem == f"there is no file {tmp_path / 'model.onnx'}"
    assert error.remedy == f"there are other.onnx in {tmp_path}"


def test_a_folder_names_the_models_in_it(tmp_path: Path) -> None:
    save(small_cnn(), tmp_path / "inner.onnx")
    error = refusal_of(tmp_path)
    assert error.problem == f"{tmp_path} is a folder, not a model; it holds inner.onnx"


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_folder_with_a_config_that_names_no_model_is_told_as_that(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    error = refusal_of(tmp_path)
    assert "is not a Hugging Face model folder" in error.problem
    assert error.found_in == str(tmp_path / "config.json")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.999])
def test_a_truncated_file_is_called_truncated(tmp_path: Path, share: float) -> None:
    content = small_cnn().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(content[: int(len(content) * share)])
    assert refusal_of(path).problem.startswith("model.onnx is truncated: its part ")


def test_a_file_cut_before_its_operator_set_is_called_truncated(tmp_path: Path) -> None:
    model = small_cnn()
    del model.opset_import[:]
    path = save(model, tmp_path / "model.onnx")
    assert refusal_of(path).problem.startswith("model.onnx is truncated: it has no operator set")


def test_an_opset_beyond_the_runtime_is_refused_with_what_it_knows(tmp_path: Path) -> None:
    error = refusal_of(save(small_cnn(opset=99), tmp_path / "model.onnx"))
    assert error.problem.startswith("opset 99 is too new: the installed onnxruntime 1.")
    assert "knows up to opset 2" in error.problem


def test_an_ancient_opset_is_refused(tmp_path: Path) -> None:
    error = refusal_of(save(small_cnn(opset=6), tmp_path / "model.onnx"))
    assert error.problem == "opset 6 is too old: the oldest that can be built from is 7"


def test_an_ir_version_beyond_the_runtime_is_refused(tmp_path: Path) -> None:
    error = refusal_of(save(small_cnn(ir_version=99), tmp_path / "model.onnx"))
    assert error.problem.startswith("IR version 99 is too new: the installed onnxruntime 1.")


def test_what_the_checker_says_of_a_node_is_told_with_the_node(tmp_path: Path) -> None:
    model = small_cnn()
    model.graph.node[1].input[0] = "ghost"
    error = refusal_of(save(model, tmp_path / "model.onnx"))
    assert "input 'ghost' of node: name: relu1" in error.problem
    assert "is not output of any previous nodes" in error.problem


def _with_weight(name: str, value: float) -> onnx.ModelProto:
    model = small_cnn()
    for tensor in model.graph.initializer:
        if tensor.name == name:
            values = numpy_helper.to_array(tensor).copy()
            values.flat[3] = value
            tensor.CopyFrom(numpy_helper.from_array(values, name))
    return model


def test_nan_in_weights_names_the_initializer(tmp_path: Path) -> None:
    error = refusal_of(save(_with_weight("w2", float("nan")), tmp_path / "model.onnx"))
    assert error.problem == "1 of 3,456 values of weight 'w2' are NaN"


@pytest.mark.parametrize("opset", [13, 17])
def test_batch_normalization_in_training_mode_is_refused(tmp_path: Path, opset: int) -> None:
    outputs = ["y", "m", "v"] + ([] if opset > 13 else ["saved_m", "saved_v"])
    nodes = [helper.make_node("BatchNormalization", ["x", "s", "b", "m0", "v0"], outputs, "norm")]
    if opset > 13:
        nodes[0].attribute.append(helper.make_attribute("training_mode", 1))
    weights = [numpy_helper.from_array(np.ones(3, np.float32), name) for name in nodes[0].input[1:]]
    float_, shape = TensorProto.FLOAT, [1, 3, 4, 4]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", float_, shape)],
        [helper.make_tensor_value_info("y", float_, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    refusal = refusal_of(save(model, tmp_path / "model.onnx"))
    assert "1 of the model's 1 BatchNormalization nodes is in training mode" in refusal.problem
    assert "node 'norm'" in (refusal.found_in or "")
    assert "model.eval()" in (refusal.remedy or "")


def test_a_function_with_a_standard_operators_name_is_refused(tmp_path: Path) -> None:
    model = small_cnn()
    opsets = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Abs", ["a"], ["b"])]
    model.functions.append(helper.make_function("", "Relu", ["a"], ["b"], body, opsets))
    refusal = refusal_of(save(model, tmp_path / "model.onnx"))
    assert "a function 'Relu', which is a standard operator's name" in refusal.problem
    assert "a domain of its own" in (refusal.remedy or "")


def test_infinity_in_a_layers_weights_is_refused(tmp_path: Path) -> None:
    error = refusal_of(save(_with_weight("b3", float("inf")), tmp_path / "model.onnx"))
    assert error.problem == "1 of 10 values of weight 'b3' are infinite"


def test_infinity_in_what_an_einsum_multiplies_by_is_refused(tmp_path: Path) -> None:
    model = small_cnn()
    factors = numpy_helper.from_array(np.full(10, np.inf, np.float32), "factors")
    model.graph.initializer.append(factors)
    inputs, how = ["scores", "factors"], "bi,i->bi"
    node = helper.make_node("Einsum", inputs, ["products"], name="einsum", equation=how)
    model.graph.node.append(node)
    error = refusal_of(save(model, tmp_path / "model.onnx"))
    assert error.problem == "10 of 10 values of weight 'factors' are infinite"


def test_infinity_in_a_mask_is_noted_only(tmp_path: Path) -> None:
    model = small_cnn()
    model.graph.initializer.append(
        numpy_helper.from_array(np.full(10, -np.inf, np.float32), "mask")
    )
    model.graph.node.append(helper.make_node("Add", ["scores", "mask"], ["masked"], name="add"))
    source = load_source(save(model, tmp_path / "model.onnx"))
    assert source.notes == ("Constant 'mask' holds infinite values; no weight of a layer does.",)


def _model_of_table(*, masks: bool) -> onnx.ModelProto:
    """Rows of a table with infinities are added to scores, before a Softmax or not."""
    table = np.triu(np.full((8, 8), -np.inf, np.float32), 1)
    nodes = [
        helper.make_node("Gather", ["table", "row"], ["looked_up"], name="gather"),
        helper.make_node("Reshape", ["looked_up", "shape"], ["mask"], name="reshape"),
        helper.make_node("Add", ["scores", "mask"], ["masked"], name="add"),
        helper.make_node("Softmax" if masks else "Relu", ["masked"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "looked_up",
        [
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [1, 8]),
            helper.make_tensor_value_info("row", onnx.TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 8])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([1, 8]), "shape"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_infinity_in_a_table_that_masks_scores_is_noted_only(tmp_path: Path) -> None:
    source = load_source(save(_model_of_table(masks=True), tmp_path / "model.onnx"))
    expected = "Constant 'table' holds infinite values; they mask what a Softmax reads."
    assert source.notes == (expected,)


def test_infinity_in_a_table_that_anything_else_is_computed_from_is_refused(tmp_path: Path) -> None:
    error = refusal_of(save(_model_of_table(masks=False), tmp_path / "model.onnx"))
    assert error.problem == "28 of 64 values of weight 'table' are infinite"


def test_a_model_without_inputs_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("RandomNormal", [], ["y"], shape=[1])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    model = helper.make_model(
        helper.make_graph([node], "g", [], [output]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    assert refusal_of(save(model, tmp_path / "m.onnx")).problem.startswith(
        "the model has no inputs"
    )


def test_a_graph_the_checker_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    model = small_cnn()
    model.graph.node[0].input[0] = "nowhere"
    assert refusal_of(save(model, tmp_path / "m.onnx")).problem.startswith(
        "the ONNX checker refuses the model: "
    )


def test_what_only_the_checker_objects_to_is_a_note(tmp_path: Path) -> None:
    model = small_cnn()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    source = load_source(save(model, tmp_path / "m.onnx"))
    assert source.notes[0].startswith("The ONNX checker objects, ONNX Runtime loads it: Field")


def test_an_input_without_a_rank_needs_a_given_shape(tmp_path: Path) -> None:
    model = small_cnn()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path = save(model, tmp_path / "m.onnx")
    error = refusal_of(path)
    assert error.problem == "input 'images' has no shape, not even a number of dimensions"
    assert load_source(path, {"images": (1, 3, 8, 8)}).inputs[0].shape == (1, 3, 8, 8)


def test_a_given_shape_is_fixed_wherever_its_symbol_stands(tmp_path: Path) -> None:
    source = load_source(save(small_cnn(), tmp_path / "m.onnx"), {"images": (2, 3, 8, 8)})
    assert source.inputs[0].shape == (2, 3, 8, 8)
    assert source.outputs[0].shape == (2, 10)


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"image": (1, 3, 8, 8)}, "the model has no input 'image'; it has images"),
        (
            {"images": (1, 3, 8)},
            "input 'images' has 4 dimensions [batch,3,8,8], the shape given has 3",
        ),
        (
            {"images": (1, 3, 9, 8)},
            "dimension 2 of input 'images' is fixed to 8 in the model [batch,3,8,8] and cannot "
            "become 9",
        ),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], problem: str
) -> None:
    path = save(small_cnn(), tmp_path / "m.onnx")
    assert refusal_of(path, **shapes).problem == problem


def test_one_symbol_cannot_have_two_sizes(tmp_path: Path) -> None:
    model = graph_model("(float[n] a, float[n] b) => (float[n] c) { c = Add(a, b) }")
    path = save(model, tmp_path / "m.onnx")
    assert refusal_of(path, a=(2,), b=(3,)).problem == (
        "dimension 'n' cannot be both 2 (input 'a') and 3 (input 'b')"
    )
