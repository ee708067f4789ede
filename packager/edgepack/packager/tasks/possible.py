"""List the tasks that fit an output of unknown meaning, for messages."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.likelihood import are_probabilities
from edgepack.tasks.values.parts import boxes_in
from edgepack.tasks.values.strict import FEWEST_IN_MAP, NARROWEST, common_length, is_row


def possible_tasks(values: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the tasks that fit an output's shape and values, the likeliest first.

    Args:
        values: The float model's, one array a sample.
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
    fits = {
        "detections": first.ndim > 2 and bool(boxes_in([{"": value} for value in values], ("",))),
        "embedding": is_unit,
        "sums": is_map and not is_signed,
        "depth": is_map and not is_signed,
        "picture": first.ndim > 3 and is_map,
        "segmentation": first.ndim > 3 and is_map,
        "probabilities": is_share and not is_map,
        "threshold": is_share,
        "anomaly": first.size == 1 and not is_signed,
        "values": True,
        "sound": not is_map and width >= FEWEST_IN_MAP and is_signed,
        "classification": not is_map and width > 1 and not is_unit,
        "text": first.ndim == 3 and is_map and not is_unit,
    }
    found = [task for task, is_fitting in fits.items() if is_fitting]
    return tuple(found) if is_unit or not is_vector else (*found, "embedding")


def possible_of(outputs: Sequence[Outputs], name: str) -> tuple[str, ...]:
    """Return the tasks that fit an output; see `possible_tasks`.

    Args:
        outputs: The float model's, one dict a sample.
        name: The output.
    """
    return possible_tasks([entry[name] for entry in outputs])
