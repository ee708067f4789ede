"""Offsets of tensors in a variant's files, so that chunks are cut along tensors.

Protobuf bytes are walked without decoding: start and end of each field.
"""

import mmap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import onnx

from edgepack.packager.graph import stored_tensors

_MODEL_GRAPH = 7
_GRAPH = {1: "node", 5: "tensor"}
_NODE = {5: "attribute"}
_ATTRIBUTE = {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"}
_TENSOR_NAME = 8
_TENSOR_RAW_DATA = 9
_BELOW = {"model": {_MODEL_GRAPH: "graph"}, "graph": _GRAPH, "node": _NODE, "attribute": _ATTRIBUTE}
"""Fields of onnx.proto that lead from a model to its tensors."""


_WAY_TO_WEIGHTS = ("model", "graph", "tensor")


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class _Place(NamedTuple):
    """Place of a tensor's values; only weights of the main graph are named."""

    file: str
    name: str
    start: int
    end: int


def tensor_offsets(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return offsets at which tensors start or end, by file name, for all files of a variant.

    Args:
        folder: The variant's folder; its ONNX files and their external data are looked at.

    Returns:
        Sorted offsets, bytes; without files that have no tensors.
    """
    found = defaultdict[str, set[int]](set)
    for place in _places(folder):
        found[place.file] |= {place.start, place.end}
    return {name: tuple(sorted(offsets)) for name, offsets in found.items()}


def tensor_starts(folder: Path) -> dict[str, dict[str, int]]:
    """Return the offsets of the main graphs' weights, by file and name, for all files of a variant.

    Args:
        folder: The variant's folder.
    """
    found = defaultdict[str, dict[str, int]](dict)
    for place in _places(folder):
        if place.name:
            found[place.file][place.name] = place.start
    return found


def _places(folder: Path) -> Iterator[_Place]:
    for path in sorted(folder.rglob("*.onnx")):
        own = path.relative_to(folder).as_posix()
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            for name, start, end in _inside(content, 0, len(content), "model"):
                yield _Place(own, name, start, end)
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            outside = stored_tensors.place(tensor, path.parent)
            if outside is not None:  # what pads it to its neighbour is in no chunk of it
                start = outside.offset
                name = outside.file.relative_to(folder).as_posix()
                yield _Place(name, tensor.name, start, start + outside.length)


def _inside(content: mmap.mmap, start: int, end: int, *way: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of the tensors in a part of a file, by the path of fields."""
    own = [field for field in fields(content, start, end) if field.wire == BYTES]
    if way[-1] != "tensor":
        for field in own:
            if field.number in _BELOW[way[-1]]:
                below = _BELOW[way[-1]][field.number]
                yield from _inside(content, field.start, field.end, *way, below)
        return
    by_number = {field.number: field for field in own}
    if values := by_number.get(_TENSOR_RAW_DATA):
        name = by_number.get(_TENSOR_NAME) if way == _WAY_TO_WEIGHTS else None
        text = content[name.start : name.end].decode(errors="replace") if name else ""
        yield text, values.start, values.end


class Buffer(Protocol):
    """Bytes that can be indexed: `bytes`, or a memory-mapped file."""

    def __getitem__(self, index: int, /) -> int: ...

    def __len__(self) -> int: ...


class Field(NamedTuple):
    """Field of a message: its number, wire type, and the position of its content."""

    number: int
    wire: int
    start: int
    end: int


def fields(content: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message at `start` … `end`, in order.

    Ends early at a wire type that does not exist. A truncated last field is yielded with an `end`
    beyond the given end.
    """
    position = start
    while position < end:
        tag, position = varint(content, position, end)
        wire = tag & 7
        if wire == BYTES:
            length, position = varint(content, position, end)
            stop = position + length
        elif wire == VARINT:
            _, stop = varint(content, position, end)
        elif wire in (FIXED32, FIXED64):
            stop = position + (8 if wire == FIXED64 else 4)
        else:
            yield Field(tag >> 3, wire, position, position)
            return
        yield Field(tag >> 3, wire, position, stop)
        position = stop


def varint(content: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return a base-128 number and the position behind; `end + 1` for a truncated number."""
    value = shift = 0
    while position < end:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position
    return value, end + 1
