"""Operators that are wrong next to others, parted from them; with 16 bits.

On maps of 9 to 12 rows, and no others, what follows a convolution was wrong. In a detector with
such maps the output was 8 to 14 % off, now this, now that.
"""

import math

from edgepack.packager.graph.node_chains import producer
from edgepack.packager.passes.workarounds.site import Site

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_WRONG_MAP_ROWS = range(9, 13)
_WRONG_TANH_ROWS = 16


def part_sigmoid(site: Site) -> None:
    """Multiply by 1 before the product of two convolutions, one with a Sigmoid.

    Both may be the same (SiLU). On 10 rows it was off in the first and the last two, by 30 % of the
    whole; each is right to 0.01 % so.
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
    """Flatten a Softplus of a convolution to one row: the error falls from 30..53 % to 1 %.

    A product with 1 between the two does not help.
    """
    if _is_wrong_map(site, site.node.input[0]):
        _flatten(site)


def flatten_tanh(site: Site) -> None:
    """Flatten a Tanh of 16 rows to one row.

    After a matrix product and before a product it was off by more than its size, now this, now
    that; of any other number of rows it is right, and of one row whatever is next to.
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
    """Reshape the input of an elementwise node to one row, and restore the shape afterwards."""
    name = site.node.input[0]
    sizes = site.sizes(name)
    if sizes is None:
        return
    whole = [1, math.prod(sizes)]
    flat = site.put("Reshape", [name, site.constant("flat/shape", [1, -1])], "flat", shape=whole)
    row = site.put_changed(inputs=[flat], word="row", shape=whole)
    site.put("Reshape", [row, site.constant("row/shape", sizes)], "row")
