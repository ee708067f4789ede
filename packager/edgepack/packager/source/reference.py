"""The source model as everything is compared with it: the float model, as it was given.

Only its nodes get names, since ONNX Runtime refuses equal ones, which exporters do write. A model
that comes quantized is computed as its Quantize/DequantizeLinear pairs stand: integer kernels may
saturate, and what they give then is not what the model means.
"""

from pathlib import Path

import onnx

from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import RUNTIME_ERRORS
from edgepack.packager.graph.own_quantization import read_own_quantization
from edgepack.packager.judging.measure import ModelRunner, Run
from edgepack.packager.passes.clean import name_nodes
from edgepack.packager.passes.control_flow import deciding_inputs
from edgepack.packager.source.model import SourceModel


def open_reference(source: SourceModel, path: Path, *, threads: int = 0) -> Run:
    """Opens the source model on the CPU.

    Args:
        source: The model.
        path: Where it is written to; the folder must exist.
        threads: Intra-op threads; 0 leaves it to ONNX Runtime.

    Returns:
        A function that runs one inference.

    Raises:
        BuildError: ONNX Runtime cannot load it.
    """
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    name_nodes(model.graph)
    is_float = read_own_quantization(model.graph) is None
    try:
        return ModelRunner(model, path, threads=threads, optimize=is_float).run
    except RUNTIME_ERRORS as error:
        raise BuildError(
            f"ONNX Runtime cannot load the model: {str(error).strip().splitlines()[0]}",
            found_in=str(source.path),
            remedy=_remedy(model.graph),
        ) from error


def _remedy(graph: onnx.GraphProto) -> str:
    deciding = sorted({name for node in graph.node for name in deciding_inputs(graph, node)})
    if not deciding:
        return "export it with operators that ONNX Runtime has"
    return (
        f"{' '.join(f'--value {name}=…' for name in deciding)} where a device always feeds the "
        "same, so that one branch of the control flow is left (shapes that were fixed may "
        "contradict the others), or leave the shapes open"
    )
