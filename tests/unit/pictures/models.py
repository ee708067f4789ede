"""Models of pictures that compute a known answer, without training."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LETTERS = ("", "a", "b", "c", "d", "e", "f", "g")
"""Characters of `grey_reader`; the darkest cell is the blank."""

CELL = 8


def _model(
    nodes: list[onnx.NodeProto],
    shape: list[int],
    output: list[int],
    constants: dict[str, np.ndarray],
    **further: list[int],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "computed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
            for name, sizes in {"y": output, **further}.items()
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def colour_finder() -> onnx.ModelProto:
    """Return a detector of YOLO's layout, float32 [1, 3, 64, 64] to [1, 6, 64].

    Each cell of 8 x 8 pixels is a place with a box of its own size; the scores of both classes are
    its mean red and its mean blue.
    """
    cells = np.indices((8, 8)).reshape(2, -1)[::-1] * CELL + CELL / 2
    boxes = np.concatenate([cells, np.full((2, 64), CELL)]).astype(np.float32)[None]
    nodes = [
        helper.make_node("AveragePool", ["x"], ["means"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Gather", ["means", "channels"], ["both"], axis=1),
        helper.make_node("Reshape", ["both", "flat"], ["scores"]),
        helper.make_node("Concat", ["boxes", "scores"], ["y"], axis=1),
    ]
    constants = {"channels": np.array([0, 2]), "flat": np.array([1, 2, 64]), "boxes": boxes}
    return _model(nodes, [1, 3, 64, 64], [1, 6, 64], constants)


def grey_reader() -> onnx.ModelProto:
    """Return a reader with CTC's steps, float32 [1, 1, 8, 128] to probabilities [1, 16, 8].

    The grey level of each cell of 8 x 8 pixels is its character.
    """
    levels = (np.arange(8, dtype=np.float32) / 7.0).reshape(1, 1, 8)
    nodes = [
        helper.make_node("AveragePool", ["x"], ["means"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Reshape", ["means", "steps"], ["column"]),
        helper.make_node("Sub", ["column", "levels"], ["apart"]),
        helper.make_node("Mul", ["apart", "apart"], ["squares"]),
        helper.make_node("Mul", ["squares", "sharp"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    sharp = np.array(-1000.0, np.float32)
    constants = {"steps": np.array([1, 16, 1]), "levels": levels, "sharp": sharp}
    return _model(nodes, [1, 1, 8, 128], [1, 16, 8], constants)


def colour_map() -> onnx.ModelProto:
    """Return a segmentation with an embedding: [1, 3, 64, 64] to [1, 3, 16, 16] and [1, 12].

    The class of a place is the channel that is brightest in its 4 x 4 pixels; the embedding has the
    means of the four quarters.
    """
    nodes = [
        helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("AveragePool", ["x"], ["means"], kernel_shape=[32, 32], strides=[32, 32]),
        helper.make_node("Reshape", ["means", "flat"], ["v"]),
    ]
    flat = {"flat": np.array([1, 12])}
    return _model(nodes, [1, 3, 64, 64], [1, 3, 16, 16], flat, v=[1, 12])
