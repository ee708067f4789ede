"""Candidates with weights of few bits in blocks, and float activations.

MatMul and Gemm by a constant matrix become com.microsoft's MatMulNBits, and Gather from a constant
table GatherBlockQuantized. Products inside control flow's bodies stay float. Nodes of high
precision have 8 bits, rounded to the nearest: that is so near that no method is worth its time.

A table that a product also reads, as the embedding and the head of a language model, is stored
once: both nodes read the same codes and scales, and get their precision together.
"""

import math
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import mkstemp

import numpy as np
import onnx
from msgspec.structs import replace

from edgepack.packager.graph.edits import MICROSOFT, drop_unread, import_domain, refill
from edgepack.packager.graph.held_weights import HELD_FROM_BYTES, WeightsFile
from edgepack.packager.graph.model_files import weights_size_bytes
from edgepack.packager.graph.queries import index_graph
from edgepack.packager.graph.workload import Workload, weight_bytes
from edgepack.packager.profiles.pass_settings import QuantizeWeights
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
    HighPrecision,
    QuantizationMethod,
)
from edgepack.packager.quantization.gptq import round_by_gptq
from edgepack.packager.quantization.one_at_a_time import OneAtATimeMaker
from edgepack.packager.quantization.products import Product, Table, find_products, find_tables
from edgepack.packager.quantization.weight_only.blocks import (
    BlockGrid,
    BlockWeight,
    fit_scales,
    make_grid,
    refine_grid,
    round_rows,
    with_half_scales,
)
from edgepack.packager.quantization.weight_only.moments import measure_moments, parts_that_fit
from edgepack.packager.quantization.weight_only.nodes import (
    WrittenWeight,
    product_nodes,
    read_parts,
    shape_nodes,
    table_node,
    write_weight,
)
from edgepack.packager.runtime.evaluator import open_plain
from edgepack.packager.runtime.model_run import Run
from edgepack.tasks.arrays import Floats, Singles

_LEAST_ELEMENTS = 1024
"""Smaller weights stay float: their scales and nodes would take what the bits save."""

_HALF = 16
"""Bits of a half-precision scale."""

_MOMENTS_SHARE = 4
"""Moments of inputs take a part of the model's bytes at once."""

_HELD_FROM_BYTES = 1024
"""Smaller parts of a weight stay in memory."""

_HIGH_PRECISION = "8-bit"
"""How weights of high precision are rounded, beside the methods."""


