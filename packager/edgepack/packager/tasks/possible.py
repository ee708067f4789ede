"""List the tasks that fit an output of unknown meaning, for messages."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.likelihood import are_probabilities
from edgepack.tasks.values.strict import FEWEST_IN_MAP, NARROWEST, common_length, is_row

_BOX = 4
_FEWEST_PLACES = 100


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
        "detections": is_map and _holds_shares(values),
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


def _holds_shares(values: Sequence[Tensor]) -> bool:
    """Return whether some channels of many places are shares, as the scores beside boxes are."""
    shape = values[0].shape
    if len(shape) != 3 or any(value.shape != shape for value in values):
        return False
    narrow = 1 if shape[1] < shape[2] else 2
    channels = np.moveaxis(np.concatenate(values), narrow, 0).reshape(shape[narrow], -1)
    are_shares = (channels.min(axis=1) >= 0.0) & (channels.max(axis=1) <= 1.0)
    is_dense = shape[3 - narrow] >= _FEWEST_PLACES and shape[narrow] > _BOX
    return is_dense and bool(are_shares[_BOX:].any()) and not are_shares[:_BOX].any()


def possible_of(outputs: Sequence[Outputs], name: str) -> tuple[str, ...]:
    """Return the tasks that fit an output; see `possible_tasks`.

    Args:
        outputs: The float model's, one dict a sample.
        name: The output.
    """
    return possible_tasks([entry[name] for entry in outputs])
