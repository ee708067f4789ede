"""Answers for people out of a model's outputs: classes, boxes, text, areas, vectors.

Pure: the description of a bundle says what outputs mean, and a frame says where the picture lies in
the input. So applications, the model server and other programs give the same answers.
"""

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgepack.pictures.frame import Frame
from edgepack.pictures.results import Answer, Box, Label, TextLine
from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.description import ModelDescription, TaskOutputs
from edgepack.tasks.detections.decoding import PICTURE_BITS, find_boxes
from edgepack.tasks.detections.layouts import DetectionHead
from edgepack.tasks.level import THRESHOLD
from edgepack.tasks.pages.measure import TASK as PAGES
from edgepack.tasks.pages.measure import read_lines
from edgepack.tasks.segmentation.areas import classes_of, foreground_level, is_single
from edgepack.tasks.sketch import as_probabilities, finite_values
from edgepack.tasks.text.decoding import read_text
from edgepack.tasks.text.head import TextHead

_Head = TypeVar("_Head", DetectionHead, TextHead)

MOST_LABELS = 5

UNSEEN = -1
"""Class of the pixels of a picture that the model does not see."""

_OF_CELLS = ("centernet", "text-map")
"""Layouts whose boxes are in cells of a map."""


class _Ability(NamedTuple):
    words: str
    tasks: tuple[str, ...]


ABILITIES: Mapping[str, _Ability] = {
    "classify": _Ability("gives classes", ("classification", "probabilities", "threshold")),
    "detect": _Ability("finds objects", ("detections",)),
    "read": _Ability("reads text", ("text", "pages")),
    "segment": _Ability("gives areas", ("segmentation",)),
    "embed": _Ability("gives embeddings", ("embedding",)),
}
"""Tasks behind each method of a model."""


def answer_to(
    description: ModelDescription, outputs: Outputs, frame: Frame | None = None
) -> Answer:
    """Return all that a model's outputs tell a person.

    Args:
        description: The bundle's.
        outputs: Outputs of an inference on a single picture, by name.
        frame: Place of the picture in the input; None for arrays.
    """

    def found(ability: str, function: Callable[[], Any], absent: Any) -> Any:
        try:
            return function() if find_parts(description, ability) else absent
        except ValueError:
            return absent

    return Answer(
        labels=found("classify", lambda: classify(description, outputs), ()),
        boxes=found("detect", lambda: detect(description, outputs, frame), ()),
        text=found("read", lambda: read(description, outputs), None),
        lines=found("read", lambda: find_lines(description, outputs), ()),
        areas=found("segment", lambda: segment(description, outputs, frame), None),
        vector=found("embed", lambda: embed(description, outputs), None),
        outputs=outputs,
        frame=frame,
    )


def classify(
    description: ModelDescription, outputs: Outputs, *, top: int = MOST_LABELS, output: str = ""
) -> tuple[Label, ...]:
    """Return classes with probabilities, the highest first.

    Scores that are no probabilities become some: by softmax, or of scores with a threshold of their
    own each by the logistic function.

    Args:
        description, outputs: See `answer_to`.
        top: Classes at most.
        output: The output, where several give classes.

    Raises:
        ValueError: The model gives no classes, or several outputs do, or the output gives a row of
            classes at several places, or `top` is below 1.
    """
    if not isinstance(top, int) or top < 1:
        raise ValueError(f"top is the number of classes to return, 1 or more, not {top!r}")
    part = _choose(description, outputs, "classify", output)
    value = outputs[output or part.outputs[0]]
    if value.dtype.kind != "f":
        numbers = value.ravel()[:top].tolist()
        return tuple(
            Label(name=name_class(part, int(one)), number=int(one), score=1.0) for one in numbers
        )
    if value.size != max(value.shape, default=1):
        raise ValueError(
            f"output '{part.outputs[0]}' gives classes at several places {list(value.shape)}: "
            "take the outputs of `run`"
        )
    scores = _probabilities(part, value)
    order = np.argsort(-np.nan_to_num(scores, nan=-1.0), kind="stable")[:top]
    return tuple(
        Label(name=name_class(part, one), number=one, score=float(scores[one]))
        for one in order.tolist()
    )


