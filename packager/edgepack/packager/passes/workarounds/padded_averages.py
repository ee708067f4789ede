"""Writes averages over windows that reach beyond a map so that no provider counts them otherwise.

Qualcomm's HTP simulator (onnxruntime-qnn 2.7.0) computes wrongly

- windows that `ceil_mode` adds: they come out as if more, or nothing, lay in them;
- padding that does not count: it does on maps of one row, one column or one channel; and two rows
  or more of it are counted now so, now so, or end the simulator, mostly with 8 bits.

There the padding is counted, which the simulator always does rightly, and a product with a constant
sets right what it took away. With 8 bits that costs some of what is at the edge: a corner that is a
ninth of its window is rounded as that, and then multiplied.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.node_chains import replace
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.passes.workarounds.run_node import run_alone

_REWRITTEN = ("ceil_mode", "count_include_pad", "pads")


class _Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What an AveragePool says, with the sizes of its map.

    Attributes:
        sizes, outputs: Of the axes that are pooled, before and after.
        pads: Before each axis, then after each.
        counts_padding: Whether padding is a part of the average.
    """

    channels: int
    sizes: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    counts_padding: bool

    @property
    def whole_pads(self) -> tuple[int, ...]:
        """Padding that gives the same windows without `ceil_mode`."""
        axes = range(len(self.sizes))
        before = self.pads[: len(self.sizes)]
        reached = [(self.outputs[a] - 1) * self.strides[a] + self.kernel[a] for a in axes]
        after = [max(0, reached[a] - self.sizes[a] - before[a]) for a in axes]
        return (*before, *(max(pad, self.pads[len(before) + a]) for a, pad in enumerate(after)))

    def is_right(self, pads: tuple[int, ...]) -> bool:
        """Whether the simulator was right where such padding does not count: none, 1 on all sides,
        or 1 at the end of each axis, on maps that are not narrow."""
        axes = len(self.sizes)
        rightly = ((1,) * 2 * axes, (0,) * axes + (1,) * axes)
        is_narrow = 1 in (self.channels, *self.sizes)
        return not any(pads) or (pads in rightly and not is_narrow)


def rewrite_padded_average(
    graph: onnx.GraphProto, index: GraphIndex, opsets: Mapping[str, int], folder: Path
) -> int:
    """Rewrites each AveragePool of these kinds.

    Args:
        graph: The graph, with shapes; changed.
        index: Of this graph.
        opsets: Version of each domain.
        folder: For models of one node.

    Returns:
        How many were rewritten.
    """
    gone: set[str] = set()
    new: list[tuple[str, onnx.NodeProto]] = []
    for node in graph.node:
        pool = _read(index, node)
        if pool is None:
            continue
        is_added_to = pool.whole_pads != pool.pads
        if is_added_to or not (pool.counts_padding or pool.is_right(pool.pads)):
            gone.add(node.name)
            new.extend(
                (node.name, made) for made in _rewrite(graph, index, node, pool, opsets, folder)
            )
    replace(graph, gone, new)
    return len(gone)


def _read(index: GraphIndex, node: onnx.NodeProto) -> _Pool | None:
    if node.op_type != "AveragePool" or node.domain:
        return None
    given = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    before, after = index.shapes.get(node.input[0]), index.shapes.get(node.output[0])
    if before is None or after is None or None in (*before, *after):
        return None
    axes = len(before) - 2
    is_dilated = any(size != 1 for size in given.get("dilations", ()))
    if is_dilated or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    return _Pool(
        channels=before[1] or 0,
        sizes=_whole(before[2:]),
        outputs=_whole(after[2:]),
        kernel=tuple(given["kernel_shape"]),
        strides=tuple(given.get("strides", [1] * axes)),
        pads=tuple(given.get("pads", [0] * 2 * axes)),
        counts_padding=bool(given.get("count_include_pad", 0)),
    )


def _whole(sizes: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(size or 0 for size in sizes)


def _rewrite(
    graph: onnx.GraphProto,
    index: GraphIndex,
    node: onnx.NodeProto,
    pool: _Pool,
    opsets: Mapping[str, int],
    folder: Path,
) -> list[onnx.NodeProto]:
    """The average with padding of which the provider is right, and what makes it the same."""
    source, pads, name = node.input[0], pool.whole_pads, node.name
    element_type, outputs = index.types[source], index.shapes[node.output[0]]
    ones = np.ones((1, 1, *pool.sizes), dtype=np.float32)
    wanted = run_alone(node, {source: ones}, opsets, folder)
    average = onnx.NodeProto()
    average.CopyFrom(node)
    kept = [entry for entry in average.attribute if entry.name not in _REWRITTEN]
    del average.attribute[:]
    average.attribute.extend(kept)
    average.attribute.append(helper.make_attribute("pads", pads))
    counts_padding = not pool.is_right(pads)
    average.attribute.append(helper.make_attribute("count_include_pad", int(counts_padding)))
    factors = wanted / run_alone(average, {source: ones}, opsets, folder)
    if np.allclose(factors, 1.0, rtol=1e-6):
        return [average]
    average.output[0] = f"{name}/averaged"
    graph.value_info.append(helper.make_tensor_value_info(average.output[0], element_type, outputs))
    values = factors.astype(helper.tensor_dtype_to_np_dtype(element_type))
    graph.initializer.append(numpy_helper.from_array(values, f"{name}/factors"))
    inputs = [average.output[0], f"{name}/factors"]
    return [average, helper.make_node("Mul", inputs, [node.output[0]], name=f"{name}/factor")]
