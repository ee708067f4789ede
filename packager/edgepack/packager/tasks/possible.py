"""List the tasks that fit an output of unknown meaning, for messages."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.likelihood import are_probabilities
from edgepack.tasks.values.parts import boxes_in
from edgepack.tasks.values.strict import FEWEST_IN_MAP, NARROWEST, is_row
from edgepack.tasks.values.vectors import common_length

_COLORS = 3
"""Channels of a picture in color."""

_AXES = 4
"""Of maps: picture, channels, height, width."""

_SIDES = 4
"""Channels of the distances to the sides of a box."""


def possible_tasks(values: Sequence[Tensor], *, is_part_of_boxes: bool = False) -> tuple[str, ...]:
    """Return the tasks that fit an output's shape and values, the likeliest first.

    Args:
        values: The float model's, one array a sample.
        is_part_of_boxes: Whether the output is a map of a detector, see `box_maps`.
    """
    first = values[0]
    is_map = first.ndim > 2 and not is_row(values)
    if first.dtype.kind != "f":
        classes = ("segmentation", "classification") if is_map else ("classification",)
        has_texts = len({value.shape for value in values}) > 1
        return (*classes, *(["transcript"] if has_texts else []), "values")
    flat = np.concatenate([value.ravel() for value in values])
    flat = flat[np.isfinite(flat)]
    is_signed = bool((flat < 0.0).any() and (flat > 0.0).any())
    is_share, is_unit = are_probabilities(values), common_length(values) > 0.0
    width = first.shape[-1] if first.ndim else 1
    is_vector = is_unit or (width >= NARROWEST and first.ndim < 4)
    is_picture = first.ndim > 3 and is_map
    channels = min(first.shape[1], first.shape[-1]) if first.ndim > 3 else 1
    is_level = channels == 1 and not is_share and not is_part_of_boxes
    has_steps = first.ndim == 3 and is_map and not is_unit
    has_scores = has_steps and (is_share or bool((flat < 0.0).any()))
    has_boxes = first.ndim > 2 and bool(boxes_in([{"": value} for value in values], ("",)))
    is_of_classes = (is_share or is_signed) and channels != _COLORS
    fits = {  # Task: whether the task fits, and whether the task is likelier than `values`.
        "detections": (has_boxes, True),
        "embedding": (is_unit, True),
        "sums": (is_map and not is_signed, is_level),
        "depth": (is_map and not is_signed, is_level),
        "picture": (is_picture, channels in (1, _COLORS) and not is_part_of_boxes),
        "segmentation": (is_picture, is_of_classes and not is_part_of_boxes),
        "probabilities": (is_share and not is_map, True),
        "threshold": (is_share, True),
        "values": (True, True),
        "anomaly": (first.size == 1 and not is_signed, False),
        "sound": (not is_map and width >= FEWEST_IN_MAP and is_signed, False),
        "tokens": (has_scores, False),
        "classification": ((not is_map or has_scores) and width > 1 and not is_unit, False),
        "text": (has_steps, False),
    }
    found = sorted((task for task in fits if fits[task][0]), key=lambda task: not fits[task][1])
    return tuple(found) if is_unit or not is_vector else (*found, "embedding")


def box_maps(outputs: Sequence[Outputs]) -> frozenset[str]:
    """Return the outputs that are maps of a detector: distances to the four sides of a box for each
    place (FCOS), and scores of the same places.

    Args:
        outputs: The float model's, one dict a sample.
    """
    maps = {
        name: [entry[name] for entry in outputs]
        for name, value in outputs[0].items()
        if value.ndim == _AXES and value.dtype.kind == "f" and value.size
    }
    scores = {name for name, values in maps.items() if are_probabilities(values)}
    found: set[str] = set()
    for name, values in maps.items():
        sizes = _sizes(values)
        if name in scores or _SIDES not in (sizes[0], sizes[-1]) or float(values[0].min()) < 0.0:
            continue
        places = sizes[1:] if sizes[0] == _SIDES else sizes[:-1]
        beside = {
            one for one in scores if places in (_sizes(maps[one])[1:], _sizes(maps[one])[:-1])
        }
        found |= {name, *beside} if beside else set()
    return frozenset(found)


def _sizes(values: Sequence[Tensor]) -> list[int]:
    """Return the sizes of a map without its batch."""
    return list(values[0].shape[1:])


def possible_of(outputs: Sequence[Outputs], name: str) -> tuple[str, ...]:
    """Return the tasks that fit an output; see `possible_tasks`.

    Args:
        outputs: The float model's, one dict a sample.
        name: The output.
    """
    is_part_of_boxes = name in box_maps(outputs)
    return possible_tasks([entry[name] for entry in outputs], is_part_of_boxes=is_part_of_boxes)
