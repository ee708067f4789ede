"""Pass `vitisai_preprocess`: replacement of exported chains by operators of AMD's NPUs.

HardSwish is a single operator; exporters write four, and each would be rounded. A ReduceMean over
height and width is a GlobalAveragePool: the ReduceMean leaves the NPU, the pooling stays (AMD Quark
does the same, `convert_reduce_mean_to_global_avg_pool`). A ReduceMean over a large map is split,
see `large_pools.py`.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.node_chains import reduced_axes, replace
from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.hard_swish import fuse_hard_swish
from edgepack.packager.passes.large_pools import split_large_pools
from edgepack.packager.profiles.pass_settings import VitisAiPreprocess


def vitisai_preprocess(
    model: onnx.ModelProto, settings: VitisAiPreprocess, context: PassContext
) -> PassResult:
    """Replace the formula of HardSwish, and means over height and width by poolings.

    Args:
        model: The model, with shapes; changed in place.
        settings: The pass's settings (none).
        context: See `PassContext`.

    Returns:
        The model, and notes of the replacements.
    """
    swish = fuse_hard_swish(model)
    notes = [swish] if swish else []
    index = index_graph(model.graph)
    found = [node for node in model.graph.node if _is_global_average(index, node)]
    new: list[tuple[str, onnx.NodeProto]] = []
    for node in found:
        new.extend((node.name, made) for made in _pooling(model.graph, node))
    if found:
        replace(model.graph, {node.name for node in found}, new)
        notes.append(f"{len(found)} ReduceMean over height and width became GlobalAveragePool.")
    notes += split_large_pools(model)
    add_shapes(model)
    return PassResult(model=model, notes=tuple(notes))


def _is_global_average(index: GraphIndex, node: onnx.NodeProto) -> bool:
    if node.op_type != "ReduceMean" or len(index.shapes.get(node.input[0], ())) != 4:
        return False
    return sorted(axis % 4 for axis in reduced_axes(index, node)) == [2, 3]


def _pooling(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    name = f"{node.name}/GlobalAveragePool"
    keeps = attribute(node, "keepdims", 1)
    pooled = node.output[0] if keeps else f"{node.output[0]}/pooled"
    pool = helper.make_node("GlobalAveragePool", [node.input[0]], [pooled], name=name)
    if keeps:
        return [pool]
    axes = f"{node.name}/squeezed_axes"
    graph.initializer.append(numpy_helper.from_array(np.array([2, 3], dtype=np.int64), axes))
    squeeze = helper.make_node(
        "Squeeze", [pooled, axes], [node.output[0]], name=f"{node.name}/Squeeze"
    )
    return [pool, squeeze]