def detect(
    description: ModelDescription,
    outputs: Outputs,
    frame: Frame | None = None,
    *,
    least: float | None = None,
) -> tuple[Box, ...]:
    """Return objects with boxes in pixels of the picture, the highest score first.

    Boxes are cut off at the picture's edges.

    Args:
        description, outputs, frame: See `answer_to`.
        least: Least score, 0 … 1; by default the usual threshold of the layout.

    Raises:
        ValueError: The model finds no objects, or `least` is not a score.
    """
    if least is not None and not (isinstance(least, Real) and 0.0 <= least <= 1.0):
        raise ValueError(f"least is the least score of an object, 0 … 1, not {least!r:.100}")
    part = _choose(description, outputs, "detect")
    head = _open_head(part, DetectionHead.of)
    boxes = find_boxes(head, outputs)
    is_wanted = boxes.scores >= (head.facts.named if least is None else least)
    boxes = boxes.pick(is_wanted & (boxes.classes < (1 << PICTURE_BITS)))
    boxes = boxes.pick(np.argsort(-boxes.scores, kind="stable"))
    corners = _in_input(head, boxes.corners, description, outputs, frame)
    if frame is not None:
        corners = frame.to_picture(corners)
    return tuple(
        Box(
            name=name_class(part, number),
            number=number,
            score=score,
            left=left,
            top=top,
            right=right,
            bottom=bottom,
        )
        for number, score, (left, top, right, bottom) in zip(
            boxes.classes.tolist(), boxes.scores.tolist(), corners.tolist(), strict=True
        )
    )


def read(description: ModelDescription, outputs: Outputs) -> str:
    """Return the text that a recognizer reads.

    Raises:
        ValueError: The model reads no text, or the bundle does not list its characters.
    """
    part = _choose(description, outputs, "read")
    if part.task == PAGES.name:
        return "\n".join(line.text for line in find_lines(description, outputs))
    head = replace(_open_head(part, TextHead.of), ignores_spaces=False)
    if not part.class_names:
        raise ValueError(
            f"the bundle lists no characters of output '{head.output}': class_names in "
            "[outputs] of edgepack.toml, one for each class, names them"
        )
    names = part.class_names
    return "".join(names[kind] for kind in read_text(head, outputs) if 0 <= kind < len(names))


def reads_pages(description: ModelDescription) -> bool:
    """Return True if a model reads the lines of pages."""
    return description.part_of(PAGES.name) is not None


def find_lines(description: ModelDescription, outputs: Outputs) -> tuple[TextLine, ...]:
    """Return the lines of a page in the order of reading; () of a model that reads no pages.

    Raises:
        ValueError: The outputs do not have a row for each line.
    """
    part = description.part_of(PAGES.name)
    if part is None:
        return ()
    return tuple(
        TextLine(
            text="".join(map(chr, line.text)),
            score=line.score,
            corners=tuple((float(across), float(down)) for across, down in line.corners),
        )
        for line in read_lines(part, outputs)
    )


def segment(
    description: ModelDescription, outputs: Outputs, frame: Frame | None = None
) -> npt.NDArray[np.int32]:
    """Return the class of each pixel of the picture, of the nearest place of the model's map.

    Returns:
        int32 (height, width) of the picture, or of the model's map without a frame; see `Answer`.

    Raises:
        ValueError: The model gives no areas.
    """
    part = _choose(description, outputs, "segment")
    value = outputs[part.outputs[0]]
    if value.dtype.kind == "f" and is_single(value):
        wide, finite = value.astype(np.float64), finite_values(value)
        found: Tensor = wide >= (foreground_level(finite) if finite.size else 0.0)
    else:
        found = classes_of(value)
    classes = found.reshape(-1, *_plane(found))[0].astype(np.int32)
    return classes if frame is None else frame.spread_map(classes, UNSEEN)


def embed(description: ModelDescription, outputs: Outputs) -> npt.NDArray[Any]:
    """Return the embedding, without the axis of the batch.

    Raises:
        ValueError: The model gives no embeddings.
    """
    value = outputs[_choose(description, outputs, "embed").outputs[0]]
    return value[0] if value.ndim > 1 and len(value) == 1 else value