class WeightOnlyCandidateMaker(OneAtATimeMaker[QuantizeWeights]):
    """Candidate maker for a float model, with the weights rounded so far."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.methods = tuple(QuantizationMethod(base=name) for name in settings.methods)
        self._index = index_graph(self.model.graph)
        tables = [
            table
            for table in (find_tables(self._index) if settings.embeddings else ())
            if self._index.initializers[table.weight].dims[1] % (8 // settings.bits) == 0
        ]
        products = list(find_products(self._index))
        self._tied = self._find_tied(products, tables)
        tied = {table.name for table in self._tied.values()}
        places: list[Product | Table] = [
            *products,
            *(table for table in tables if table.name not in tied),
        ]
        self._places = {
            place.name: place
            for place in sorted(places, key=lambda place: place.position)
            if math.prod(self._index.initializers[place.weight].dims) >= _LEAST_ELEMENTS
        }
        self.names = tuple(self._places)
        self._model_bytes = weights_size_bytes(self.model)
        nodes, constants = self._index.graph.node, self._index.initializers
        self._loads = {
            name: Workload(weight_bytes=weight_bytes(nodes[place.position], constants))
            for name, place in self._places.items()
        }
        if settings.has_high_precision:
            self.high_precision = HighPrecision(words=_HIGH_PRECISION, names=self.names)
        self._written: dict[str, WrittenWeight] = {}
        self._file: WeightsFile | None = None

    def _find_tied(self, products: Sequence[Product], tables: Sequence[Table]) -> dict[str, Table]:
        """Return the tables with the weight of one product, by the product's name.

        An optimizer may have written the weight twice, as a table and turned for the product.
        """
        found = {}
        for table in tables:
            readers = [one for one in products if self._is_table(one, table)]
            if len(readers) == 1:
                found[readers[0].name] = table
        return found

    def _is_table(self, product: Product, table: Table) -> bool:
        """Return whether a product's matrix is a table, in whole blocks."""
        size = (product.outputs, product.inputs)
        if size != tuple(self._index.initializers[table.weight].dims):
            return False
        if product.inputs % self.settings.block_size or product.factor != 1.0:
            return False
        return product.weight == table.weight or np.array_equal(
            product.matrix(self._index), self._matrix(table)
        )

    def _open(self, path: Path) -> Run:
        return open_plain(path, are_packed=True)

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Build a candidate; see `CandidateMaker`."""
        kept, high_precision = set(spec.float_nodes), set(spec.high_precision_nodes)
        roundings = {
            name: _HIGH_PRECISION if name in high_precision else spec.method.base
            for name in self.names
            if name not in kept
        }
        return BuiltCandidate(model=self._write(roundings), lowered=tuple(roundings))

    def _write(self, roundings: Mapping[str, str]) -> onnx.ModelProto:
        """Return the model with some nodes rounded, each by its method; all others stay float."""
        for rounding in dict.fromkeys(roundings.values()):
            self._round(
                rounding, [self._places[n] for n, own in roundings.items() if own == rounding]
            )
        nodes = list(self._index.graph.node)
        stored: dict[str, onnx.TensorProto] = {}
        replaced: dict[int, list[onnx.NodeProto]] = {}
        first: dict[str, onnx.NodeProto] = {}
        for name, rounding in roundings.items():
            place = self._places[name]
            output = nodes[place.position].output[0]
            key = self._key(rounding, place)
            weight = self._written[key]
            stored.update((part.name, part) for part in weight.parts)
            names, casts = read_parts(weight.parts)
            first.update((node.output[0], node) for node in casts)
            if isinstance(place, Table):
                replaced[place.position] = [table_node(place, output, names, weight)]
                continue
            level = self.settings.accuracy_level
            replaced[place.position] = list(product_nodes(place, output, names, weight, level))
            if (table := self._tied.get(name)) is not None:
                output = nodes[table.position].output[0]
                scales = f"{key}/scales/rows"
                reshaped, constants = shape_nodes(names[1], scales, output, weight)
                stored.update((part.name, part) for part in constants)
                rows = table_node(table, f"{output}/blocks", (names[0], scales), weight, axis=2)
                replaced[table.position] = [reshaped[0], rows, reshaped[1]]
        written = [
            new for position, node in enumerate(nodes) for new in replaced.get(position, [node])
        ]
        return self._assemble([*first.values(), *written], list(stored.values()))

    def _is_symmetric(self, place: Product | Table) -> bool:
        """Return whether a weight has no zero points: a tied table packs its own otherwise."""
        return self.settings.symmetric or place.name in self._tied

    def _assemble(
        self, nodes: Sequence[onnx.NodeProto], stored: Sequence[onnx.TensorProto]
    ) -> onnx.ModelProto:
        result = deepcopy(self.model)
        refill(result.graph.node, nodes)
        drop_unread(result.graph)
        result.graph.initializer.extend(stored)
        import_domain(result, MICROSOFT if stored else "")
        return result

    def _key(self, rounding: str, place: Product | Table) -> str:
        """Name a rounded weight: nodes that share a weight share its name, unless their inputs
        matter.
        """
        if isinstance(place, Table):
            rows = f"{place.weight}/rows"
            return f"{rows}/{_HIGH_PRECISION}" if rounding == _HIGH_PRECISION else rows
        if rounding == "gptq":
            return f"{place.name}/gptq"
        turned = "transposed" if place.is_transposed else "plain"
        return f"{place.weight}/{turned}/{place.factor:g}/{rounding}"

    def _round(self, rounding: str, places: Sequence[Product | Table]) -> None:
        missing = [place for place in places if self._key(rounding, place) not in self._written]
        settings = self.settings
        is_high_precision = rounding == _HIGH_PRECISION
        for place in missing:
            if isinstance(place, Table) or rounding != "gptq":
                rounded = round_rows(
                    self._matrix(place),
                    partial(
                        self._grid,
                        place=place,
                        bits=settings.high_precision_bits if is_high_precision else settings.bits,
                        is_hqq=rounding == "hqq" and isinstance(place, Product),
                    ),
                )
                self._keep(rounding, place, rounded)
        if rounding == "gptq":
            self._round_by_gptq([p for p in missing if isinstance(p, Product)])

    def _round_by_gptq(self, products: Sequence[Product]) -> None:
        widths = {product.data: product.inputs for product in products}
        for part in parts_that_fit(widths, self._model_bytes // _MOMENTS_SHARE):
            moments = measure_moments(
                self.model,
                {name: widths[name] for name in part},
                self.samples,
                work_dir=self.work_dir,
                progress=self.progress,
            )
            for product in products:
                if product.data in moments:
                    weight, moment = self._matrix(product), moments[product.data]
                    grid = self._grid(
                        weight,
                        place=product,
                        bits=self.settings.bits,
                        importance=np.diagonal(moment),
                    )
                    codes = round_by_gptq(weight[None], grid, moment[None].copy())
                    rounded = BlockWeight(codes=codes[0].astype(np.uint8), grid=grid)
                    self._keep("gptq", product, rounded)

    def _keep(self, rounding: str, place: Product | Table, weight: BlockWeight) -> None:
        """Store a rounded weight: in a file, if the model's own weights are in a file."""
        key = self._key(rounding, place)
        written = write_weight(
            key,
            weight,
            as_table=isinstance(place, Table),
            symmetric=self._is_symmetric(place),
            half_scales=self.settings.scale_bits == _HALF,
        )
        if self._model_bytes >= HELD_FROM_BYTES:
            if self._file is None:
                self.work_dir.mkdir(parents=True, exist_ok=True)
                number, path = mkstemp(".data", "rounded-", self.work_dir)
                os.close(number)
                self._file = WeightsFile(Path(path))
            written = replace(
                written,
                parts=tuple(
                    self._file.kept(part, least=_HELD_FROM_BYTES) for part in written.parts
                ),
            )
        self._written[key] = written

    def _matrix(self, place: Product | Table) -> Singles:
        if isinstance(place, Product):
            return place.matrix(self._index)
        return np.asarray(self._index.constant(place.weight), dtype=np.float32)

    def _grid(
        self,
        weight: Singles,
        *,
        place: Product | Table,
        bits: int,
        is_hqq: bool = False,
        importance: Floats | None = None,
    ) -> BlockGrid:
        """Return the grid of a weight: fitted by HQQ, or by the importance of each column."""
        symmetric = self._is_symmetric(place)
        grid = make_grid(
            weight, bits=bits, block_size=self.settings.block_size, symmetric=symmetric
        )
        if is_hqq and not symmetric:  # it fits zero points
            grid = refine_grid(weight, grid)
        elif is_hqq or importance is not None:
            grid = fit_scales(weight, grid, importance)
        return with_half_scales(grid) if self.settings.scale_bits == _HALF else grid
