"""Workarounds for operators that are wrong next to others; with 16 bits.

On maps of 9 to 12 rows, and no others, operators behind a convolution were wrong. In a detector
with such maps the output was 8 to 14 % off, varying between runs.
"""

import math

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
