"""Makes a model hand out a few evenly spaced values of its tensors, and never a whole tensor.

So the output of ONNX Runtime is bounded for tensors of any size.
"""

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PHASE = "edgepack/phase"
"""Graph input, int64 [1]: which of a tensor's values is the first; it moves on from run to run."""

_TO_THE_END = np.iinfo(np.int64).max


def add_subsamples(graph: onnx.GraphProto, tensors: Iterable[str], most: int) -> tuple[str, ...]:
    """Add an output `<tensor>/values` for each tensor: every n-th value, flat.

    n is odd, so that no channel layout is favoured.

    Args:
        graph: The graph; changed.
        tensors: Names of its tensors, of any element type that can be sliced.
        most: Approximate number of values per tensor: all values below `2 * most`, else between
            `most / 2` and `2 * most`.

    Returns:
        Names of the outputs.
    """
    graph.input.append(helper.make_tensor_value_info(PHASE, TensorProto.INT64, [1]))
    for name, value in (("end", [_TO_THE_END]), ("axis", [0]), ("flat", [-1]), ("one", [1])):
        graph.initializer.append(_integers(f"edgepack/{name}", value))
    graph.initializer.append(_integers("edgepack/twice_kept", 2 * most))
    graph.initializer.append(_integers("edgepack/two", 2))
    return tuple(_add_subsample(graph, name) for name in tensors)


def _add_subsample(graph: onnx.GraphProto, name: str) -> str:
    def node(kind: str, inputs: list[str], output: str) -> str:
        full = f"{name}/{output}"
        graph.node.append(helper.make_node(kind, inputs, [full], name=full))
        return full

    flat = node("Reshape", [name, "edgepack/flat"], "flattened")
    size = node("Size", [name], "size")
    half = node("Div", [size, "edgepack/twice_kept"], "half_step")
    even = node("Mul", [half, "edgepack/two"], "even_step")
    step = node("Add", [even, "edgepack/one"], "step")
    start = node("Mod", [PHASE, step], "start")
    values = node("Slice", [flat, start, "edgepack/end", "edgepack/axis", step], "values")
    graph.output.append(onnx.ValueInfoProto(name=values))
    return values


def _integers(name: str, value: int | list[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, dtype=np.int64), name)
