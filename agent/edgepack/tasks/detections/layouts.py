"""Layouts of detector outputs: a row per layout, and the matching of a model's outputs."""

from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

import msgspec

from edgepack.decoding import convert_value, decode_toml
from edgepack.tasks.description import ModelDescription, Source, TaskOutputs

DETECTIONS = "detections"

LayoutName = Literal[
    "yolo",
    "yolo-objectness",
    "yolox",
    "gfl",
    "suppressed",
    "ssd",
    "detr",
    "labelled",
    "centernet",
    "text-map",
]
BoxOrder = Literal["", "xyxy", "cxcywh"]
Activation = Literal["", "none", "sigmoid", "softmax"]

MOST_FOUND = 0.25
"""Share of the places at which a detector finds something, before suppression."""

MARGIN = 0.1
"""How far a score may be off and still be nearly the same."""

THRESHOLDS = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layout of boxes and scores in a detector's outputs.

    Attributes:
        words: Description for a person.
        roles: Role of each output; the first output is declared by the user.
        is_by_level: Whether each level of a pyramid has separate outputs: first the outputs of the
            first role for all levels, then of the second role. Only the graph shows these outputs.
        rank: Axes of the first output, for a single picture.
        order: Which numbers make a box; "" where the float model's values tell.
        activation: Activation of raw scores; "" if the float model's values decide.
        is_suppressed: Whether the graph contains non-maximum suppression.
        is_placed: Whether places count beyond an overlap, as in COCO's mean average precision.
        thresholds: Scores that applications hold boxes against, ascending.
        named: The threshold that a report counts boxes at.
    """

    words: str
    roles: tuple[str, ...] = ("boxes",)
    is_by_level: bool = False
    rank: int = 2
    order: BoxOrder = ""
    activation: Activation = ""
    is_suppressed: bool = False
    is_placed: bool = True
    thresholds: tuple[float, ...] = THRESHOLDS
    named: float = 0.25

    @property
    def others(self) -> tuple[str, ...]:
        """Roles of the further outputs that a declaration names."""
        return () if self.is_by_level else self.roles[1:]

    @property
    def least(self) -> float:
        """Least score of considered boxes, which may rise over the lowest threshold."""
        return self.thresholds[0] - MARGIN


_FILE = resources.files("edgepack.tasks.detections") / "layouts.toml"
LAYOUTS: Mapping[LayoutName, Layout] = decode_toml(_FILE.read_bytes(), dict[LayoutName, Layout])


class DetectionHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outputs of a model that tell boxes, and how.

    Attributes:
        layout: Their layout.
        outputs: Names, in the order of the layout's roles.
        size: Height and width of the picture, if fixed.
        classes: Number of classes; 0 if the sizes determine the number.
        order, activation: As the layout's; "" until the float model's values tell.
        background: Class that means nothing found; -1 where there is none.
        is_of_shares: Whether boxes are in shares of the picture, else in pixels or cells.
        source: How the layout is known.
    """

    layout: LayoutName
    outputs: tuple[str, ...]
    size: tuple[int, int] | None = None
    classes: int = 0
    order: BoxOrder = ""
    activation: Activation = ""
    background: int = -1
    is_of_shares: bool = False
    source: Source = "graph"

    @property
    def facts(self) -> Layout:
        """The row of its layout."""
        return LAYOUTS[self.layout]

    @property
    def roles(self) -> tuple[str, ...]:
        """The role of each output; by level followed by the level's number: `scores0`."""
        if not self.facts.is_by_level:
            return self.facts.roles
        levels = range(len(self.outputs) // len(self.facts.roles))
        return tuple(f"{role}{level}" for role in self.facts.roles for level in levels)

    @classmethod
    def of(cls, part: TaskOutputs) -> "DetectionHead":
        """Return the head that a part of a description states."""
        stated = {**part.settings, "outputs": part.outputs, "source": part.source}
        return convert_value(stated, cls)

    @property
    def part(self) -> TaskOutputs:
        """Return this head as a part of a description."""
        stated: dict[str, Any] = msgspec.to_builtins(self)
        settings = {key: stated[key] for key in stated if key not in ("outputs", "source")}
        return TaskOutputs(
            task=DETECTIONS, outputs=self.outputs, source=self.source, settings=settings
        )


def suppressed(description: ModelDescription) -> tuple[str, ...]:
    """Return the outputs with boxes that a selection in the graph gives, in any number."""
    part = description.part_of(DETECTIONS)
    return part.outputs if part and DetectionHead.of(part).facts.is_suppressed else ()
