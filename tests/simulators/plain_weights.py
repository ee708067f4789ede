"""Finds pieces of a model's weights and golden samples where none may be."""

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import numpy_helper

from edgepack.bundle.golden import read_golden

_PIECE_BYTES = 32


def secrets(model: Path, golden: Path) -> tuple[bytes, ...]:
    """Return secret pieces of weights, and of golden samples.

    Args:
        model: The source, ONNX.
        golden: The golden samples of its plain bundle.
    """
    found = []
    for tensor in onnx.load(model).graph.initializer:
        content = numpy_helper.to_array(tensor).tobytes()
        if len(content) >= 2 * _PIECE_BYTES:
            found += [content[:_PIECE_BYTES], content[-_PIECE_BYTES:]]
    samples = read_golden(golden)
    for sample in (*samples.inputs, *samples.outputs):
        found += [array.tobytes()[:_PIECE_BYTES] for array in sample.values()]
    return tuple(found)


def shows(folder: Path, pieces: Sequence[bytes]) -> list[str]:
    """Return names of files below a folder that contain a secret; skip files that disappear
    meanwhile.
    """
    found = []
    for path in folder.rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        found += [path.name for piece in pieces if piece in content]
    return found
