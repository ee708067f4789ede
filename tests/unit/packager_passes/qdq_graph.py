"""Questions that the tests ask a quantized graph."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

PAIRS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One QuantizeLinear or DequantizeLinear with its parameters.

    Attributes:
        node: The node.
        scale: float32, () or (channels,).
        zero_point: Integers of the quantized type, like `scale`.
        axis: Axis of the channels; None for one scale.
    """

    node: onnx.NodeProto
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None


class QdqGraph:
    """An index over a quantized model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self.constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.producer = {name: node for node in self.nodes for name in node.output}
        self.quantizers = [self.pair(n) for n in self.nodes if n.op_type == PAIRS[0]]
        self.dequantizers = [self.pair(n) for n in self.nodes if n.op_type == PAIRS[1]]

    def pair(self, node: onnx.NodeProto) -> Pair:
        """The parameters of a Quantize- or DequantizeLinear."""
        axis = [helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"]
        scale = self.constants[node.input[1]]
        return Pair(
            node=node,
            scale=scale,
            zero_point=self.constants[node.input[2]],
            axis=axis[0] if axis and scale.shape else None,
        )

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """Nodes that read a tensor."""
        return [node for node in self.nodes if name in node.input]

    def dequantized(self, name: str) -> Pair | None:
        """The DequantizeLinear that makes a tensor, or None."""
        node = self.producer.get(name)
        return self.pair(node) if node is not None and node.op_type == PAIRS[1] else None

    def stored(self, name: str) -> Pair | None:
        """The same, if what it dequantizes is stored in the file."""
        pair = self.dequantized(name)
        return pair if pair is not None and pair.node.input[0] in self.constants else None

    def named(self, op_type: str) -> list[onnx.NodeProto]:
        """Nodes of a type."""
        return [node for node in self.nodes if node.op_type == op_type]
