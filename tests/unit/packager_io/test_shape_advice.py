"""What is advised for open dimensions is what the model takes."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.cli.option_values import parse_shape
from edgepack.packager.source.model import load_source
from edgepack.packager.source.reference import open_reference
from edgepack.packager.source.shape_advice import refuse_open_shapes
from tests.unit.packager_io.models import save, small_cnn

_WIDTH = 8


def _advice(path: Path, known: dict[str, tuple[int, ...]] | None = None) -> str:
    with pytest.raises(BuildError) as caught:
        refuse_open_shapes(load_source(path), "qnn-htp", known)
    return str(caught.value.remedy)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int | str]]],
    constants: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
) -> onnx.ModelProto:
    """A model whose last node gives `y`, of any shape."""
    infos = [helper.make_tensor_value_info(name, *entry) for name, entry in inputs.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    del output.type.tensor_type.shape.dim[:]
    output.type.tensor_type.ClearField("shape")
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "open", infos, [output], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _positions(count: int) -> onnx.ModelProto:
    """Token ids (batch, seq) to vectors, with as many positions as there are."""
    node = helper.make_node
    rng = np.random.default_rng(0)
    return _model(
        [
            node("Shape", ["ids"], ["length"], start=1, end=2),
            node("Gather", ["words", "ids"], ["embedded"]),
            node("Slice", ["positions", "zero", "length", "zero"], ["places"]),
            node("Add", ["embedded", "places"], ["y"]),
        ],
        {"ids": (TensorProto.INT64, ["batch", "seq"])},
        {
            "words": rng.normal(size=(50, _WIDTH)).astype(np.float32),
            "positions": rng.normal(size=(count, _WIDTH)).astype(np.float32),
            "zero": np.array([0]),
        },
    )


def _decoder(mask: str) -> onnx.ModelProto:
    """One step of a decoder: the mask is as long as the past and the new tokens together."""
    node = helper.make_node
    return _model(
        [
            node("Concat", ["past", "new"], ["keys"], axis=2),
            node("ReduceSum", ["keys", "last"], ["scores"], keepdims=0),
            node("Add", ["scores", "mask"], ["y"]),
        ],
        {
            "new": (TensorProto.FLOAT, ["batch", 2, "sequence_length", _WIDTH]),
            "mask": (TensorProto.FLOAT, ["batch", 1, mask]),
            "past": (TensorProto.FLOAT, ["batch", 2, "past_sequence_length", _WIDTH]),
        },
        {"last": np.array([3])},
    )


def _patches() -> onnx.ModelProto:
    """An image of which a Reshape wants 14 x 14 patches of 16 x 16 pixels."""
    node = helper.make_node
    return _model(
        [
            node("MaxPool", ["image"], ["patches"], kernel_shape=[16, 16], strides=[16, 16]),
            node("Reshape", ["patches", "shape"], ["y"]),
        ],
        {"image": (TensorProto.FLOAT, ["batch", 3, "height", "width"])},
        {"shape": np.array([1, 3, 196])},
    )


def _picture_and_text() -> onnx.ModelProto:
    """Two inputs share a name: of an image's rows there are as many as tokens."""
    node = helper.make_node
    return _model(
        [
            node("ReduceMean", ["image"], ["rows"], axes=[1, 3], keepdims=0),
            node("Add", ["rows", "tokens"], ["y"]),
        ],
        {
            "image": (TensorProto.FLOAT, ["batch", 3, "n", "width"]),
            "tokens": (TensorProto.FLOAT, ["batch", "n"]),
        },
        {},
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (small_cnn(), "--shape images=1,3,8,8"),
        (_positions(512), "--shape ids=1,128"),
        (_positions(77), "--shape ids=1,64"),
        (_positions(5), "--shape ids=1,4"),
        (
            _decoder("total_sequence_length"),
            "--shape new=1,2,128,8 --shape mask=1,1,256 --shape past=1,2,128,8",
        ),
        (
            _decoder("past_sequence_length + sequence_length"),
            "--shape new=1,2,128,8 --shape mask=1,1,256 --shape past=1,2,128,8",
        ),
        (_patches(), "--shape image=1,3,224,224"),
        (_picture_and_text(), "--shape image=1,3,128,320 --shape tokens=1,128"),
    ],
)
def test_the_advised_shapes_are_taken_by_the_next_run(
    model: onnx.ModelProto, expected: str, tmp_path: Path
) -> None:
    path = save(model, tmp_path / "m.onnx")
    advice = _advice(path)
    assert advice.startswith(f"{expected}  (the sizes are an example")
    shapes = dict(parse_shape(option) for option in re.findall(r"--shape (\S+)", expected))
    source = load_source(path, shapes)
    refuse_open_shapes(source, "qnn-htp")
    run = open_reference(source, tmp_path / "source.onnx")
    feeds = {spec.name: np.ones(shapes[spec.name], spec.dtype) for spec in source.inputs}
    assert run(feeds)["y" if "y" in run(feeds) else "scores"].size


def test_what_is_open_is_named(tmp_path: Path) -> None:
    source = load_source(save(small_cnn(), tmp_path / "m.onnx"))
    with pytest.raises(BuildError) as caught:
        refuse_open_shapes(source, "qnn-htp")
    assert caught.value.problem == (
        "profile 'qnn-htp' needs every dimension fixed, and m.onnx leaves open dimension 0 (batch) "
        "of input 'images' [batch,3,8,8]"
    )


def test_the_sizes_of_samples_are_advised_where_there_are_any(tmp_path: Path) -> None:
    path = save(_positions(512), tmp_path / "m.onnx")
    assert _advice(path, {"ids": (1, 40)}) == "--shape ids=1,40  (the sizes of the first sample)"


def test_where_no_usual_size_runs_none_is_advised(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    inputs: dict[str, tuple[int, list[int | str]]] = {"x": (TensorProto.FLOAT, [1, "frames"])}
    path = save(_model([node], inputs, {"shape": np.array([1, 1021])}), tmp_path / "m.onnx")
    assert _advice(path).startswith("--shape x=1,FRAMES with the sizes that the model was made for")
