"""Models of pictures that compute a known answer, without training."""

import numpy as np
import onnx

from tests.graphs import graph_model

LETTERS = ("", "a", "b", "c", "d", "e", "f", " ")
"""Characters of `grey_reader`; the darkest cell is the blank."""

CELL = 8


def colour_finder() -> onnx.ModelProto:
    """Return a detector of YOLO's layout, float32 [1, 3, 64, 64] to [1, 6, 64].

    Each cell of 8 x 8 pixels is a place with a box of its own size; the scores of both classes are
    its mean red and its mean blue.
    """
    cells = np.indices((8, 8)).reshape(2, -1)[::-1] * CELL + CELL / 2
    boxes = np.concatenate([cells, np.full((2, 64), CELL)]).astype(np.float32)[None]
    constants = {"channels": np.array([0, 2]), "flat": np.array([1, 2, 64]), "boxes": boxes}
    return graph_model(
        "(float[1,3,64,64] x) => (float[1,6,64] y) { "
        "means = AveragePool<kernel_shape=[8,8], strides=[8,8]>(x) "
        "both = Gather<axis=1>(means, channels) scores = Reshape(both, flat) "
        "y = Concat<axis=1>(boxes, scores) }",
        constants,
    )


def grey_reader() -> onnx.ModelProto:
    """Return a reader with CTC's steps, float32 [1, 1, 8, 128] to probabilities [1, 16, 8].

    The grey level of each cell of 8 x 8 pixels is its character.
    """
    levels = (np.arange(8, dtype=np.float32) / 7.0).reshape(1, 1, 8)
    sharp = np.array(-1000.0, np.float32)
    constants = {"steps": np.array([1, 16, 1]), "levels": levels, "sharp": sharp}
    return graph_model(
        "(float[1,1,8,128] x) => (float[1,16,8] y) { "
        "means = AveragePool<kernel_shape=[8,8], strides=[8,8]>(x) column = Reshape(means, steps) "
        "apart = Sub(column, levels) squares = Mul(apart, apart) scores = Mul(squares, sharp) "
        "y = Softmax<axis=-1>(scores) }",
        constants,
    )


def colour_map() -> onnx.ModelProto:
    """Return a segmentation with an embedding: [1, 3, 64, 64] to [1, 3, 16, 16] and [1, 12].

    The class of a place is the channel that is brightest in its 4 x 4 pixels; the embedding has the
    means of the four quarters.
    """
    return graph_model(
        "(float[1,3,64,64] x) => (float[1,3,16,16] y, float[1,12] v) { "
        "y = AveragePool<kernel_shape=[4,4], strides=[4,4]>(x) "
        "means = AveragePool<kernel_shape=[32,32], strides=[32,32]>(x) v = Reshape(means, flat) }",
        {"flat": np.array([1, 12])},
    )
