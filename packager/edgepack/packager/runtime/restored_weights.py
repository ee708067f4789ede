"""Quantized nodes that ONNX Runtime's CPU provider computes in float all the same.

Without an integer kernel for a node, ONNX Runtime restores the weights at every inference and
multiplies floats: slower than the float model, without a warning.
"""

from pathlib import Path

import onnx

from edgepack.packager.graph.model_files import cpu_session, quiet_options

_RESTORES = "DequantizeLinear"


def nodes_with_restored_weights(path: Path) -> tuple[str, ...]:
    """Return the names of the nodes that read weights which are restored at every inference.

    Args:
        path: A quantized model.

    Returns:
        Their names in the graph that ONNX Runtime runs; a file next to the model is written and
        removed again.
    """
    fused = path.with_suffix(".fused.onnx")
    weights = fused.with_suffix(".weights")
    options = quiet_options(threads=1)
    options.optimized_model_filepath = str(fused)
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", weights.name
    )
    try:
        cpu_session(path, options)
        graph = onnx.load(fused, load_external_data=False).graph
    finally:
        for file in (fused, weights):
            file.unlink(missing_ok=True)
    constants = {tensor.name for tensor in graph.initializer}
    restored = {
        name
        for node in graph.node
        if node.op_type == _RESTORES and node.input[0] in constants
        for name in node.output
    }
    return tuple(node.name for node in graph.node if restored.intersection(node.input))
