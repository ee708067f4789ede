"""Pass `spell_out`: operators that a provider computes wrongly become others, computed right.

QNN's HTP simulator (onnxruntime-qnn 2.7.0) gives a 16-bit Reciprocal about a fifth of what it is:
5.4 … 94.6 became 1.0 … 17.1 in a model's layer normalization, and the output was 128 % off. The
same quotient as 1 / x is right to 0.03 %.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph.questions import index_graph
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.profile.pass_settings import SpellOut


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
    for op_type in settings.ops:
        found = [node for node in model.graph.node if node.op_type == op_type and not node.domain]
        for node in found:
            element_type = index.types.get(node.input[0])
            if element_type is None:
                raise BuildError(
                    f"the type of '{node.input[0]}' is not known",
                    found_in=f"pass spell_out, node {node.name}",
                    remedy="put the pass after infer_shapes",
                )
            node.op_type = "Div"
            node.input.insert(0, _one(model.graph, element_type))
        if found:
            notes.append(f"{len(found)} {op_type} became Div, which the provider computes right.")
    return PassResult(model=model, notes=tuple(notes))


def _one(graph: onnx.GraphProto, element_type: int) -> str:
    """A constant 1 of a type; made once."""
    name = f"edgepack/one/{element_type}"
    if all(tensor.name != name for tensor in graph.initializer):
        dtype = helper.tensor_dtype_to_np_dtype(element_type)
        graph.initializer.append(numpy_helper.from_array(np.ones((), dtype=dtype), name))
    return name
