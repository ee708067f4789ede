"""Averages over windows that reach beyond a map, with padding that no provider counts otherwise."""

from collections.abc import Sequence

import numpy as np
from onnx import helper

from edgepack.packager.passes.workarounds.site import Site

_UNSET = b"NOTSET"


def count_padding(site: Site) -> None:
    """Rewrite an AveragePool that counts its padding, and multiply by a constant otherwise.

    The wrong results: windows added by `ceil_mode` were computed as if more, or nothing, lay
    inside; and padding that does not count was counted on maps of a single row, column or channel.
    Two rows or more of such padding gave varying results, or ended the simulator, mostly with 8
    bits. Padding that counts is always right. With 8 bits the rewrite costs accuracy at the edge: a
    corner that is a ninth of its window is rounded, and then multiplied.
    """
    name, given = site.node.input[0], site.attributes
    before, after = site.sizes(name), site.sizes(site.node.output[0])
    is_plain = set(given.get("dilations", ())) <= {1} and given.get("auto_pad", _UNSET) == _UNSET
    if before is None or after is None or not is_plain:
        return
    axes = len(before) - 2
    pads = list(given.get("pads", [0] * 2 * axes))
    strides = np.array(given.get("strides", [1] * axes))
    reached = (np.array(after[2:]) - 1) * strides + given["kernel_shape"]
    needed = reached - before[2:] - pads[:axes]  # for the same windows without `ceil_mode`
    whole = [*pads[:axes], *np.maximum(pads[axes:], needed).tolist()]
    counts_padding = given.get("count_include_pad", 0) or _is_right(pads, before)
    if whole == pads and counts_padding:
        return
    ones = {name: np.ones((1, 1, *before[2:]), dtype=np.float32)}
    padded = {
        "ceil_mode": None,
        "pads": whole,
        "count_include_pad": int(not _is_right(whole, before)),
    }
    factors = site.run(site.node, ones) / site.run(site.changed(attributes=padded), ones)
    if np.allclose(factors, 1.0, rtol=1e-6):
        site.put_changed(attributes=padded)
        return
    averaged = site.put_changed(attributes=padded, word="averaged", shape=after)
    dtype = helper.tensor_dtype_to_np_dtype(site.type_of(name))
    site.put("Mul", [averaged, site.constant("factors", factors.astype(dtype))], "factor")


def _is_right(pads: Sequence[int], shape: Sequence[int]) -> bool:
    """Return True if padding that does not count was right: none, or on maps that are not narrow 1
    on all sides, or 1 at the end of each axis.
    """
    axes = len(pads) // 2
    rightly = ([1] * 2 * axes, [0] * axes + [1] * axes)
    return not any(pads) or (list(pads) in rightly and 1 not in shape[1:])
