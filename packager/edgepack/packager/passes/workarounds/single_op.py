"""Workarounds for operators that are wrong by themselves: equivalent other operators."""

import numpy as np

from edgepack.packager.passes.workarounds.site import Site

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
