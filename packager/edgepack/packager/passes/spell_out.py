"""Pass `spell_out`: operators that a provider computes wrongly become others, computed right.

What is known of QNN's HTP simulator (onnxruntime-qnn 2.7.0), and not of chips, with 16 bits:

- A Reciprocal gives about a fifth of what it is: 5.4 … 94.6 became 1.0 … 17.1 in a model's layer
  normalization, and the output was 128 % off. The same quotient as 1 / x is right to 0.03 %.
- A convolution times the Sigmoid of a convolution, which may be the same (SiLU), is wrong on maps
  of 9 to 12 rows, and on no others: on 10 rows in the first and the last two, by 30 % of the whole.
  In a detector with such maps the output was 8 to 14 % off, now this, now that. Where the
  convolution meets the Sigmoid as a product with 1, each is right to 0.01 %.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph.node_chains import producer, replace
from edgepack.packager.graph.questions import GraphIndex, index_graph
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.profile.pass_settings import SpellOut

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_WRONG_ROWS = range(9, 13)


def spell_out(model: onnx.ModelProto, settings: SpellOut, context: PassContext) -> PassResult:
    """Replaces operators by others that compute the same.

    Args:
        model: The model, with shapes; changed in place.
        settings: Which operators.
        context: Not used.

    Returns:
        The model, and how many nodes were replaced.

    Raises:
        BuildError: The type of a node's input is not known.
    """
    index = index_graph(model.graph)
    notes = []
    if "Reciprocal" in settings.ops:
        count = _divide(model.graph, index)
        if count:
            notes.append(f"{count} Reciprocal became Div, which the provider computes right.")
    if "Sigmoid" in settings.ops:
        count = _set_apart(model.graph, index)
        if count:
            notes.append(
                f"{count} convolution(s) that meet a Sigmoid were set apart from it, on maps of a "
                "size on which the provider computes the two wrongly together."
            )
    return PassResult(model=model, notes=tuple(notes))


def _divide(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Makes a quotient of each Reciprocal; returns of how many."""
    found = [node for node in graph.node if node.op_type == "Reciprocal" and not node.domain]
    for node in found:
        element_type = _type_of(index, node, node.input[0])
        node.op_type = "Div"
        node.input.insert(0, _one(graph, element_type))
    return len(found)


def _set_apart(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Multiplies convolutions that meet a Sigmoid by 1 on their way; returns how many."""
    found = [
        (node, place)
        for node in graph.node
        if (place := _place_of_convolution(index, node)) is not None
    ]
    new: list[tuple[str, onnx.NodeProto]] = []
    for node, place in found:
        source, apart = node.input[place], f"{node.output[0]}/apart"
        element_type = _type_of(index, node, source)
        inputs = [source, _one(graph, element_type)]
        new.append((node.name, helper.make_node("Mul", inputs, [apart], name=f"{node.name}/apart")))
        product = onnx.NodeProto()
        product.CopyFrom(node)
        product.input[place] = apart
        new.append((node.name, product))
        shape = index.shapes[source]
        graph.value_info.append(helper.make_tensor_value_info(apart, element_type, shape))
    replace(graph, {node.name for node, _ in found}, new)
    return len(found)


def _place_of_convolution(index: GraphIndex, node: onnx.NodeProto) -> int | None:
    """Which input of a product is the convolution that a Sigmoid opens and shuts; else None."""
    if node.op_type != "Mul":
        return None
    for place, name in enumerate(node.input):
        shape = index.shapes.get(name, ())
        sigmoid = producer(index, node.input[1 - place], "Sigmoid")
        if sigmoid is None or len(shape) != 4 or shape[2] not in _WRONG_ROWS:
            continue
        makers = (producer(index, made, *_CONVOLUTIONS) for made in (name, sigmoid.input[0]))
        if all(maker is not None for maker in makers):
            return place
    return None


def _type_of(index: GraphIndex, node: onnx.NodeProto, name: str) -> int:
    element_type = index.types.get(name)
    if element_type is None:
        raise BuildError(
            f"the type of '{name}' is not known",
            found_in=f"pass spell_out, node {node.name}",
            remedy="put the pass after infer_shapes",
        )
    return element_type


def _one(graph: onnx.GraphProto, element_type: int) -> str:
    """A constant 1 of a type; made once."""
    name = f"edgepack/one/{element_type}"
    if all(tensor.name != name for tensor in graph.initializer):
        dtype = helper.tensor_dtype_to_np_dtype(element_type)
        graph.initializer.append(numpy_helper.from_array(np.ones((), dtype=dtype), name))
    return name
