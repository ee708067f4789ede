"""Matrix products and tables with constant weights: candidates for few bits."""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import onnx

from edgepack.packager.graph.edits import MICROSOFT
from edgepack.packager.graph.queries import GraphIndex, attribute, attributes, is_standard
from edgepack.tasks.arrays import Singles


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """A MatMul, Gemm or FusedMatMul of a float tensor by a constant matrix.

    Attributes:
        name: The node.
        position: Its index in the graph.
        data: The tensor that is multiplied; its last axis has `inputs` elements.
        weight: Name of the constant.
        is_transposed: Whether the constant is stored as (outputs, inputs).
        factor: Factor of the product, of Gemm and FusedMatMul.
        bias: Name of the added tensor, or "".
        inputs, outputs: Sizes of the matrix.
    """

    name: str
    position: int
    data: str
    weight: str
    is_transposed: bool
    factor: float
    bias: str
    inputs: int
    outputs: int

    def matrix(self, index: GraphIndex) -> Singles:
        """Return the weights, float32 (outputs, inputs), Gemm's factor included."""
        matrix = np.asarray(index.values(self.weight), dtype=np.float32)
        if not self.is_transposed:
            matrix = matrix.T
        return np.ascontiguousarray(matrix * np.float32(self.factor))


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A Gather of rows of a constant matrix (an embedding).

    Attributes:
        name: The node.
        position: Its index in the graph.
        indices: Name of the row numbers.
        weight: Name of the constant, float32 (rows, columns).
    """

    name: str
    position: int
    indices: str
    weight: str


def find_products(index: GraphIndex) -> Iterator[Product]:
    """Yield the products of a graph, in order. Products inside control flow's bodies are not
    included.
    """
    for position, node in enumerate(index.graph.node):
        product = as_product(node, position, index.initializers)
        if product is not None:
            yield product


def as_product(
    node: onnx.NodeProto, position: int, constants: Mapping[str, onnx.TensorProto]
) -> Product | None:
    """Return a node as a product by a constant matrix; None for any other node."""
    is_fused = node.op_type == "FusedMatMul" and node.domain == MICROSOFT
    if not is_fused and (not is_standard(node) or node.op_type not in ("MatMul", "Gemm")):
        return None
    weight = constants.get(node.input[1])
    if weight is None or weight.data_type != onnx.TensorProto.FLOAT or len(weight.dims) != 2:
        return None
    settings = attributes(node)
    bias = node.input[2] if len(node.input) > 2 else ""
    if settings.get("transA", 0) or settings.get("transBatchA", 0) or node.input[0] in constants:
        return None
    if bias and settings.get("beta", 1.0) != 1.0:
        return None
    is_transposed = bool(settings.get("transB", 0))
    outputs, inputs = weight.dims if is_transposed else reversed(weight.dims)
    return Product(
        name=node.name,
        position=position,
        data=node.input[0],
        weight=node.input[1],
        is_transposed=is_transposed,
        factor=float(settings.get("alpha", 1.0)),
        bias=bias,
        inputs=inputs,
        outputs=outputs,
    )


def find_tables(index: GraphIndex) -> Iterator[Table]:
    """Yield the tables of a graph, in order."""
    for position, node in enumerate(index.graph.node):
        if node.op_type != "Gather" or not is_standard(node):
            continue
        weight = index.initializers.get(node.input[0])
        if weight is None or weight.data_type != onnx.TensorProto.FLOAT or len(weight.dims) != 2:
            continue
        if attribute(node, "axis", 0):
            continue
        yield Table(name=node.name, position=position, indices=node.input[1], weight=node.input[0])
