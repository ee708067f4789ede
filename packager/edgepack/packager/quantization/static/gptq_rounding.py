"""Rounding of a plan's weights by GPTQ, as far as the gain holds on unseen samples.

A weight is rounded on half of the calibration samples and compared with its nearest integers on the
other half: only if its products are nearer there, the weight is rounded by GPTQ, on both halves.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from msgspec.structs import replace

from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.memory import return_freed_memory
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.gptq import Moments, output_error, round_by_gptq
from edgepack.packager.quantization.static.assign import Assignment
from edgepack.packager.quantization.static.gptq_inputs import (
    Product,
    find_product,
    measure_halves,
    parts_that_fit,
)
from edgepack.packager.quantization.static.plan import Plan, WeightUse
from edgepack.packager.quantization.static.scales import FloatArray, Scale, quantize, restore
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Singles, Tensor

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
