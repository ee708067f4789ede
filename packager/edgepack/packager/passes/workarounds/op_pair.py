"""Workarounds for operators that are wrong next to others; with 16 bits.

On maps of 9 to 12 rows, and no others, operators behind a convolution were wrong. In a detector
with such maps the output was 8 to 14 % off, varying between runs.

Workarounds for operators that are wrong by themselves: equivalent other operators.

Averages over windows that reach beyond a map, with padding that no provider counts otherwise.
"""

import math
from collections.abc import Sequence

import numpy as np
from onnx import helper

from edgepack.packager.graph.node_chains import producer
from edgepack.packager.passes.workarounds.site import Site

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_WRONG_MAP_ROWS = range(9, 13)
_WRONG_TANH_ROWS = 16


def part_sigmoid(site: Site) -> None:
    """Multiply by 1 before the product of two convolutions, if either has a Sigmoid.

    Both may be the same (SiLU). On 10 rows the product was off in the first and the last two, by 30
    % of the whole; with the workaround each is right to 0.01 %.
    """
    for place, name in enumerate(site.node.input):
        sigmoid = producer(site.index, site.node.input[1 - place], "Sigmoid")
        if sigmoid and _is_wrong_map(site, name) and _is_convolution(site, sigmoid.input[0]):
            inputs, shape = list(site.node.input), site.index.shapes[name]
            apart, factors = f"{site.node.output[0]}/apart", [name, site.one(name)]
            inputs[place] = site.put("Mul", factors, "apart", shape=shape, output=apart)
            site.put_changed(inputs=inputs)
            return


def flatten_softplus(site: Site) -> None:
    """Flatten a Softplus of a convolution to a single row: the error falls from 30..53 % to 1 %.

    A product with 1 between the two does not help.
    """
    if _is_wrong_map(site, site.node.input[0]):
        _flatten(site)


def flatten_tanh(site: Site) -> None:
    """Flatten a Tanh of 16 rows to a single row.

    After a matrix product and before a product the Tanh was off by more than its size, varying
    between runs; with any other number of rows the result is right, and with a single row next to
    any operator.
    """
    shape = site.index.shapes.get(site.node.input[0], ())
    if len(shape) > 1 and shape[-2] == _WRONG_TANH_ROWS and set(shape[:-2]) <= {1}:
        _flatten(site)


def _is_convolution(site: Site, name: str) -> bool:
    return producer(site.index, name, *_CONVOLUTIONS) is not None


def _is_wrong_map(site: Site, name: str) -> bool:
    shape = site.index.shapes.get(name, ())
    return len(shape) == 4 and shape[2] in _WRONG_MAP_ROWS and _is_convolution(site, name)


def _flatten(site: Site) -> None:
    """Reshape the input of an elementwise node to a single row, and restore the shape."""
    name = site.node.input[0]
    sizes = site.sizes(name)
    if sizes is None:
        return
    whole = [1, math.prod(sizes)]
    flat = site.put("Reshape", [name, site.constant("flat/shape", [1, -1])], "flat", shape=whole)
    row = site.put_changed(inputs=[flat], word="row", shape=whole)
    site.put("Reshape", [row, site.constant("row/shape", sizes)], "row")


_WIDEST_ROW = 16
"""Values in the rows of a table of which the last was seen to be read wrongly."""


def divide(site: Site) -> None:
    """Rewrite a Reciprocal as 1 / x.

    For inputs .0106 … .185 the result was .185 / x: 1 / x times the greatest input below 1; in a
    model's layer normalization the output was 128 % off. The quotient is right to .03 %.
    """
    (name,) = site.node.input
    site.put_changed(op_type="Div", inputs=[site.one(name), name])


def raise_e(site: Site) -> None:
    """Rewrite a Pow with a repeated base as Exp(x * log base): its shape differs from the output's.

    The Pow was right in the first value of each repetition and 0 in the others; the rewrite is
    right to 0.01 %.
    """
    base_name, exponent = site.node.input
    base, shape = site.index.constant(base_name), site.index.shapes.get(site.node.output[0])
    if base is None or shape in (None, base.shape) or not site.index.is_float(exponent):
        return
    values = base.astype(np.float64)
    if (values > 0).all():
        logarithm = site.constant("log", np.log(values).astype(np.float32))
        site.put("Exp", [site.put("Mul", [exponent, logarithm], "product", shape=shape)], "exp")


def sum_last(site: Site) -> None:
    """Rewrite a CumSum to the last axis between two Transposes: other axes add up zero points."""
    name, given = site.node.input[0], site.index.constant(site.node.input[1])
    shape = site.index.shapes.get(name)
    if given is None or not shape or not site.index.is_float(name):
        return
    axis, last = int(given.item()) % len(shape), len(shape) - 1
    if axis == last:
        return
    swap = list(range(len(shape)))
    swap[axis], swap[last] = last, axis
    sizes = [shape[place] for place in swap]
    turned = site.put("Transpose", [name], "turned", shape=sizes, perm=swap)
    constant = site.constant("axis", last)
    summed = site.put_changed(inputs=[turned, constant], word="summed", shape=sizes)
    site.put("Transpose", [summed], "summed", perm=swap)


def read_longer_table(site: Site) -> None:
    """Rewrite a Gather with computed indices: double a narrow table, end to end.

    So the last row is never requested, and an index from the end finds the same row.
    """
    name, indices = site.node.input
    table, axis = site.index.constant(name), site.attributes.get("axis", 0)
    if indices not in site.index.producers or table is None or not site.index.is_float(name):
        return
    if axis % max(table.ndim, 1) == 0 and table.size and table[0].size <= _WIDEST_ROW:
        longer = site.shared(f"{name}/longer", np.concatenate([table, table]))
        site.put_changed(inputs=[longer, indices])


def name_zero(site: Site) -> None:
    """Add the omitted 0 to a Pad of floats.

    Without an explicit 0, if zero stood for the lowest integer, -128, the padding was filled with
    the highest.
    """
    data, pads, *rest = site.node.input
    mode = site.attributes.get("mode", b"constant")
    if mode == b"constant" and site.index.is_float(data) and not any(rest[:1]):
        zero = site.shared("edgepack/zero", np.array(0.0, np.float32))
        site.put_changed(inputs=[data, pads, zero, *rest[1:]])


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
