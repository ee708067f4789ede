"""A small segmenter of drawn pictures: which of three colours is where."""

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 48


def draw_segmenter(kinds: int = 3) -> onnx.ModelProto:
    """A class for each place: by which of the colours is the brightest around it."""
    weights = {
        "around": np.stack(
            [np.stack([np.full((3, 3), i == j) for j in range(3)]) for i in range(3)]
        )
        / 9,
        "classes": np.eye(kinds, 3)[..., None, None] * 40,
    }
    nodes = [
        helper.make_node("Conv", ["picture", "around"], ["a"], pads=[1, 1, 1, 1], name="around"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "classes"], ["areas"], name="classes"),
    ]
    sizes = {"picture": [1, 3, SIDE, SIDE], "areas": [1, kinds, SIDE, SIDE]}
    picture, areas = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()
    )
    stored = [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "colours", [picture], [areas], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def draw_pictures(count: int) -> list[dict[str, npt.NDArray[np.float32]]]:
    """A square of each of two colours before the third."""
    pictures = []
    for number in range(count):
        rng = np.random.default_rng(number)
        colours = np.zeros((SIDE, SIDE), np.int64)
        for colour in (1, 2):
            top, left = rng.integers(0, SIDE - 20, 2)
            colours[top : top + 20, left : left + 20] = colour
        picture = 0.7 * np.moveaxis(np.eye(3)[colours], -1, 0)
        picture += rng.normal(0, 0.05, picture.shape)
        pictures.append({"picture": picture[None].astype(np.float32)})
    return pictures
