"""Makes candidates whose weights have few bits in blocks, and whose activations stay float.

MatMul and Gemm by a constant matrix become com.microsoft's MatMulNBits, and Gather from a constant
table GatherBlockQuantized. Products inside control flow's bodies stay float.
"""

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx

from edgepack.packager.graph.questions import index_graph, used_names
from edgepack.packager.judging.evaluation import open_plain
from edgepack.packager.lowering.block_nodes import (
    CONTRIB,
    product_nodes,
    stored_parts,
    table_node,
)
from edgepack.packager.lowering.blocks import BlockWeight, Floats, Grid
from edgepack.packager.lowering.gptq import round_with_feedback
from edgepack.packager.lowering.hqq import refine_grid
from edgepack.packager.lowering.moments import measure_moments, parts_that_fit
from edgepack.packager.lowering.one_at_a_time import rank_one_at_a_time
from edgepack.packager.lowering.products import Product, Table, find_products, find_tables
from edgepack.packager.lowering.rtn import make_grid, round_to_nearest
from edgepack.packager.profile.pass_settings import QuantizeWeights
from edgepack.packager.progress import Progress
from edgepack.packager.samples.sequence import Samples
from edgepack.packager.search.maker import Built, NodeCost

_LEAST_ELEMENTS = 1024
"""Smaller weights stay float: their scales and nodes would take what the bits save."""


class WeightQuantizer:
    """One float model with the weights that were rounded so far.

    Args:
        model: The float model, clean and with shapes.
        settings: The profile's pass.
        samples: Calibration samples; only `gptq` reads them.
        work_dir: Folder for instrumented models.
        progress: Told about calibration.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        settings: QuantizeWeights,
        samples: Samples,
        *,
        work_dir: Path,
        progress: Progress,
    ) -> None:
        self.methods: tuple[str, ...] = settings.methods
        self.costly_methods: tuple[str, ...] = ()
        self.raising: None = None
        self._model = model
        self._settings = settings
        self._samples = samples
        self._folder = work_dir
        self._progress = progress
        self._index = index_graph(model.graph)
        tables = [
            table
            for table in (find_tables(self._index) if settings.embeddings else ())
            if self._index.initializers[table.weight].dims[1] % (8 // settings.bits) == 0
        ]
        places: list[Product | Table] = [*find_products(self._index), *tables]
        self._places = {
            place.name: place
            for place in sorted(places, key=lambda place: place.position)
            if math.prod(self._index.initializers[place.weight].dims) >= _LEAST_ELEMENTS
        }
        self.names = tuple(self._places)
        self._rounded: dict[str, BlockWeight] = {}

    def build(self, method: str, float_nodes: Collection[str]) -> Built:
        """See `CandidateMaker`."""
        kept = set(float_nodes)
        lowered = [place for place in self._places.values() if place.name not in kept]
        self._round(method, lowered)
        nodes = list(self._index.graph.node)
        stored: dict[str, onnx.TensorProto] = {}
        replaced: dict[int, list[onnx.NodeProto]] = {}
        for place in lowered:
            output = nodes[place.position].output[0]
            key = self._key(method, place)
            weight = self._rounded[key]
            parts = stored_parts(
                key,
                weight,
                as_table=isinstance(place, Table),
                symmetric=self._settings.symmetric,
            )
            stored.update((part.name, part) for part in parts)
            replaced[place.position] = (
                [table_node(place, output, parts, weight)]
                if isinstance(place, Table)
                else list(
                    product_nodes(place, output, parts, weight, self._settings.accuracy_level)
                )
            )
        written = [
            new for position, node in enumerate(nodes) for new in replaced.get(position, [node])
        ]
        return Built(
            model=self._assemble(written, list(stored.values())),
            lowered=tuple(place.name for place in lowered),
        )

    def rank(self, method: str, samples: Samples, progress: Progress) -> tuple[NodeCost, ...]:
        """See `CandidateMaker`."""
        return rank_one_at_a_time(
            self._model,
            self.names,
            lambda float_nodes: self.build(method, float_nodes).model,
            open_plain,
            samples,
            work_dir=self._folder,
            progress=progress,
        )

    def _assemble(
        self, nodes: Sequence[onnx.NodeProto], stored: Sequence[onnx.TensorProto]
    ) -> onnx.ModelProto:
        result = onnx.ModelProto()
        result.CopyFrom(self._model)
        graph = result.graph
        del graph.node[:]
        graph.node.extend(nodes)
        used = used_names(graph)
        kept = [tensor for tensor in self._index.graph.initializer if tensor.name in used]
        del graph.initializer[:]
        graph.initializer.extend([*kept, *stored])
        if stored and CONTRIB not in {entry.domain for entry in result.opset_import}:
            result.opset_import.add(domain=CONTRIB, version=1)
        return result

    def _key(self, method: str, place: Product | Table) -> str:
        """Names a rounded weight: nodes that share one do, unless their inputs matter."""
        if isinstance(place, Table):
            return f"{place.weight}/rows"
        if method == "gptq":
            return f"{place.name}/gptq"
        turned = "transposed" if place.is_transposed else "plain"
        return f"{place.weight}/{turned}/{place.factor:g}/{method}"

    def _round(self, method: str, places: Sequence[Product | Table]) -> None:
        missing = [place for place in places if self._key(method, place) not in self._rounded]
        for place in missing:
            if isinstance(place, Table) or method != "gptq":
                weight = self._matrix(place)
                grid = self._grid(weight, refine=method == "hqq" and isinstance(place, Product))
                self._rounded[self._key(method, place)] = round_to_nearest(weight, grid)
        if method == "gptq":
            self._round_with_feedback([p for p in missing if isinstance(p, Product)])

    def _round_with_feedback(self, products: Sequence[Product]) -> None:
        widths = {product.data: product.inputs for product in products}
        for part in parts_that_fit(widths):
            moments = measure_moments(
                self._model,
                {name: widths[name] for name in part},
                self._samples,
                work_dir=self._folder,
                progress=self._progress,
            )
            for product in products:
                if product.data in moments:
                    weight = self._matrix(product)
                    grid = self._grid(weight, refine=not self._settings.symmetric)
                    self._rounded[self._key("gptq", product)] = round_with_feedback(
                        weight, grid, moments[product.data]
                    )

    def _matrix(self, place: Product | Table) -> Floats:
        if isinstance(place, Product):
            return place.matrix(self._index)
        return np.asarray(self._index.constant(place.weight), dtype=np.float32)

    def _grid(self, weight: Floats, *, refine: bool) -> Grid:
        settings = self._settings
        grid = make_grid(
            weight,
            bits=settings.bits,
            block_size=settings.block_size,
            symmetric=settings.symmetric,
        )
        return refine_grid(weight, grid) if refine else grid
