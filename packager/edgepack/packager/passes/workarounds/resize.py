"""Resize, written so that no provider takes other rows and columns than ONNX Runtime does."""

import numpy as np

from edgepack.packager.passes.workarounds.site import Site
from edgepack.tasks.arrays import Integers

_SCALES, _SIZES = 2, 3
"""Which inputs hold the scales and the sizes."""

_DEFAULTS = {
    "mode": b"nearest",
    "coordinate_transformation_mode": b"half_pixel",
    "nearest_mode": b"round_prefer_floor",
    "keep_aspect_ratio_policy": b"stretch",
    "axes": None,
    "antialias": None,
}
_PLAIN = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
_BY_SCALE = (b"half_pixel", b"pytorch_half_pixel", b"asymmetric")
"""Transformations that do not ask how long the axis is."""

_MOST_REPEATED = 16
_WHOLE = 1e-4
Indices = Integers


def take_plainly(site: Site) -> None:
    """Rewrite a nearest Resize as `asymmetric` with `floor`: output i takes i * inputs // outputs.

    Many of ONNX's transformations and roundings were computed as another: half pixels with `floor`,
    for example, and sizes that a scale does not give exactly. A Resize with the same result as a
    plain Resize, by whole factors, becomes plain; any other becomes a Gather for each axis. ONNX
    Runtime computes the indices.
    """
    name, how = site.node.input[0], _settings(site)
    before, after = site.sizes(name), site.sizes(site.node.output[0])
    if how.get("mode") != b"nearest" or before is None or after is None:
        return
    taken = _taken(site, before, after)
    if taken is None:
        return
    is_whole, takes_plain = True, True
    for axis, indices in taken.items():
        size, count = before[axis], len(indices)
        is_whole &= size % count == 0 or count % size == 0
        takes_plain &= np.array_equal(indices, np.arange(count) * size // count)
    is_plain = all(how[word] == value for word, value in _PLAIN.items())
    if takes_plain and (is_whole or is_plain):
        if not is_plain:
            site.put_changed(attributes=_PLAIN)
        return
    *first, last = taken.items()
    shape = list(before)
    for axis, indices in first:  # an axis at a time, so that what lies between has a shape too
        shape[axis] = len(indices)
        name = _gather(site, name, axis, indices, shape)
    _gather(site, name, *last, None)


def make_sizes_whole(site: Site) -> None:
    """Rewrite a linear Resize to longer axes with scales of whole sizes, and cut the result.

    ONNX computes by the given scale: half of 13 rows are 6, each from two rows. With the ratio of
    sizes, 6 / 13, the result was 30 to 110 % off. Where the last row is repeated until the scale
    gives a whole size, both are the same.
    """
    name, how = site.node.input[0], _settings(site)
    before, after = site.sizes(name), site.sizes(site.node.output[0])
    scales = site.index.constant(site.node.input[_SCALES]) if _given_by(site) == _SCALES else None
    is_linear = how.get("mode") == b"linear"
    if not is_linear or how["coordinate_transformation_mode"] not in _BY_SCALE or scales is None:
        return
    if before is None or after is None or 0 in (*before, *after):
        return
    longer = [_whole(size, scale) for size, scale in zip(before, scales.tolist(), strict=True)]
    if before == tuple(longer) or None in longer:
        return
    known = [size or 0 for size in longer]
    sizes = [round(size * scale) for size, scale in zip(known, scales.tolist(), strict=True)]
    more = [size - was for size, was in zip(known, before, strict=True)]
    pads = site.constant("pads", [*(0 for _ in more), *more])
    repeated = site.put("Pad", [name, pads], "repeated", shape=known, mode="edge")
    inputs = [repeated, "", "", site.constant("sizes", sizes)]
    resized = site.put_changed(inputs=inputs, word="resized", shape=sizes)
    axes = [axis for axis, count in enumerate(more) if count]
    bounds = {
        "starts": [0 for _ in axes],
        "ends": [after[axis] for axis in axes],
        "axes": axes,
    }
    site.put("Slice", [resized, *(site.constant(*entry) for entry in bounds.items())], "cut")


def _settings(site: Site) -> dict[str, bytes | None]:
    """Return the settings of a Resize; empty for a crop, a filter or own axes."""
    how = {name: site.attributes.get(name, value) for name, value in _DEFAULTS.items()}
    is_plainly_sized = (
        how["keep_aspect_ratio_policy"] == b"stretch"
        and how["coordinate_transformation_mode"] != b"tf_crop_and_resize"
        and how["axes"] is how["antialias"] is None
    )
    return how if is_plainly_sized else {}


def _given_by(site: Site) -> int | None:
    inputs = site.node.input
    places = (_SIZES, _SCALES)
    return next((place for place in places if len(inputs) > place and inputs[place]), None)


def _taken(
    site: Site, before: tuple[int, ...], after: tuple[int, ...]
) -> dict[int, Indices] | None:
    """Return the input index of each output along each changed axis; None if unknown."""
    place = _given_by(site)
    given = None if place is None else site.index.constant(site.node.input[place])
    if place is None or given is None:
        return None
    alone = site.changed(inputs=["x", *[""] * (place - 1), "given"])
    taken: dict[int, Indices] = {}
    for axis, (size, resized) in enumerate(zip(before, after, strict=True)):
        if not size or not resized or (size == resized and given[axis] in (1, size)):
            continue
        shape = np.ones(len(before), dtype=np.int64)
        ones = shape.astype(given.dtype)
        shape[axis], ones[axis] = size, given[axis]
        ramp = np.arange(size, dtype=np.float32).reshape(shape)
        taken[axis] = site.run(alone, {"x": ramp, "given": ones}).reshape(-1).astype(np.int64)
    return taken


def _gather(site: Site, name: str, axis: int, indices: Indices, shape: list[int] | None) -> str:
    word = f"axis{axis}"
    constant = site.constant(f"{word}/indices", indices)
    return site.put("Gather", [name, constant], word, shape=shape, axis=axis)


def _whole(size: int, scale: float) -> int | None:
    """Return the least size, at least `size`, that a scale makes whole; None if too far."""
    fitting = (n * scale for n in range(size, size + _MOST_REPEATED))
    return next((size + more for more, s in enumerate(fitting) if abs(s - round(s)) < _WHOLE), None)
