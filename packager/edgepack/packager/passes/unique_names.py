"""Names that edgepack's own cannot be confused with.

The names of nodes and tensors that passes and quantizers add begin with a tensor or a node of the
graph, `x/scale` or `x/q`, or with edgepack. A model may have such names already, next to an `x`;
such names are changed, so that no name is made twice.
"""

import re

import onnx

from edgepack.packager.graph.edits import rename_tensors

_OURS = re.compile(r"(/\w+)+")
"""What edgepack puts behind a name."""


def set_names_apart(graph: onnx.GraphProto) -> None:
    """Rename tensors and nodes with names like parts of another name.

    Inputs and outputs keep their names: the other tensor gets a new name.

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
    """Return the names that a name looks like a part of."""
    ends = (i for i, character in enumerate(name) if character == "/" and i)
    return [name[:i] for i in ends if name[:i] in names and _OURS.fullmatch(name[i:])]


def _new_name(name: str, names: set[str]) -> str:
    """Return a name without a slash, which is never a part."""
    new = name.replace("/", "|")
    while new in names:
        new += "|"
    names.add(new)
    return new
