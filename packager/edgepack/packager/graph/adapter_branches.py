"""Branches for adapters (LoRA) in the graph of a decoder.

A branch adds `x A B` to a product of `x`. A and B are inputs of the graph with a default of rank 0,
so that each run may bring an adapter of any rank, or none.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.bundle.adapters import AdapterPlaces
from edgepack.errors import BuildError
from edgepack.packager.graph.edits import refill
from edgepack.tasks.arrays import Singles

RANK = "adapter_rank"
_PRODUCT = "MatMul/output_0"


def add_branches(
    model: onnx.ModelProto, places: AdapterPlaces, source: onnx.GraphProto
) -> onnx.ModelProto:
    """Add a branch for adapters to each product of a decoder.

    Args:
        model: The decoder, possibly quantized; changed.
        places: Its places.
        source: Graph of the source model, which names the inputs of the products.

    Returns:
        The model.

    Raises:
        BuildError: A pass removed a tensor that a branch needs.
    """
    graph = model.graph
    read = {output: node.input[0] for node in source.node for output in node.output}
    made = {
        output.rstrip("|").replace("|", "/"): output  # `passes.clean` sets names apart by "|".
        for node in graph.node
        for output in node.output
    }
    branches: dict[str, list[onnx.NodeProto]] = {}
    shapes = places.shapes
    for layer in range(places.layers):
        for product in places.products:
            output = f"{product.path.replace('%d', str(layer))}/{_PRODUCT}"
            names = product.tensors(layer)
            if output not in made or read.get(output, "") not in made:
                raise BuildError(
                    f"there is no place for adapters at {output}: a pass of the profile removed "
                    "the product, or its input",
                    remedy="build this profile without --adapters",
                )
            branches[made[output]] = _branch(made[output], made[read[output]], names)
            for name in names:
                dims = shapes[name]
                sizes = [RANK if size is None else size for size in dims]
                graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))
                empty = np.zeros([size or 0 for size in dims], np.float32)
                graph.initializer.append(numpy_helper.from_array(empty, name))
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for place, output in enumerate(node.output):
            if output in branches:
                node.output[place] = f"{output}/base"
                nodes += branches[output]
    refill(graph.node, nodes)
    return model


def _branch(output: str, read: str, names: tuple[str, str]) -> list[onnx.NodeProto]:
    path = f"{output}/adapter"
    inner, outer = f"{path}/lora_A/output_0", f"{path}/lora_B/output_0"
    return [
        helper.make_node("MatMul", [read, names[0]], [inner], name=f"{path}/lora_A"),
        helper.make_node("MatMul", [inner, names[1]], [outer], name=f"{path}/lora_B"),
        helper.make_node("Add", [f"{output}/base", outer], [output], name=f"{path}/Add"),
    ]


def fill_branches(
    model: onnx.ModelProto, places: AdapterPlaces, tensors: Mapping[str, Singles]
) -> onnx.ModelProto:
    """Make an adapter a part of a model with branches: its inputs become constants.

    Args:
        model: The model; changed.
        places: Its places.
        tensors: The adapter by name; a missing place adds nothing.

    Returns:
        The model.
    """
    graph, names = model.graph, places.shapes
    refill(graph.input, [value for value in graph.input if value.name not in names])
    for tensor in graph.initializer:
        if tensor.name in tensors:
            tensor.CopyFrom(numpy_helper.from_array(tensors[tensor.name], tensor.name))
    return model
