"""Runs one node by itself, to see what it makes of given tensors."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from edgepack.packager.runtime.model_run import ModelRunner

_IR_VERSION = 8


def run_alone(
    node: onnx.NodeProto,
    feeds: Mapping[str, npt.NDArray[np.generic]],
    opsets: Mapping[str, int],
    folder: Path,
) -> npt.NDArray[np.float64]:
    """What a node's first output is.

    Args:
        node: The node.
        feeds: A tensor for every input that it has.
        opsets: Version of each domain.
        folder: Where the model of this one node is written.
    """

    def describe(name: str, dtype: np.dtype[np.generic]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)

    graph = helper.make_graph(
        [node],
        "alone",
        [describe(name, value.dtype) for name, value in feeds.items()],
        [describe(node.output[0], next(iter(feeds.values())).dtype)],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    folder.mkdir(parents=True, exist_ok=True)
    return (
        ModelRunner(model, folder / "alone.onnx")
        .run(dict(feeds))[node.output[0]]
        .astype(np.float64)
    )
