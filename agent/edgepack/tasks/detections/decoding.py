"""Boxes out of a detector's outputs: a function for each layout of `LAYOUTS`.

Facts missing in the graph are read off the float model's own values once (`settle`), and hold for
every candidate: probabilities or logits, background class, order of a box's numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgepack.tasks.arrays import Bools, Floats, Integers, Outputs
from edgepack.tasks.contract import LOSS
from edgepack.tasks.detections.boxes import NONE, Boxes, suppress
from edgepack.tasks.detections.layouts import (
    MOST_FOUND,
    Activation,
    BoxOrder,
    DetectionHead,
    LayoutName,
)
from edgepack.tasks.detections.regions import find_regions

PICTURE_BITS = 32
"""The picture's number in a batch is in a class's bits from here on."""

_COORDINATES = 4
_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
LEVEL_STRIDES = (4, 8, 16, 32, 64, 128)
"""Pixels between the places of one level."""

_LOGARITHMS_BELOW = 6.0
"""Sizes of a map, in its cells, are logarithms where none is larger: e⁶ is more than a map has."""

_OF_SHARES = ("ssd", "detr")
_HIGHEST_SCORE = 1.01
"""Scores are shares, apart from rounding; what is declared as scores may be coordinates."""

_LARGEST_SHARE = 2.0
"""A share of a picture is near 0 … 1, beyond where an object is cut off; pixels go far beyond."""

Tensor = npt.NDArray[Any]

Given = Mapping[str, Tensor]
"""Arrays of one picture by role."""


class _Places(msgspec.Struct, frozen=True, kw_only=True):
    """Raw numbers of a picture's places.

    Attributes:
        boxes: (places, 4), in the head's order.
        scores: (places, classes), before the activation.
        objectness: (places,), likewise; None where there is none.
    """

    boxes: Tensor
    scores: Tensor
    objectness: Tensor | None = None


def find_boxes(head: DetectionHead, outputs: Outputs) -> Boxes:
    """Return the boxes of a sample, from slightly below the layout's lowest threshold.

    Args:
        head: A settled head.
        outputs: The model's outputs. Invalid numbers, such as NaN, give no box.
    """
    found = []
    with np.errstate(over="ignore", invalid="ignore"):
        for number, given in enumerate(_pictures(head, outputs)):
            boxes = _DECODERS.get(head.layout, _of_places)(head, given)
            is_found = (boxes.scores >= head.facts.least) & _are_finite(boxes)
            boxes = boxes.pick(is_found)
            if not head.facts.is_suppressed:
                boxes = suppress(boxes)
            found.append(replace(boxes, classes=boxes.classes + (number << PICTURE_BITS)))
    return Boxes(
        corners=np.concatenate([NONE.corners, *(boxes.corners for boxes in found)]),
        scores=np.concatenate([NONE.scores, *(boxes.scores for boxes in found)]),
        classes=np.concatenate([NONE.classes, *(boxes.classes for boxes in found)]),
    )


def settle(head: DetectionHead, expected: Sequence[Outputs]) -> DetectionHead | None:
    """Return the head with all facts for decoding.

    Args:
        head: Facts from the graph, its metadata or a person.
        expected: The float model's outputs, a dict per sample.

    Returns:
        None if the outputs do not fit the head: inconsistent sizes, scores beyond 1, or boxes
        relative to unknown anchors.
    """
    head = replace(
        head,
        order=head.order or head.facts.order,
        activation=head.activation or head.facts.activation,
    )
    pictures = [given for outputs in expected for given in _pictures(head, outputs)]
    try:
        if not head.facts.activation:
            head = _settle_scores(head, pictures)
        settled = _settle_order(head, pictures)
    except (IndexError, ValueError):
        return None
    if settled is None:
        return None
    found = [find_boxes(settled, outputs) for outputs in expected]
    if any(boxes.scores.max(initial=0.0) > _HIGHEST_SCORE for boxes in found):
        return None
    corners = np.concatenate([boxes.corners for boxes in found])
    return replace(settled, is_of_shares=_are_shares(settled, corners))


def _are_shares(head: DetectionHead, corners: Floats) -> bool:
    """Return True if boxes are in shares of the picture, as those of DETR and SSD are."""
    if not len(corners):
        return head.layout in _OF_SHARES
    return float(np.abs(corners).max()) <= _LARGEST_SHARE


def _pictures(head: DetectionHead, outputs: Outputs) -> Iterator[Given]:
    """Yield the outputs of each picture of a batch."""
    arrays = [outputs[name] for name in head.outputs]
    if arrays[0].ndim <= head.facts.rank:
        yield dict(zip(head.roles, arrays, strict=True))
        return
    for picture in zip(*arrays, strict=True):
        yield dict(zip(head.roles, picture, strict=True))


def _settle_scores(head: DetectionHead, pictures: Sequence[Given]) -> DetectionHead:
    """Return the head with its activation (probabilities or logits) and background class.

    A declared activation stays; only sigmoids have no background class.
    """
    if head.layout == "centernet":
        values = [given["centres"] for given in pictures]
        return replace(head, activation=head.activation or _activation(values))
    places = [_PLACES[head.layout](head, given) for given in pictures]
    scores = np.concatenate([place.scores for place in places])
    activation = head.activation or _activation([scores])
    if place_objectness := [p.objectness for p in places if p.objectness is not None]:
        both = [scores, *place_objectness]
        return replace(head, activation=head.activation or _activation(both))
    if head.activation == "sigmoid":
        return head
    is_shared = bool(np.allclose(scores.sum(axis=1), 1.0, atol=1e-3))
    if head.facts.roles == ("boxes",) or scores.shape[1] < 2:
        return replace(head, activation=activation)
    winner, wins = np.unique(scores.argmax(axis=1), return_counts=True)
    is_common = 2 * wins.max() > len(scores) and np.median(scores.max(axis=1)) > 0.0
    if not is_common or (activation == "none" and not is_shared):
        return replace(head, activation=activation)
    background = int(winner[wins.argmax()])
    return replace(
        head,
        activation="none" if activation == "none" else "softmax",
        background=background,
    )


def _activation(values: Sequence[Tensor]) -> Activation:
    is_within = all(float(v.min()) >= 0.0 and float(v.max()) <= 1.0 for v in values if v.size)
    return "none" if is_within else "sigmoid"


def _settle_order(head: DetectionHead, pictures: Sequence[Given]) -> DetectionHead | None:
    """Return the head with its order (corners, or centre and sizes); None if neither fits.

    A head with findings at most places is rejected, too.
    """
    if head.layout not in _PLACES:
        return head
    found, count = [NONE.corners], 0
    for given in pictures:
        places = _PLACES[head.layout](head, given)
        found.append(places.boxes[_best(head, places)[1] >= head.facts.thresholds[0]])
        count += len(places.boxes)
    boxes = np.concatenate(found)
    is_sparse = head.facts.is_suppressed or head.facts.is_by_level
    if not is_sparse and len(boxes) > MOST_FOUND * count:
        return None
    orders: dict[BoxOrder, Tensor] = {
        "xyxy": np.all(boxes[:, 2:] > boxes[:, :2], axis=1),
        "cxcywh": np.all(boxes[:, 2:] > 0.0, axis=1),
    }
    for order, is_right in orders.items():
        if head.order in ("", order) and (not len(boxes) or is_right.mean() >= 1.0 - LOSS):
            return replace(head, order=order)
    return None


def _of_places(head: DetectionHead, given: Given) -> Boxes:
    places = _PLACES[head.layout](head, given)
    classes, scores = _best(head, places)
    is_found = scores >= head.facts.least
    boxes = places.boxes[is_found].astype(np.float64)
    return Boxes(
        corners=boxes if head.order == "xyxy" else _corners(boxes),
        scores=scores[is_found].astype(np.float64),
        classes=classes[is_found],
    )


def _best(head: DetectionHead, places: _Places) -> tuple[Integers, Floats]:
    """Return the best class of each place, and its score as a probability."""
    scores = places.scores
    if head.activation == "softmax":
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores = powers / powers.sum(axis=1, keepdims=True)
    if head.background >= 0:
        scores = np.delete(scores, head.background, axis=1)
    classes = scores.argmax(axis=1)
    best = np.take_along_axis(scores, classes[:, None], axis=1)[:, 0]
    if head.activation == "sigmoid":
        best = _sigmoid(best)
    if places.objectness is not None:
        share = places.objectness
        best = best * (_sigmoid(share) if head.activation == "sigmoid" else share)
    return classes, best


def _sigmoid(logits: Tensor) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def _corners(boxes: Floats) -> Floats:
    half = boxes[:, 2:] / 2.0
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def _are_finite(boxes: Boxes) -> Bools:
    return np.asarray(np.isfinite(boxes.corners).all(axis=1))


def _rows(array: Tensor) -> Tensor:
    """Return places as rows: there are more places than channels."""
    return array.T if array.shape[0] < array.shape[1] else array


def _yolo(head: DetectionHead, given: Given, first: int = _COORDINATES) -> _Places:
    """Return places from rows of a box and, from column `first` on, a score of each class."""
    rows = _rows(given["boxes"])
    end = first + (head.classes or rows.shape[1] - first)
    return _Places(boxes=rows[:, :_COORDINATES], scores=rows[:, first:end])


def _yolo_objectness(head: DetectionHead, given: Given) -> _Places:
    objectness = _rows(given["boxes"])[:, _COORDINATES]
    return replace(_yolo(head, given, first=_COORDINATES + 1), objectness=objectness)


def _yolox(head: DetectionHead, given: Given) -> _Places:
    places = _yolo_objectness(head, given)
    cells, strides = _grid(head, len(places.boxes))
    boxes = places.boxes.astype(np.float64)
    boxes = np.concatenate([boxes[:, :2] + cells, np.exp(boxes[:, 2:])], axis=1) * strides
    return replace(places, boxes=boxes)


def _grid(head: DetectionHead, count: int) -> tuple[Floats, Floats]:
    """Return column and row of each cell, and its size in pixels.

    Raises:
        ValueError: No usual grid has as many cells.
    """
    height, width = head.size or (0, 0)
    for strides in _STRIDES:
        sizes = [(-(-height // stride), -(-width // stride)) for stride in strides]
        if sum(rows * columns for rows, columns in sizes) == count:
            cells = [np.indices(size).reshape(2, -1)[::-1].T for size in sizes]
            steps = np.repeat(strides, [len(entry) for entry in cells])
            return np.concatenate(cells).astype(np.float64), steps[:, None].astype(np.float64)
    raise ValueError(f"no grid has {count} cells")


def _boxes_and_scores(head: DetectionHead, given: Given) -> _Places:
    boxes, scores = given["boxes"].reshape(-1, _COORDINATES), given["scores"]
    scores = scores.reshape(scores.shape[0], -1)
    if scores.shape[0] != len(boxes):
        scores = scores.T
    if len(scores) != len(boxes):
        raise ValueError(f"{len(boxes)} boxes and {len(scores)} scores")
    return _Places(boxes=boxes, scores=scores)


def _gfl(head: DetectionHead, given: Given) -> _Places:
    """Return boxes from the means of each side's distribution, in strides around cell centres."""
    boxes, scores = [], []
    for level in range(len(given) // len(head.facts.roles)):
        score, _ = _level(head, given[f"scores{level}"])
        sides, stride = _level(head, given[f"sides{level}"])
        powers = sides.reshape(len(sides), _COORDINATES, -1).astype(np.float64)
        powers = np.exp(powers - powers.max(axis=-1, keepdims=True))
        bins = np.arange(powers.shape[-1])
        lengths = (powers * bins).sum(axis=-1) / powers.sum(axis=-1) * stride
        cells = np.indices(_cells(head, stride)).reshape(2, -1)[::-1].T
        centres = (cells + 0.5) * stride
        boxes.append(np.concatenate([centres - lengths[:, :2], centres + lengths[:, 2:]], axis=1))
        scores.append(score)
    return _Places(boxes=np.concatenate(boxes), scores=np.concatenate(scores))


def _level(head: DetectionHead, array: Tensor) -> tuple[Tensor, int]:
    """Return the places of a level as rows, and their stride in pixels.

    Raises:
        ValueError: No grid over the picture has as many places.
    """
    for stride in LEVEL_STRIDES:
        cells = _cells(head, stride)
        places = cells[0] * cells[1]
        if array.shape[:-1] in ((places,), cells):
            return array.reshape(places, -1), stride
        if array.shape[1:] in ((places,), cells):
            return array.reshape(-1, places).T, stride
    raise ValueError(f"no grid has the places of {array.shape}")


def _cells(head: DetectionHead, stride: int) -> tuple[int, int]:
    height, width = head.size or (0, 0)
    return -(-height // stride), -(-width // stride)


def _suppressed(head: DetectionHead, given: Given) -> Boxes:
    rows = given["boxes"]
    if rows.shape[-1] == _COORDINATES + 3:  # the picture's number, corners, class, score
        rows = rows[:, (1, 2, 3, 4, 6, 5)]
    return Boxes(
        corners=rows[:, :_COORDINATES].astype(np.float64),
        scores=rows[:, _COORDINATES].astype(np.float64),
        classes=np.nan_to_num(rows[:, _COORDINATES + 1]).round().astype(np.int64),
    )


def _labelled(head: DetectionHead, given: Given) -> Boxes:
    return Boxes(
        corners=given["boxes"].reshape(-1, _COORDINATES).astype(np.float64),
        scores=given["scores"].ravel().astype(np.float64),
        classes=given["labels"].ravel().astype(np.int64),
    )


def _centernet(head: DetectionHead, given: Given) -> Boxes:
    """Return the peaks of the map of centres; sizes and offsets are in units of cells."""
    centres = given["centres"].astype(np.float64)
    if head.activation == "sigmoid":
        centres = _sigmoid(centres)
    around = np.pad(centres, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(1, 2))
    is_peak = (centres >= windows.max(axis=(-1, -2))) & (centres >= head.facts.least)
    classes, rows, columns = np.nonzero(is_peak)
    sizes = given["sizes"][:, rows, columns].T.astype(np.float64)
    if sizes.max(initial=0.0) < _LOGARITHMS_BELOW:
        sizes = np.exp(sizes)
    offsets = given["offsets"][:, rows, columns].T
    middles = np.stack([columns, rows], axis=1) + offsets
    return Boxes(
        corners=_corners(np.concatenate([middles, sizes], axis=1)),
        scores=centres[classes, rows, columns],
        classes=classes,
    )


def _text_map(head: DetectionHead, given: Given) -> Boxes:
    given_map = given["map"]
    return find_regions(given_map.reshape(given_map.shape[-2:]).astype(np.float64))


_PLACES: Mapping[LayoutName, Callable[[DetectionHead, Given], _Places]] = {
    "yolo": _yolo,
    "yolo-objectness": _yolo_objectness,
    "yolox": _yolox,
    "gfl": _gfl,
    "ssd": _boxes_and_scores,
    "detr": _boxes_and_scores,
}

_DECODERS: Mapping[LayoutName, Callable[[DetectionHead, Given], Boxes]] = {
    "suppressed": _suppressed,
    "labelled": _labelled,
    "centernet": _centernet,
    "text-map": _text_map,
}
