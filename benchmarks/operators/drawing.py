"""Draws small float models, operator by operator."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.shape_inference import add_shapes

_SEED = 7
_IR_VERSION = 8
_OPSET = 17

Size = tuple[int, ...]
Constant = float | npt.NDArray[np.generic]


class Drawing:
    """A graph under construction: a call with an operator's type and inputs returns the output's
    name.

    Args:
        shape: Of the input, which is called `x`.
    """

    def __init__(self, shape: Size) -> None:
        self.shape = shape
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(_SEED)

    def __call__(self, op_type: str, *inputs: str | Constant, **attributes: Any) -> str:
        return self.several(1, op_type, *inputs, **attributes)[0]

    def several(
        self, count: int, op_type: str, *inputs: str | Constant, **attributes: Any
    ) -> tuple[str, ...]:
        """Return the outputs of an operator with several outputs."""
        name = f"{op_type}_{len(self._nodes)}"
        names = [given if isinstance(given, str) else self._constant(given) for given in inputs]
        outputs = tuple(f"{name}/{number}" for number in range(count))
        self._nodes.append(helper.make_node(op_type, names, outputs, name=name, **attributes))
        return outputs

    def weight(self, *shape: int) -> npt.NDArray[np.float32]:
        """Return normally distributed values that keep the size of a product."""
        spread = 1.0 / math.sqrt(max(1, math.prod(shape[1:])))
        return self._rng.normal(0.0, spread, shape).astype(np.float32)

    def model(self, output: str) -> onnx.ModelProto:
        """Return the graph as a float model with shapes."""
        values = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, list(self.shape)),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        ]
        for node in self._nodes:
            node.output[:] = ["y" if name == output else name for name in node.output]
            node.input[:] = ["y" if name == output else name for name in node.input]
        graph = helper.make_graph(self._nodes, "drawn", values[:1], values[1:], self._constants)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        onnx.checker.check_model(model)
        add_shapes(model)
        return model

    def _constant(self, given: Constant) -> str:
        values = np.asarray(given)
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(values, name))
        return name
