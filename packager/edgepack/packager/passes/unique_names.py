"""Names that edgepack's own cannot be confused with.

What passes and quantizers add to a graph is named after a tensor or a node of it, `x/scale` or
`x/q`, or after edgepack. A model may have such names already, next to an `x`; they are changed, so
that none is made twice.
"""

import re

import onnx

from edgepack.packager.graph.edits import rename_tensors

_OURS = re.compile(r"(/\w+)+")
"""What edgepack puts behind a name."""


def set_names_apart(graph: onnx.GraphProto) -> None:
    """Rename tensors and nodes that are named like parts of another one.

    Inputs and outputs keep their names: there the other one gets a new name.

    Args:
        graph: The main graph; changed.
    """
    fixed = {value.name for value in (*graph.input, *graph.output)}
    made = {name for node in graph.node for name in node.output if name}
    tensors = made | fixed | {tensor.name for tensor in graph.initializer}
    names = tensors | {node.name for node in graph.node} | {"edgepack"}
    renamed: dict[str, str] = {}
    for name in sorted(tensors):
        wholes = _wholes(name, names)
        changed = [name] if wholes and name not in fixed else [w for w in wholes if w in tensors]
        for entry in changed:
            if entry not in fixed and entry not in renamed:
                renamed[entry] = _new_name(entry, names)
    for node in graph.node:
        if _wholes(node.name, names):
            node.name = _new_name(node.name, names)
    rename_tensors(graph, renamed)


def _wholes(name: str, names: set[str]) -> list[str]:
    """Return the names that this one is called a part of."""
    ends = (i for i, character in enumerate(name) if character == "/" and i)
    return [name[:i] for i in ends if name[:i] in names and _OURS.fullmatch(name[i:])]


def _new_name(name: str, names: set[str]) -> str:
    """Return one without a slash, which is nobody's part."""
    new = name.replace("/", "|")
    while new in names:
        new += "|"
    names.add(new)
    return new
