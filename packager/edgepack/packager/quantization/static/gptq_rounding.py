"""Rounding of a plan's weights by GPTQ, as far as the gain holds on unseen samples.

A weight is rounded on half of the calibration samples and compared with its nearest integers on the
other half: only if its products are nearer there, the weight is rounded by GPTQ, on both halves.

Inputs of GPTQ: products with constant weights as matrices, and second moments of their inputs.

A convolution is a matrix product of its windows (im2col), a product for each group.
"""

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from msgspec.structs import replace
from onnx import helper

from edgepack.packager.graph.queries import GraphIndex, attribute
from edgepack.packager.memory import divide_by_size, return_freed_memory
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.gptq import Moments, output_error, round_by_gptq
from edgepack.packager.quantization.static.assign import Assignment
from edgepack.packager.quantization.static.plan import NodePlan, Plan, WeightUse
from edgepack.packager.quantization.static.scales import FloatArray, Scale, quantize, restore
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


Rounder = Callable[[Plan, Assignment], Assignment]
"""Adds integers to an assignment for weights that are not to be rounded to the nearest."""

_MOST_SAMPLES = 32


def to_nearest(_plan: Plan, scales: Assignment) -> Assignment:
    """Round every weight to the nearest integer."""
    return scales


class IntegerGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Grid with a step and a zero point for each row of each group: see `gptq.Grid`.

    Attributes:
        step, zero_point: float32 (groups, rows).
        lowest, highest: The integers' bounds.
    """

    step: Singles
    zero_point: Singles
    lowest: int
    highest: int

    def of_columns(self, columns: npt.NDArray[np.intp]) -> tuple[Singles, Singles]:
        """Return the same for every column."""
        return self.step, self.zero_point

    def restore(self, integers: Singles) -> Singles:
        """Return the reals of integers, (groups, rows, columns)."""
        return (integers - self.zero_point[..., None]) * self.step[..., None]


class _Rounded(NamedTuple):
    """A weight's integers, and the share that is left of its outputs' squared error.

    `integers` is None if the nearest integers are as good.
    """

    integers: npt.NDArray[np.integer] | None
    error_share: float


@dataclass
class GptqRounder:
    """Rounds weights on the first request with a scale, and stores the integers.

    The samples are read once where the moments of all products fit into memory. The integers of a
    weight depend on its scale and the inputs of the float model alone, so that all candidates share
    the integers, with any nodes float.

    Attributes:
        model: The float model.
        index: Its graph, indexed.
        samples: Calibration samples.
        folder: Folder for the instrumented model.
        progress: Called for each sample.
    """

    model: onnx.ModelProto
    index: GraphIndex
    samples: Samples
    folder: Path
    progress: Progress

    def __post_init__(self) -> None:
        self._few = self.samples.spread(_MOST_SAMPLES)
        self._rounded: dict[tuple[WeightUse, bytes], _Rounded] = {}

    def __call__(self, plan: Plan, scales: Assignment) -> Assignment:
        """Return the assignment with integers for the weights where GPTQ pays."""
        if self._few.count < 2:
            return scales
        found = (find_product(self.index, node) for node in plan.nodes)
        products = [product for product in found if product is not None]
        self._round_missing(products, scales)
        rounded = {
            product.use: self._rounded[_key(product.use, scales)].integers for product in products
        }
        return replace(
            scales, integers={use: codes for use, codes in rounded.items() if codes is not None}
        )

    def describe(self, plan: Plan) -> str:
        """Return GPTQ's changes in a plan's weights, for people."""
        uses = {node.weight[1] for node in plan.nodes if node.weight is not None}
        entries = [entry for (use, _), entry in self._rounded.items() if use in uses]
        better = [entry.error_share for entry in entries if entry.integers is not None]
        if not better:
            return "Weights rounded by GPTQ: no layer's outputs come nearer on held-back samples."
        return (
            f"Weights rounded by GPTQ: those of {len(better)} of {len(entries)} layers; the "
            "squared error that rounding makes in their outputs on held-back samples is "
            f"{median(better):.0%} of what nearest integers make (median)."
        )

    def _round_missing(self, products: Collection[Product], scales: Assignment) -> None:
        missing = [p for p in products if _key(p.use, scales) not in self._rounded]
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in parts_that_fit(self.index, missing):
            path = self.folder / "product_inputs.onnx"
            halves = measure_halves(self.model, part, self._few, path, self.progress)
            return_freed_memory()
            for product, (first, second) in zip(part, halves, strict=True):
                values = self.index.values(product.use.name)
                scale = scales.weights[product.use]
                self._rounded[_key(product.use, scales)] = _round(
                    product, values.astype(np.float32), scale, first, second
                )


def _key(use: WeightUse, scales: Assignment) -> tuple[WeightUse, bytes]:
    return use, scales.weights[use].scale.tobytes()


def _round(
    product: Product, values: FloatArray, scale: Scale, first: Moments, second: Moments
) -> _Rounded:
    """Round a weight; `first` holds the moments of both halves then, which saves a matrix.

    If the squares of inputs exceed 32-bit floats, nothing is known: nearest integers stay.
    """
    sizes = [np.trace(half, dtype=np.float64, axis1=1, axis2=2) for half in (first, second)]
    if not (sizes[0] + sizes[1] < np.finfo(np.float32).max).all():
        return _Rounded(None, 1.0)
    weight = product.to_matrix(values).astype(np.float32)
    grid = _grid(product, scale)
    nearest = product.to_matrix(restore(quantize(values, scale), scale)).astype(np.float32)
    tried = grid.restore(round_by_gptq(weight, grid, first))
    before = output_error(nearest - weight, second)
    after = output_error(tried - weight, second)
    if not after < before:
        return _Rounded(None, 1.0)
    first += second
    integers = round_by_gptq(weight, grid, first)
    codes = product.from_matrix(integers).astype(scale.kind.numpy)
    return _Rounded(codes, after / before)


def _grid(product: Product, scale: Scale) -> IntegerGrid:
    shape = [1] * len(product.shape)
    if scale.axis is not None:
        shape[scale.axis] = -1

    def each(values: Tensor) -> Singles:
        full = np.broadcast_to(values.astype(np.float32).reshape(shape), product.shape)
        return np.ascontiguousarray(product.to_matrix(full)[:, :, 0], dtype=np.float32)

    return IntegerGrid(
        step=each(scale.scale),
        zero_point=each(scale.zero_point),
        lowest=scale.kind.lowest,
        highest=scale.kind.highest,
    )
