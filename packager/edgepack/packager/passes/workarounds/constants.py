"""Constants that rewritten nodes read."""

import numpy as np
import onnx
from onnx import helper, numpy_helper


def one_of(graph: onnx.GraphProto, element_type: int) -> str:
    """A constant 1 of a type; made once."""
    name = f"edgepack/one/{element_type}"
    if all(tensor.name != name for tensor in graph.initializer):
        dtype = helper.tensor_dtype_to_np_dtype(element_type)
        graph.initializer.append(numpy_helper.from_array(np.ones((), dtype=dtype), name))
    return name
