"""Makes candidates whose weights have few bits in blocks, and whose activations stay float.

MatMul and Gemm by a constant matrix become com.microsoft's MatMulNBits, and Gather from a constant
table GatherBlockQuantized. Products inside control flow's bodies stay float. Nodes that are raised
have 8 bits, rounded to the nearest: that is so near that no method is worth its time.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from edgepack.packager.graph.queries import index_graph, used_names
from edgepack.packager.graph.workload import Workload, weight_bytes
from edgepack.packager.profiles.pass_settings import QuantizeWeights
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import Built, NodeCost, Raising
from edgepack.packager.quantization.gptq import round_by_gptq
from edgepack.packager.quantization.one_at_a_time import rank_one_at_a_time
from edgepack.packager.quantization.products import (
    Floats,
    Product,
    Table,
    find_products,
    find_tables,
)
from edgepack.packager.quantization.savings import with_workloads
from edgepack.packager.quantization.weight_only.block_nodes import (
    CONTRIB,
    product_nodes,
    stored_parts,
    table_node,
)
from edgepack.packager.quantization.weight_only.blocks import BlockGrid, BlockWeight
from edgepack.packager.quantization.weight_only.hqq import refine_grid
from edgepack.packager.quantization.weight_only.moments import measure_moments, parts_that_fit
from edgepack.packager.quantization.weight_only.rtn import make_grid, round_to_nearest
from edgepack.packager.runtime.evaluator import open_plain
from edgepack.packager.tensors.sequence import Samples

_LEAST_ELEMENTS = 1024
"""Smaller weights stay float: their scales and nodes would take what the bits save."""

_RAISED = "8-bit"
"""How weights of raised nodes are rounded, beside the methods."""

_RAISED_BITS = 8


class WeightQuantizer:
    """One float model with the weights that were rounded so far.

    Args:
        model: The float model, clean and with shapes.
        settings: The profile's pass.
        samples: Calibration samples; only `gptq` reads them.
        work_dir: Folder for instrumented models.
        progress: Told about calibration.
    """

    verb = "quantized"

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
        self.raising: Raising | None = None
        if settings.can_raise:
            self.raising = Raising(
                word="8-bit",
                names=self.names,
                build=self.build,
                rank=lambda method, samples, progress: self._rank(_RAISED, samples, progress),
            )
        self._rounded: dict[str, BlockWeight] = {}

    def build(
        self, method: str, float_nodes: Collection[str], raised: Collection[str] = ()
    ) -> Built:
        """See `CandidateMaker` and `Raising`."""
        kept, wide = set(float_nodes), set(raised)
        methods = {
            name: _RAISED if name in wide else method for name in self.names if name not in kept
        }
        return Built(model=self._write(methods), lowered=tuple(methods))

    def rank(self, method: str, samples: Samples, progress: Progress) -> tuple[NodeCost, ...]:
        """See `CandidateMaker`."""
        return self._rank(method, samples, progress)

    def _rank(self, method: str, samples: Samples, progress: Progress) -> tuple[NodeCost, ...]:
        costs = rank_one_at_a_time(
            self._model,
            self.names,
            lambda float_nodes: self.build(method, float_nodes).model,
            open_plain,
            samples,
            work_dir=self._folder,
            progress=progress,
        )
        nodes, constants = self._index.graph.node, self._index.initializers
        loads = {
            name: Workload(weight_bytes=weight_bytes(nodes[place.position], constants))
            for name, place in self._places.items()
        }
        return with_workloads(costs, loads)

    def _write(self, methods: Mapping[str, str]) -> onnx.ModelProto:
        """The model with some nodes rounded, each by its method; the others stay float."""
        for method in dict.fromkeys(methods.values()):
            self._round(method, [self._places[n] for n, way in methods.items() if way == method])
        nodes = list(self._index.graph.node)
        stored: dict[str, onnx.TensorProto] = {}
        replaced: dict[int, list[onnx.NodeProto]] = {}
        for name, method in methods.items():
            place = self._places[name]
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
        return self._assemble(written, list(stored.values()))

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
            return f"{place.weight}/rows/{_RAISED}" if method == _RAISED else f"{place.weight}/rows"
        if method == "gptq":
            return f"{place.name}/gptq"
        turned = "transposed" if place.is_transposed else "plain"
        return f"{place.weight}/{turned}/{place.factor:g}/{method}"

    def _round(self, method: str, places: Sequence[Product | Table]) -> None:
        missing = [place for place in places if self._key(method, place) not in self._rounded]
        for place in missing:
            if isinstance(place, Table) or method != "gptq":
                weight = self._matrix(place)
                grid = self._grid(
                    weight,
                    bits=_RAISED_BITS if method == _RAISED else self._settings.bits,
                    refine=method == "hqq" and isinstance(place, Product),
                )
                self._rounded[self._key(method, place)] = round_to_nearest(weight, grid)
        if method == "gptq":
            self._round_by_gptq([p for p in missing if isinstance(p, Product)])

    def _round_by_gptq(self, products: Sequence[Product]) -> None:
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
                    grid = self._grid(
                        weight, bits=self._settings.bits, refine=not self._settings.symmetric
                    )
                    codes = round_by_gptq(weight[None], grid, moments[product.data][None])
                    self._rounded[self._key("gptq", product)] = BlockWeight(
                        codes=codes[0].astype(np.uint8), grid=grid
                    )

    def _matrix(self, place: Product | Table) -> Floats:
        if isinstance(place, Product):
            return place.matrix(self._index)
        return np.asarray(self._index.constant(place.weight), dtype=np.float32)

    def _grid(self, weight: Floats, *, bits: int, refine: bool) -> BlockGrid:
        settings = self._settings
        grid = make_grid(
            weight,
            bits=bits,
            block_size=settings.block_size,
            symmetric=settings.symmetric,
        )
        return refine_grid(weight, grid) if refine else grid