def find_parts(description: ModelDescription, ability: str) -> tuple[TaskOutputs, ...]:
    """Return the parts of a description that a method answers by.

    Args:
        description: The bundle's.
        ability: A key of `ABILITIES`.
    """
    tasks = ABILITIES[ability].tasks
    return tuple(part for part in description.parts if part.task in tasks)


def describe_abilities(description: ModelDescription) -> str:
    """Return what a model does, in words that follow "the model"."""
    able = [it.words for name, it in ABILITIES.items() if find_parts(description, name)]
    if able:
        return " and ".join(able)
    tasks = ", ".join(f"{part.task} of '{part.outputs[0]}'" for part in description.parts[:3])
    return f"gives {tasks or 'outputs of unknown meaning'}"


def check_ability(description: ModelDescription, ability: str) -> None:
    """Reject a question that a model does not answer.

    Raises:
        ValueError: The message says what the model does.
    """
    if not find_parts(description, ability):
        raise ValueError(
            f"`{ability}` needs a model that {ABILITIES[ability].words}: this one "
            f"{describe_abilities(description)}; `run` gives its outputs"
        )


def _choose(
    description: ModelDescription, outputs: Outputs, ability: str, output: str = ""
) -> TaskOutputs:
    """Return the part that answers; of classes a row of scores is better than their numbers."""
    check_ability(description, ability)
    parts = tuple(
        part for part in find_parts(description, ability) if outputs.keys() >= set(part.outputs)
    )
    if not parts:
        raise ValueError(f"the outputs {', '.join(outputs)} are not those of the description")
    if output:
        parts = tuple(part for part in parts if output in part.outputs)
        if not parts:
            raise ValueError(f"`{ability}` does not answer by the output '{output}'")
    scored = [part for part in parts if outputs[part.outputs[0]].dtype.kind == "f"] or parts
    if ability == "classify" and len(scored) > 1:
        names = ", ".join(part.outputs[0] for part in scored)
        raise ValueError(f"several outputs give classes: {names}; name one, output='…'")
    return scored[0]


def _open_head(part: TaskOutputs, open_head: Callable[[TaskOutputs], _Head]) -> _Head:
    """Return how outputs are decoded.

    Raises:
        ValueError: The bundle's settings are malformed, or of a newer edgepack.
    """
    try:
        return open_head(part)
    except msgspec.ValidationError as error:
        raise ValueError(
            f"the {part.task} of '{part.outputs[0]}' are not known: {error}"
        ) from error


def name_class(part: TaskOutputs, number: int) -> str:
    """Return the name of a class, `class 3` if it is not known."""
    names = part.class_names
    return names[number] if 0 <= number < len(names) and names[number] else f"class {number}"


def _probabilities(part: TaskOutputs, value: Tensor) -> Floats:
    """Return the probability of each class, float64 (classes,)."""
    row = value.astype(np.float64).ravel()
    if part.task != "threshold" and row.size > 1:
        return np.asarray(as_probabilities(row[None])[0])
    level = part.settings.get(THRESHOLD)
    is_share = bool((row >= 0.0).all() and (row <= 1.0).all()) and level != 0.0
    with np.errstate(over="ignore"):
        return row if is_share else np.asarray(1.0 / (1.0 + np.exp(-row)))


def _in_input(
    head: DetectionHead,
    corners: Floats,
    description: ModelDescription,
    outputs: Outputs,
    frame: Frame | None,
) -> Floats:
    """Return corners in pixels of the input.

    Without a frame and a known size of the input, corners stay in the unit of the model.
    """
    size = head.size or (0, 0)
    if frame is not None:
        size = (frame.input_height, frame.input_width)
    elif description.picture is not None:
        size = (description.picture.height, description.picture.width)
    if not all(size):
        return corners
    height, width = size
    if head.layout in _OF_CELLS:
        rows, columns = _plane(outputs[head.outputs[0]])
        return np.asarray(corners * np.array([width / columns, height / rows] * 2))
    return np.asarray(corners * np.array([width, height] * 2)) if head.is_of_shares else corners


def _plane(value: Tensor) -> tuple[int, int]:
    """Return rows and columns of a map [1, channels, rows, columns], [1, rows, columns, 1] …"""
    shape = value.shape[:-1] if value.ndim > 3 and value.shape[-1] == 1 else value.shape
    return (shape[-2], shape[-1]) if len(shape) > 1 else (1, value.size)
