"""Fixed sizes for a decoder with a growing cache: a token per step, and a cache with a mask.

Each step of such a decoder returns a cache that is larger than its input cache. With the sizes of a
prompt (an empty cache) the fixed graph takes no second step. The model generates text if a step
takes a single token, and the cache has places that a mask hides until filled; the application drops
a hidden place, later the oldest, after each step. Sizes are proposed only if hidden places change
no score: a decoder that takes its position from the size of the cache generates a wrong text.
"""

from collections.abc import Mapping

import numpy as np

from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.samples.recurrence import find_states, may_grow
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.shape_advice import Shapes, describe_options, run_with
from edgepack.packager.tensors.sequence import Feeds
from edgepack.packager.tensors.spec import TensorSpec

_PLACES = (128, 64, 32, 16)
"""Places of a cache to try, the most first: a table of positions may be short."""

_FILLED = 3
"""Places that hold tokens when hidden places are compared with a cache without them."""

_TOLERANCE = 1e-2
"""Largest difference of a score, as a share of the largest score: float16 models differ so much."""

_OR_CPU = "or build for a profile that takes open sizes, such as cpu"


def advise_cache(source: SourceModel, declarations: Mapping[str, InputDeclaration]) -> str:
    """Return options that fix the sizes of a decoder with a growing cache; "" for another model.

    Args:
        source: The model, with open sizes.
        declarations: Declared inputs by name.
    """
    inputs = {spec.name: spec for spec in source.inputs}
    outputs = {spec.name: spec for spec in source.outputs}
    pairs = find_states(source.inputs, source.outputs, declarations, fits=may_grow)
    growing = {
        state.input: axis
        for state in pairs.states
        if (axis := _growing_axis(inputs[state.input], outputs[state.output])) is not None
    }
    if not growing:
        return ""
    masks = [
        spec.name
        for spec in source.inputs
        if "mask" in spec.name.lower() and len(spec.shape) == 2 and isinstance(spec.shape[1], str)
    ]
    for places in _PLACES if masks else ():
        shapes = _shapes(source, growing, masks, places)
        if _hides_places(source, growing, masks, places):
            return (
                f"{describe_options(source.inputs, shapes)}  (the cache grows with each step, and "
                "a graph of fixed sizes cannot grow: these sizes take one token a step and keep "
                f"{places} places, which the mask hides until they are filled; samples and "
                f"application must feed them so), {_OR_CPU}"
            )
    return (
        "export the decoder with a cache of fixed size, a mask that hides empty places, and "
        "positions that do not count them (the cache grows with each step, and a graph of fixed "
        f"sizes cannot grow), {_OR_CPU}"
    )


def _hides_places(
    source: SourceModel, growing: Mapping[str, int], masks: list[str], places: int
) -> bool:
    """Return whether a step gives the same scores with and without hidden places."""
    short = run_with(source, _step(source, growing, masks, _FILLED))
    padded = run_with(source, _step(source, growing, masks, places))
    if short is None or padded is None:
        return False
    return all(
        np.allclose(values, padded[name], atol=_TOLERANCE * float(np.abs(values).max()))
        for name, values in short.items()
        if values.shape == padded[name].shape and values.size
    )


def _step(source: SourceModel, growing: Mapping[str, int], masks: list[str], places: int) -> Feeds:
    """Return inputs of a step: the last places hold tokens, equal for any size of the cache."""
    shapes = _shapes(source, growing, masks, places)
    feeds = {spec.name: np.ones(shapes[spec.name], np.dtype(spec.dtype)) for spec in source.inputs}
    for name in masks:
        feeds[name][:, : places - _FILLED] = 0
    for name, axis in growing.items():
        values = np.moveaxis(feeds[name], axis, 0)
        drawn = np.random.default_rng(0).normal(size=(_FILLED, *values.shape[1:]))
        values[places - _FILLED :] = drawn.astype(values.dtype)
    return feeds


def _growing_axis(spec: TensorSpec, output: TensorSpec) -> int | None:
    """Return the axis, behind the batch, that is open and has another size in the output."""
    pairs = enumerate(zip(spec.shape, output.shape, strict=True))
    axes = [
        axis for axis, (mine, other) in pairs if axis and isinstance(mine, str) and mine != other
    ]
    return axes[0] if len(axes) == 1 else None


def _shapes(
    source: SourceModel, growing: Mapping[str, int], masks: list[str], places: int
) -> Shapes:
    def size_of(spec: TensorSpec, axis: int, size: int | str) -> int:
        if isinstance(size, int):
            return size
        if growing.get(spec.name) == axis:
            return places
        return places + 1 if spec.name in masks and axis == 1 else 1

    return {
        spec.name: tuple(size_of(spec, axis, size) for axis, size in enumerate(spec.shape))
        for spec in source.inputs
    }
