"""Names of classes in a model's metadata."""

import ast
from collections.abc import Mapping

from edgepack.tasks.description import MAX_CLASS_NAME
from edgepack.text import printable

_KEY = "names"
"""Ultralytics' exporter writes `{0: 'person', 1: 'bicycle'}` under this key."""

_MOST_LETTERS = 200_000
"""Of the text that is parsed: 10,000 names have fewer."""


def read_class_names(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of classes in their order; () if the metadata has none that can be read.

    Args:
        metadata: Entries of the ONNX file.

    Returns:
        A name per class, at most `MAX_CLASS_NAME` letters each, without control characters.
    """
    text = metadata.get(_KEY, "")
    if not text or len(text) > _MOST_LETTERS:
        return ()
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ()
    if isinstance(found, dict):
        if set(found) != set(range(len(found))):
            return ()
        found = [found[number] for number in range(len(found))]
    if not isinstance(found, list | tuple) or not all(isinstance(one, str) for one in found):
        return ()
    return tuple(printable(" ".join(one.split()))[:MAX_CLASS_NAME] for one in found)
