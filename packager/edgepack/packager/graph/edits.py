"""Changes that many passes make: contents replaced, dropped, or put into a model of their own."""

from collections.abc import Iterable
from typing import Any

import onnx

from edgepack.packager.graph.queries import used_names

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


def refill(field: Any, entries: Iterable[Any]) -> None:
    """Replaces what a repeated field of a message holds; the entries may be some of its own."""
    kept = list(entries)
    del field[:]
    field.extend(kept)


def drop_unread(graph: onnx.GraphProto) -> None:
    """Drops the initializers that nothing reads."""
    read = used_names(graph)
    refill(graph.initializer, (tensor for tensor in graph.initializer if tensor.name in read))


def import_domain(model: onnx.ModelProto, domain: str) -> None:
    """Makes a model import a domain's operators, where it does not; "" is always imported."""
    if domain and domain not in {entry.domain for entry in model.opset_import}:
        model.opset_import.add(domain=domain, version=1)


def with_contents(
    model: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    initializers: Iterable[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Another model of the same operator sets, functions and graph's name."""
    result = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
    )
    graph = result.graph
    graph.name = model.graph.name
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    graph.initializer.extend(initializers)
    return result
