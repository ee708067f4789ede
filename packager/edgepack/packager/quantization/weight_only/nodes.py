"""Nodes and constants of weights of few bits, in place of a product or of a table."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.edits import MICROSOFT
from edgepack.packager.quantization.products import Product, Table
from edgepack.packager.quantization.weight_only.blocks import BlockWeight


class WrittenWeight(msgspec.Struct, frozen=True, kw_only=True):
    """A quantized weight as it is stored.

    Attributes:
        parts: Initializers: codes, scales, and zero points unless these lie in the middle.
        bits, block_size: Of its codes.
        rows, blocks, columns: Its sizes.
    """

    parts: tuple[onnx.TensorProto, ...]
    bits: int
    block_size: int
    rows: int
    blocks: int
    columns: int


def write_weight(
    key: str, weight: BlockWeight, *, as_table: bool, symmetric: bool, half_scales: bool
) -> WrittenWeight:
    """Return a quantized weight as it is stored; see `stored_parts`."""
    rows, blocks = weight.grid.scales.shape
    return WrittenWeight(
        parts=stored_parts(
            key, weight, as_table=as_table, symmetric=symmetric, half_scales=half_scales
        ),
        bits=weight.grid.bits,
        block_size=weight.grid.block_size,
        rows=rows,
        blocks=blocks,
        columns=weight.codes.shape[1],
    )


def stored_parts(
    key: str, weight: BlockWeight, *, as_table: bool, symmetric: bool, half_scales: bool = False
) -> tuple[onnx.TensorProto, ...]:
    """Return a quantized weight as initializers: codes, scales, and zero points unless symmetric.

    Args:
        key: Prefix of their names.
        weight: The weight.
        as_table: Whether GatherBlockQuantized reads the weight, not MatMulNBits.
        symmetric: Whether the operators' default zero point, the middle, is right.
        half_scales: Whether scales are stored in 16 bits: see `read_parts`.
    """
    codes = weight.packed_rows() if as_table else weight.packed_codes()
    scales = weight.grid.scales
    parts = {"codes": codes, "scales": scales.astype(np.float16) if half_scales else scales}
    if not symmetric:
        parts["zero_points"] = weight.packed_zero_points()
    return tuple(
        numpy_helper.from_array(np.ascontiguousarray(value), f"{key}/{part}")
        for part, value in parts.items()
    )


def read_parts(parts: Sequence[onnx.TensorProto]) -> tuple[tuple[str, ...], list[onnx.NodeProto]]:
    """Return the names of codes, scales and zero points in 32 bits, and nodes that make these.

    The operators' kernels for float activations take scales of 32 bits. Scales of 16 bits are a
    tenth fewer bytes of a model in 4 bits; ONNX Runtime folds their Cast while it loads the model.
    """
    names, casts = [], []
    for part in parts:
        name = part.name
        if part.data_type == onnx.TensorProto.FLOAT16:
            name = f"{part.name}/float"
            casts.append(
                helper.make_node("Cast", [part.name], [name], name=name, to=onnx.TensorProto.FLOAT)
            )
        names.append(name)
    return tuple(names), casts


def shape_nodes(
    scales: str, rows: str, output: str, weight: WrittenWeight
) -> tuple[tuple[onnx.NodeProto, onnx.NodeProto], tuple[onnx.TensorProto, ...]]:
    """Return what makes a product's codes readable as a table: MatMulNBits has an axis of blocks.

    Args:
        scales: Scales of the product, (rows, blocks).
        rows: Name of the same scales as (rows, blocks, 1).
        output: Output of the table, [batch, tokens, columns]; `OUTPUT/blocks` is what the table
            gives, with an axis of blocks.
        weight: The weight.

    Returns:
        The node before the table and the node behind, and their constants.
    """
    shapes = {
        f"{rows}/shape": np.array([weight.rows, weight.blocks, 1]),
        f"{output}/shape": np.array([0, 0, weight.columns]),
    }
    constants = tuple(numpy_helper.from_array(value, name) for name, value in shapes.items())
    before, behind = shapes
    return (
        helper.make_node("Reshape", [scales, before], [rows], name=rows),
        helper.make_node("Reshape", [f"{output}/blocks", behind], [output], name=f"{output}/rows"),
    ), constants


def product_nodes(
    product: Product,
    output: str,
    parts: tuple[str, ...],
    weight: WrittenWeight,
    accuracy_level: int,
) -> Iterator[onnx.NodeProto]:
    """Yield MatMulNBits in place of a product, and an Add for Gemm's bias.

    Args:
        product: The replaced product.
        output: Name of its output.
        parts: Names of its codes, scales and zero points.
        weight: The weight.
        accuracy_level: Allowed rounding of activations, see `QuantizeWeights`.
    """
    node = helper.make_node(
        "MatMulNBits",
        [product.data, *parts],
        [f"{output}/product" if product.bias else output],
        name=product.name,
        domain=MICROSOFT,
        K=product.inputs,
        N=product.outputs,
        bits=weight.bits,
        block_size=weight.block_size,
    )
    if accuracy_level:
        node.attribute.append(helper.make_attribute("accuracy_level", accuracy_level))
    yield node
    if product.bias:
        yield helper.make_node(
            "Add", [f"{output}/product", product.bias], [output], name=f"{product.name}/bias"
        )


def table_node(
    table: Table, output: str, parts: tuple[str, ...], weight: WrittenWeight, axis: int = 1
) -> onnx.NodeProto:
    """Return GatherBlockQuantized in place of a Gather.

    Args:
        table: The replaced table.
        output: Name of the output.
        parts: Names of its codes, scales and zero points.
        weight: The weight.
        axis: Axis of the codes that is in blocks.
    """
    codes, *others = parts
    return helper.make_node(
        "GatherBlockQuantized",
        [codes, table.indices, *others],
        [output],
        name=table.name,
        domain=MICROSOFT,
        gather_axis=0,
        quantize_axis=axis,
        bits=weight.bits,
        block_size=weight.block_size,
    )
