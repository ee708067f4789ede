"""Results for people: classes with scores, objects with boxes, and all answers to a picture."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.pictures.frame import Frame
from edgepack.tasks.arrays import Outputs


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """Class with its score.

    Attributes:
        name: Name of the class, or `class 3` without names.
        number: Number of the class.
        score: Probability, 0 … 1; 1 where the model gives only the class.

    Example:
        ```python
        from edgepack.agent import Label, open_model

        with open_model("defects") as model:
            best: Label = model.classify("part.png", top=1)[0]
            print(best.name, best.score)
        ```
    """

    name: str
    number: int
    score: float


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """Object in a picture.

    Attributes:
        name, number, score: See `Label`.
        left, top, right, bottom: Pixels of the picture, from its upper left corner; of an answer to
            arrays, pixels of the input.

    Example:
        ```python
        from edgepack.agent import Box


        def area(box: Box) -> float:
            return (box.right - box.left) * (box.bottom - box.top)
        ```
    """

    name: str
    number: int
    score: float
    left: float
    top: float
    right: float
    bottom: float


class TextLine(msgspec.Struct, frozen=True, kw_only=True):
    """Line of text in a picture.

    Attributes:
        text: The text.
        score: Mean probability of its characters, 0 … 1.
        corners: Corners across and down in pixels of the picture, clockwise from the upper left
            one.

    Example:
        ```python
        from edgepack.agent import TextLine


        def left_edge(line: TextLine) -> float:
            return min(across for across, down in line.corners)
        ```
    """

    text: str
    score: float
    corners: tuple[tuple[float, float], ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Answer of a model to a picture.

    Attributes:
        labels: Classes, the highest score first; () without such a task.
        boxes: Objects, the highest score first.
        text: Text; of a page, its lines one below another. None without such a task.
        lines: Lines of a page, in the order of reading.
        areas: int32 (height, width) of the picture: the class of each pixel, -1 where the model
            does not see the picture; of one probability 1 for the foreground. None without such a
            task.
        vector: Embedding without the axis of the batch; None without such a task.
        outputs: All outputs of the model by name.
        frame: Place of the picture in the input; None for arrays.

    Example:
        ```python
        from edgepack.agent import Answer, open_model

        with open_model("defects") as model:
            answer: Answer = model.run_image("part.png")
            print(answer.labels, answer.outputs["y"])
        ```
    """

    labels: tuple[Label, ...] = ()
    boxes: tuple[Box, ...] = ()
    text: str | None = None
    lines: tuple[TextLine, ...] = ()
    areas: npt.NDArray[np.int32] | None = None
    vector: npt.NDArray[Any] | None = None
    outputs: Outputs
    frame: Frame | None = None
