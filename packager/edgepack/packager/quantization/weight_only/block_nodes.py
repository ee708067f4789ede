"""Nodes that compute with blocks of few bits: com.microsoft's MatMulNBits, GatherBlockQuantized."""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.edits import MICROSOFT
from edgepack.packager.quantization.products import Product, Table
from edgepack.packager.quantization.weight_only.blocks import BlockWeight


def stored_parts(
    key: str, weight: BlockWeight, *, as_table: bool, symmetric: bool
) -> tuple[onnx.TensorProto, ...]:
    """Return a quantized weight as initializers: codes, scales, and zero points unless symmetric.

    Args:
        key: Prefix of their names.
        weight: The weight.
        as_table: Whether GatherBlockQuantized reads the weight, not MatMulNBits.
        symmetric: Whether the operators' default zero point, the middle, is right.
    """
    codes = weight.packed_rows() if as_table else weight.packed_codes()
    parts = {"codes": codes, "scales": weight.grid.scales}
    if not symmetric:
        parts["zero_points"] = weight.packed_zero_points()
    return tuple(
        numpy_helper.from_array(np.ascontiguousarray(value), f"{key}/{part}")
        for part, value in parts.items()
    )


def product_nodes(
    product: Product,
    output: str,
    parts: tuple[onnx.TensorProto, ...],
    weight: BlockWeight,
    accuracy_level: int,
) -> Iterator[onnx.NodeProto]:
    """Yield MatMulNBits in place of a product, and an Add for Gemm's bias.

    Args:
        product: The replaced product.
        output: Name of its output.
        parts: See `stored_parts`.
        weight: The weight.
        accuracy_level: Allowed rounding of activations, see `QuantizeWeights`.
    """
    node = helper.make_node(
        "MatMulNBits",
        [product.data, *(part.name for part in parts)],
        [f"{output}/product" if product.bias else output],
        name=product.name,
        domain=MICROSOFT,
        K=product.inputs,
        N=product.outputs,
        bits=weight.grid.bits,
        block_size=weight.grid.block_size,
    )
    if accuracy_level:
        node.attribute.append(helper.make_attribute("accuracy_level", accuracy_level))
    yield node
    if product.bias:
        yield helper.make_node(
            "Add", [f"{output}/product", product.bias], [output], name=f"{product.name}/bias"
        )


def table_node(
    table: Table, output: str, parts: tuple[onnx.TensorProto, ...], weight: BlockWeight
) -> onnx.NodeProto:
    """Return GatherBlockQuantized in place of a Gather; arguments as for `product_nodes`."""
    codes, *others = (part.name for part in parts)
    return helper.make_node(
        "GatherBlockQuantized",
        [codes, table.indices, *others],
        [output],
        name=table.name,
        domain=MICROSOFT,
        gather_axis=0,
        quantize_axis=1,
        bits=weight.grid.bits,
        block_size=weight.grid.block_size,
    )
