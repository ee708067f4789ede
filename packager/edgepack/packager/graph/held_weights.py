"""Storage of weights in a file next to a build's models, so that copies of a model share the
weights.

A build holds several forms of a model at once: the given model, after its passes, prepared for
calibration, instrumented. With their weights in a file, each is a graph that points there. The
graph is copied, written and opened without weights, and ONNX Runtime maps the file instead of
reading the file.
"""

import mmap
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Self

import onnx

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.model_files import (
    WEIGHTS_SUFFIX,
    has_own_file,
    is_large,
    link,
    save_model,
    weights_size_bytes,
)
from edgepack.packager.memory import return_freed_memory

HELD_FROM_BYTES = 16_000_000
"""Models with fewer bytes of weights stay in memory: their copies are small beside the tools."""

_TENSOR_FROM_BYTES = 64 * 1024
"""Smaller tensors stay in memory: they may be shapes, axes or scales."""


class WeightsFile:
    """Takes weights in turn, and returns references to the file in their place.

    The file belongs to a single build and is never flushed: no result is ever read from the file.

    Args:
        path: The file; its folder must exist. The file must stay as long as its tensors are used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._file = path.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended_by: object) -> None:
        self._file.close()

    def keep(self, tensor: onnx.TensorProto, *, least: int = _TENSOR_FROM_BYTES) -> None:
        """Move a tensor's values into the file, if they have so many bytes."""
        length = len(tensor.raw_data)
        if length < least:
            return
        if length >= _TENSOR_FROM_BYTES:
            self._file.write(bytes(-self._file.tell() % mmap.PAGESIZE))
        offset = self._file.tell()
        self._file.write(tensor.raw_data)
        self._file.flush()
        stored_tensors.put(tensor, str(self._path), offset, length)

    def kept(
        self, tensor: onnx.TensorProto, *, least: int = _TENSOR_FROM_BYTES
    ) -> onnx.TensorProto:
        """Move a tensor's values into the file, if they have so many bytes; return the tensor."""
        self.keep(tensor, least=least)
        return deepcopy(tensor)  # a message keeps the memory of a field that was cleared


def hold_weights(model: onnx.ModelProto, file: Path) -> onnx.ModelProto:
    """Move the weights of a model into a file.

    Args:
        model: The model; unusable afterwards, since its values are moved.
        file: Where to; its folder must exist. The file must stay as long as the result is used.

    Returns:
        A model with references to the file; the same model if its weights are small.
    """
    if weights_size_bytes(model) < HELD_FROM_BYTES:
        return model
    with WeightsFile(file) as weights:
        for tensor in model.graph.initializer:
            weights.keep(tensor)
    return deepcopy(model)  # a message keeps the memory of fields that were cleared


def load_held(model: onnx.ModelProto) -> None:
    """Load held weights into memory, in place, except weights of a large model."""
    if not is_large(model):
        for tensor in model.graph.initializer:
            stored_tensors.load(tensor)


def save_for_session(model: onnx.ModelProto, path: Path) -> None:
    """Write a model that is opened here and never shipped; held weights stay in their files.

    Args:
        model: The model.
        path: The `.onnx` file; its folder must exist.
    """
    if has_own_file(model):
        save_model(model, path)
    elif any(map(stored_tensors.is_held, model.graph.initializer)):
        written = deepcopy(model)
        _put_beside(written.graph, path)
        path.write_bytes(written.SerializeToString(deterministic=True))
    else:
        path.write_bytes(model.SerializeToString(deterministic=True))
    return_freed_memory()


def _put_beside(graph: onnx.GraphProto, path: Path) -> None:
    """Give files of weights a name next to a model: ONNX Runtime reads none outside its folder."""
    names: dict[Path, str] = {}
    for tensor in graph.initializer:
        found = stored_tensors.place(tensor)
        if found is None:
            continue
        if found.file not in names:
            names[found.file] = f"{path.stem}.{len(names)}{WEIGHTS_SUFFIX}"
            beside = path.with_name(names[found.file])
            if not link(found.file, beside):
                shutil.copyfile(found.file, beside)
        stored_tensors.put(tensor, names[found.file], found.offset, found.length)
