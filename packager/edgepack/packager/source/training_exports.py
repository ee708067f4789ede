"""Nodes in training mode: such an export is not the intended model."""

from itertools import chain
from pathlib import Path

import onnx

from edgepack.errors import BuildError
from edgepack.packager.graph.queries import all_nodes, attribute


def check(path: Path, model: onnx.ModelProto) -> None:
    """Reject batch normalization in training mode.

    In training mode the node normalizes by the mean and variance of its input, a single sample on a
    device, and not by the learned values. ONNX Runtime computes that without a word.

    Args:
        path: The model's file, for the message.
        model: The model.

    Raises:
        BuildError: The model has such a node; the message names the first.
    """
    nodes = chain.from_iterable(map(all_nodes, (model.graph, *model.functions)))
    found = [node for node in nodes if node.op_type == "BatchNormalization"]
    training = [node for node in found if _trains(node)]
    if not training:
        return
    first = training[0].name or training[0].output[0]
    raise BuildError(
        f"{len(training)} of the model's {len(found)} BatchNormalization nodes "
        f"{'is' if len(training) == 1 else 'are'} in training mode: each normalizes by the mean "
        "and variance of its input, not by the learned values",
        found_in=f"{path}, node {first!r}",
        remedy="export it for inference: model.eval() before torch.onnx.export, without training=",
    )


def _trains(node: onnx.NodeProto) -> bool:
    """Return True if a node trains; below opset 14 the further outputs, running mean and variance,
    show training.
    """
    return bool(attribute(node, "training_mode", 0)) or any(node.output[1:])
