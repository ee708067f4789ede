"""Recognition of a possible text output from the nodes before.

A text recognizer takes pictures or sound and gives a row of classes for each step. The float
model's values decide whether its classes are characters with a blank (`metrics.texts.decoding`), or
the character list of PP-OCR's exporters.
"""

from collections.abc import Collection, Mapping

import onnx

from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.tasks.text.head import TextHead

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_FEWEST_CLASSES = 8
"""Ten digits and a blank are a reader's fewest."""

_WHOLE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_SAYS = frozenset({"Loop", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"})
"""Operators that say a text to its end: one token after the other."""

_CHARACTERS = "character"
_BESIDE = (1, 2)
"""Classes beside the listed characters: the blank, the first one, and the space that the list may
leave out, the last one."""


def find_text_head(
    graph: onnx.GraphProto, metadata: Mapping[str, str], ignored: Collection[str] = ()
) -> TextHead | None:
    """Find the output that may be text; None where none or several may be.

    Args:
        graph: The graph with its shapes.
        metadata: Metadata of the exporter.
        ignored: Outputs with a known meaning.
    """
    index = index_graph(graph)
    if any(node.op_type in _SAYS for node in graph.node):
        tokens = [
            name for name in index.outputs if name not in ignored and _may_be_said(index, name)
        ]
        if len(tokens) == 1:
            return TextHead(output=tokens[0], is_of_tokens=True)
    rows = [
        name
        for name in index.outputs
        if index.types.get(name) in _FLOATS
        and name not in ignored
        and _may_be_steps(index.shapes.get(name, ()))
    ]
    if len(rows) != 1 or not _takes_signal(index):
        return None
    classes = index.shapes[rows[0]][-1]
    characters = read_characters(metadata, classes)
    if characters:
        spaces = tuple(kind for kind, letter in enumerate(characters) if letter.isspace())
        return TextHead(output=rows[0], blank=0, spaces=spaces, source="metadata")
    return TextHead(output=rows[0])


def read_characters(metadata: Mapping[str, str], classes: int | None) -> tuple[str, ...]:
    """Return the character of each class, "" for the blank; () if the metadata lists none.

    Args:
        metadata: Metadata of the exporter; PP-OCR's lists the characters.
        classes: Number of classes.
    """
    listed = metadata.get(_CHARACTERS, "").splitlines()
    if not listed or classes is None or classes - len(listed) not in _BESIDE:
        return ()
    return tuple(["", *listed, " "][:classes])


def _may_be_said(index: GraphIndex, name: str) -> bool:
    """Return whole numbers of which nobody knows how many there are."""
    shape = index.shapes.get(name, ())
    is_row = len(shape) in (1, 2) and shape[-1] is None and all(s in (1, None) for s in shape[:-1])
    return is_row and index.types.get(name) in _WHOLE


def _may_be_steps(shape: tuple[int | None, ...]) -> bool:
    if len(shape) != 3 or not (shape[-1] is None or shape[-1] >= _FEWEST_CLASSES):
        return False
    return any(size in (1, None) for size in shape[:2]) and shape[:2] != (1, 1)


def _takes_signal(index: GraphIndex) -> bool:
    """Return True if the inputs are floats and at most lengths: whole numbers are tokens."""
    fed = [name for name in index.inputs if name not in index.initializers]
    floats = [name for name in fed if index.types.get(name) in _FLOATS]
    others = [index.shapes.get(name, (None, None)) for name in fed if name not in floats]
    has_signal = any(len(index.shapes.get(name, ())) in (2, 3, 4) for name in floats)
    return has_signal and all(len(shape) < 2 for shape in others)
