"""File of an adapter in ONNX Runtime's format (`.onnx_adapter`), a flatbuffer.

ONNX Runtime's own writer leaves bytes of padding as memory had them, and orders tensors at random:
equal adapters would give unequal files. Source: onnxruntime,
`lora/adapter_format/adapter_schema.fbs`.
"""

from collections.abc import Mapping
from pathlib import Path

import flatbuffers
import numpy as np

from edgepack.tasks.arrays import Singles

_IDENTIFIER = b"TORT"
_FORMAT_VERSION = 1
_FLOAT = 1
_ALIGNMENT = 8


def write_adapter(path: Path, tensors: Mapping[str, Singles]) -> None:
    """Write the file of an adapter; equal tensors give equal bytes.

    Args:
        path: The file.
        tensors: float32 tensors by name.
    """
    size_bytes = sum(tensor.nbytes for tensor in tensors.values())
    builder = flatbuffers.Builder(size_bytes + 512 * len(tensors) + 1024)
    entries = [_add(builder, name, tensors[name]) for name in sorted(tensors)]
    builder.StartVector(4, len(entries), 4)
    for entry in reversed(entries):
        builder.PrependUOffsetTRelative(entry)
    listed = builder.EndVector()
    builder.StartObject(4)
    for slot in range(3):  # Versions: of the format, of the adapter, of the model.
        builder.PrependInt32Slot(slot, _FORMAT_VERSION, 0)
    builder.PrependUOffsetTRelativeSlot(3, listed, 0)
    builder.Finish(builder.EndObject(), file_identifier=_IDENTIFIER)
    path.write_bytes(builder.Output())


def _add(builder: flatbuffers.Builder, name: str, tensor: Singles) -> int:
    """Add a tensor, and return its place."""
    content = np.ascontiguousarray(tensor, "<f4").tobytes()
    builder.StartVector(1, len(content), _ALIGNMENT)
    builder.head -= len(content)
    builder.Bytes[builder.head : builder.head + len(content)] = content
    raw = builder.EndVector()
    builder.StartVector(8, tensor.ndim, 8)
    for size in reversed(tensor.shape):
        builder.PrependInt64(size)
    dims = builder.EndVector()
    named = builder.CreateString(name)
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(0, named, 0)
    builder.PrependUOffsetTRelativeSlot(1, dims, 0)
    builder.PrependInt32Slot(2, _FLOAT, 0)
    builder.PrependUOffsetTRelativeSlot(3, raw, 0)
    return int(builder.EndObject())
