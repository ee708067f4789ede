"""Inputs of GPTQ: products with constant weights as matrices, and second moments of their inputs.

A convolution is a matrix product of its windows (im2col), a product for each group.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import helper

from edgepack.packager.graph.queries import GraphIndex, attribute
from edgepack.packager.memory import divide_by_size
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.gptq import Moments
from edgepack.packager.quantization.static.plan import NodePlan, WeightUse
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Integers, Singles, Tensor

_MOST_ROWS = 256
"""Rows that a sample gives of each product: windows beside each other say nearly the same."""

_MOST_BYTES = 128 << 20


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """A Conv, Gemm or MatMul with constant weights.

    Attributes:
        node: The node.
        use: Its weights.
        shape: Stored shape of the weights.
        groups: Groups of a Conv; 1 for other operators.
        is_transposed: Whether the output channels are the last axis of the weights.
    """

    node: onnx.NodeProto
    use: WeightUse
    shape: tuple[int, ...]
    groups: int
    is_transposed: bool

    @property
    def columns(self) -> int:
        """Length of the sums that the product makes."""
        return self.shape[0] if self.is_transposed else int(np.prod(self.shape[1:]))

    def to_matrix(self, values: Tensor) -> Tensor:
        """Return values in the weights' shape as (groups, rows, columns)."""
        flat = values.T if self.is_transposed else values.reshape(self.shape[0], -1)
        return flat.reshape(self.groups, -1, self.columns)

    def from_matrix(self, values: Tensor) -> Tensor:
        """Return the reverse of `to_matrix`."""
        flat = values.reshape(-1, self.columns)
        return np.ascontiguousarray(flat.T if self.is_transposed else flat.reshape(self.shape))

    def rows(self, data: Singles) -> Singles:
        """Return the inputs of the weights, float32 (groups, rows, columns); evenly picked."""
        if self.node.op_type == "Conv":
            return _windows(self, data)
        flat = data.reshape(-1, data.shape[-1])
        return flat[_evenly(len(flat))][None]


def find_product(index: GraphIndex, plan: NodePlan) -> Product | None:
    """Return the product of a quantized node; None for other nodes, or for shared weights."""
    node = index.graph.node[plan.position]
    if plan.weight is None or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return None
    use = plan.weight[1]
    shape = tuple(size or 0 for size in index.shapes[use.name])
    if len(index.consumers.get(use.name, ())) != 1 or use.name in index.body_reads:
        return None
    if node.op_type != "Conv" and (len(shape) != 2 or attribute(node, "transA")):
        return None
    return Product(
        node=node,
        use=use,
        shape=shape,
        groups=attribute(node, "group", 1),
        is_transposed=node.op_type != "Conv" and not attribute(node, "transB"),
    )


def parts_that_fit(
    index: GraphIndex, products: Sequence[Product], most_bytes: int = _MOST_BYTES
) -> list[list[Product]]:
    """Divide products so that the moments and inputs of each part take at most so many bytes.

    Args:
        index: The float graph with shapes.
        products: Products in the order of processing.
        most_bytes: Room for a part; a product that alone needs more is a part by itself.
    """

    def size(product: Product) -> int:
        known = [size for size in index.shapes.get(product.node.input[0], ()) if size]
        return 2 * 4 * product.groups * product.columns**2 + 4 * int(np.prod(known or [0]))

    return divide_by_size(((product, size(product)) for product in products), most_bytes)


def measure_halves(
    model: onnx.ModelProto,
    products: Sequence[Product],
    samples: Samples,
    path: Path,
    progress: Progress,
) -> list[tuple[Moments, Moments]]:
    """Return the sum of x^T x over the inputs of each product, over every other sample and over the
    rest.

    The samples are read once, individually.

    Args:
        model: The float model; not changed.
        products: Some of its products.
        samples: At least two.
        path: Where the instrumented model is written.
        progress: Called for each sample.

    Returns:
        For each product two times float32 (groups, columns, columns).
    """
    copy = deepcopy(model)
    del copy.graph.output[:]
    for name in dict.fromkeys(product.node.input[0] for product in products):
        copy.graph.output.append(helper.make_empty_tensor_value_info(name))
    # Fused, what a node gives would depend on what else is looked at, and with it the bytes.
    runner = ModelRunner(copy, path, optimize=False)
    found = [
        tuple(np.zeros((p.groups, p.columns, p.columns), np.float32) for _ in range(2))
        for p in products
    ]
    for number, feeds in enumerate(samples):
        values = runner.run(feeds)
        for product, halves in zip(products, found, strict=True):
            rows = product.rows(values[product.node.input[0]].astype(np.float32))
            with np.errstate(over="ignore", invalid="ignore"):  # whoever reads them looks
                halves[number % 2][...] += np.matmul(rows.transpose(0, 2, 1), rows)
        progress(BuildStep(detail="inputs of products", done=number + 1, total=samples.count))
    return [(halves[0], halves[1]) for halves in found]


def _windows(product: Product, data: Singles) -> Singles:
    """Return the windows of a convolution, float32 (groups, rows, columns)."""
    node, kernel = product.node, product.shape[2:]
    axes = len(kernel)
    strides = attribute(node, "strides", [1] * axes)
    dilations = attribute(node, "dilations", [1] * axes)
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    margins = _margins(node, data.shape[2:], spans, strides)
    padded = np.pad(data, [(0, 0), (0, 0), *margins])
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, spans, axis=tuple(range(2, 2 + axes))
    )
    both = slice(None)
    stepped: tuple[slice, ...] = (both, both, *(slice(None, None, s) for s in strides))
    windows = windows[(*stepped, *(slice(None, None, d) for d in dilations))]
    batch, channels, *places = windows.shape[: 2 + axes]
    grouped = windows.reshape(batch, product.groups, channels // product.groups, *places, *kernel)
    where = np.unravel_index(_evenly(batch * int(np.prod(places))), (batch, *places))
    by_place = np.moveaxis(grouped, (1, 2), (1 + axes, 2 + axes))
    picked = by_place[where]  # a row for each place, then groups, channels and the window
    return np.moveaxis(picked.reshape(len(picked), product.groups, -1), 1, 0)


def _margins(
    node: onnx.NodeProto,
    sizes: Sequence[int],
    spans: Sequence[int],
    strides: Sequence[int],
) -> list[tuple[int, int]]:
    axes = len(spans)
    automatic = attribute(node, "auto_pad", b"NOTSET")
    if automatic in (b"SAME_UPPER", b"SAME_LOWER"):
        total = [
            max((-(-size // stride) - 1) * stride + span - size, 0)
            for size, span, stride in zip(sizes, spans, strides, strict=True)
        ]
        first = [(n + (automatic == b"SAME_LOWER")) // 2 for n in total]
        return [(a, n - a) for a, n in zip(first, total, strict=True)]
    pads = attribute(node, "pads") if automatic != b"VALID" else None
    given = list(pads or [0] * (2 * axes))
    return list(zip(given[:axes], given[axes:], strict=True))


def _evenly(count: int) -> Integers:
    """Return indices of at most `_MOST_ROWS` of so many rows."""
    few = min(count, _MOST_ROWS)
    return np.arange(few, dtype=np.int64) * count // max(few, 1)
