"""Models from ONNX's own notation."""

import re
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper, parser


def graph_model(
    text: str,
    weights: Mapping[str, np.ndarray] | Iterable[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """Return the model of a graph: `(float[1,4] x) => (float[1,4] y) { y = MatMul(x, w) }`.

    Args:
        text: Inputs, outputs and nodes; `[label] y = Relu(x)` names a node.
        weights: Initializers, or arrays by name.
        opset: Standard operator set; another domain of a node, as in `mine.Gelu(x)`, has version 1.
        ir_version: Version of the format.
    """
    versions = {"": opset} | dict.fromkeys(re.findall(r"= (\w[\w.]*)\.\w+[(<]", text), 1)
    opsets = ", ".join(f'"{domain}": {version}' for domain, version in versions.items())
    model = parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{opsets}]> graph {text}")
    if isinstance(weights, Mapping):
        weights = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    model.graph.initializer.extend(weights)
    return model
