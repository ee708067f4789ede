"""Operators beyond ONNX's own: use in a model, and support by ONNX Runtime."""

from pathlib import Path

import onnx
from onnx import defs

from edgepack.errors import BuildError
from edgepack.packager.graph.queries import all_nodes

_BROUGHT = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Domains whose operators ONNX Runtime has on a CPU. Whether another provider takes a node of
com.microsoft is told by its placement."""

_SHOWN = 3


def check(path: Path, model: onnx.ModelProto) -> None:
    """Reject operators that need a library of their own.

    Args:
        path: The model's file, for the message.
        model: The model; its own functions are not foreign operators.

    Raises:
        BuildError: The model has foreign operators; the message names the first. Or a function of
            the model's own has the name of a standard operator.
    """
    _check_functions(path, model)
    own = {(function.domain, function.name) for function in model.functions}
    found = [
        node
        for node in _nodes(model)
        if node.domain not in _BROUGHT and (node.domain, node.op_type) not in own
    ]
    if not found:
        return
    kinds = sorted({f"{node.domain}.{node.op_type}" for node in found})
    nodes = ", ".join(repr(node.name or node.output[0]) for node in found[:_SHOWN])
    raise BuildError(
        f"the model uses operators that ONNX Runtime does not have: {', '.join(kinds)} "
        f"(node {nodes})",
        found_in=str(path),
        remedy="export it with standard operators, or define them as functions in the model: "
        "a device has no library for others",
    )


def _check_functions(path: Path, model: onnx.ModelProto) -> None:
    """Reject a function that hides an operator of ONNX Runtime: ONNX means the function."""
    taken = [
        function.name
        for function in model.functions
        if defs.has(function.name, "" if function.domain == "ai.onnx" else function.domain)
    ]
    if taken:
        raise BuildError(
            f"the model defines a function {taken[0]!r}, which is a standard operator's name: "
            "ONNX Runtime computes the operator and never the function",
            found_in=f"{path}, function {taken[0]!r}",
            remedy="give the function a domain of its own (such as 'local') and its nodes too, or "
            "remove it where the operator is meant",
        )


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [*all_nodes(model.graph), *(node for f in model.functions for node in f.node)]
