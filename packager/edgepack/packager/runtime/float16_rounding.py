"""Effect of 16-bit floats on a model, shown on a CPU that computes in 32 bits.

ONNX Runtime's CPU provider widens 16-bit operators and drops the conversions between two of them,
so that intermediate values neither round nor overflow: 1000 * 1000 / 1000 is 1000 there and
infinity on a GPU. The stand-in computes in 32 bits, as GPUs accumulate, and rounds every result.
"""

import tempfile
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.model_files import load_model, open_on_cpu, save_model
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import attribute, index_graph
from edgepack.packager.runtime.model_run import Run, run_of


def open_rounding(path: Path) -> Run:
    """Open a model on the CPU provider so that 16-bit results are rounded to 16 bits.

    Args:
        path: The model; the stand-in is written next to the model, and deleted before the function
            returns.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        stand_in = Path(folder) / "rounding.onnx"
        save_model(show_rounding(load_model(path)), stand_in)
        return run_of(open_on_cpu(stand_in, optimize=False))


def show_rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same model in 32 bits, each 16-bit result rounded.

    Args:
        model: A model with types for its tensors; bodies of control flow stay unchanged, and so do
            the types of its inputs and outputs.
    """
    result = deepcopy(model)
    graph = result.graph
    types = index_graph(model.graph).types.items()
    halves = {name for name, kind in types if kind == TensorProto.FLOAT16}
    nodes: list[onnx.NodeProto] = []
    for original in model.graph.node:
        node = deepcopy(original)
        nodes.append(node)
        if node.op_type == "Cast":
            if attribute(node, "to") == TensorProto.FLOAT16:
                nodes.append(_cast(f"{node.output[0]}/rounded", node.output[0]))
                node.output[0] = f"{node.output[0]}/rounded"
        elif not facts(node.op_type).one_scale:
            for i, name in enumerate(original.output):
                if name in halves:
                    node.output[i] = f"{name}/exact"
                    nodes.append(_cast(f"{name}/exact", f"{name}/rounded", TensorProto.FLOAT16))
                    nodes.append(_cast(f"{name}/rounded", name))
    made = {name for node in nodes for name in node.output}
    inputs = [it.name for it in graph.input if it.name in halves]
    outputs = [it.name for it in graph.output if it.name in made & halves]
    wide = {name: f"{name}/wide" for name in (*inputs, *outputs)}
    for node in nodes:
        node.input[:] = [wide.get(name, name) for name in node.input]
        node.output[:] = [wide.get(name, name) for name in node.output]
    refill(graph.node, [*(_cast(name, wide[name]) for name in inputs), *nodes])
    for name in outputs:
        narrow = _cast(wide[name], name, TensorProto.FLOAT16)
        narrow.name = f"{name}/narrow"
        graph.node.append(narrow)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            values = np.asarray(stored_tensors.values(tensor)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in graph.value_info:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return result


def _cast(given: str, made: str, kind: int = TensorProto.FLOAT) -> onnx.NodeProto:
    return helper.make_node("Cast", [given], [made], name=f"{made}/stand_in", to=kind)
