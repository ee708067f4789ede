"""Where the tensors lie in a variant's files, so that they are cut into chunks along them."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import onnx

from edgepack.packager.graph.protobuf_wire import BYTES, Buffer, fields

_MODEL_GRAPH = 7
_GRAPH = {1: "node", 5: "tensor"}
_NODE = {5: "attribute"}
_ATTRIBUTE = {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"}
_TENSOR_NAME = 8
_TENSOR_RAW_DATA = 9
_GRAPH_INITIALIZER = 5
_BELOW = {"model": {_MODEL_GRAPH: "graph"}, "graph": _GRAPH, "node": _NODE, "attribute": _ATTRIBUTE}
"""Fields of onnx.proto that lead from a model to its tensors."""


def tensor_offsets(folder: Path) -> dict[str, tuple[int, ...]]:
    """Offsets at which tensors start or end, by file name, for all files of a variant.

    Args:
        folder: The variant's folder; its ONNX files and their external data are looked at.

    Returns:
        Sorted offsets, bytes; files without tensors are not in it.
    """
    found: dict[str, set[int]] = {}
    for file in sorted(folder.rglob("*.onnx")):
        found.setdefault(file.relative_to(folder).as_posix(), set()).update(_inside(file))
        for _, location, start, end in _outside(file):
            external = (file.parent / location).relative_to(folder).as_posix()
            found.setdefault(external, set()).update((start, end))
    return {name: tuple(sorted(offsets)) for name, offsets in found.items() if offsets}


def _inside(path: Path) -> Iterator[int]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield from _walk(content, "model", 0, len(content))


def _walk(content: Buffer, kind: str, start: int, end: int) -> Iterator[int]:
    for field in fields(content, start, end):
        if field.wire != BYTES:
            continue
        if kind == "tensor":
            if field.number == _TENSOR_RAW_DATA:
                yield field.start
                yield field.end
        elif field.number in _BELOW[kind]:
            yield from _walk(content, _BELOW[kind][field.number], field.start, field.end)


def tensor_starts(folder: Path) -> dict[str, dict[str, int]]:
    """Where the weights of the main graphs start, by file and name, for all files of a variant.

    Args:
        folder: The variant's folder.
    """
    found: dict[str, dict[str, int]] = {}
    for file in sorted(folder.rglob("*.onnx")):
        found.setdefault(file.relative_to(folder).as_posix(), {}).update(_named(file))
        for name, location, start, _ in _outside(file):
            external = (file.parent / location).relative_to(folder).as_posix()
            found.setdefault(external, {})[name] = start
    return found


def _named(path: Path) -> Iterator[tuple[str, int]]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for graph in fields(content, 0, len(content)):
            if (graph.number, graph.wire) != (_MODEL_GRAPH, BYTES):
                continue
            for tensor in fields(content, graph.start, graph.end):
                if (tensor.number, tensor.wire) != (_GRAPH_INITIALIZER, BYTES):
                    continue
                own = {field.number: field for field in fields(content, tensor.start, tensor.end)}
                if _TENSOR_NAME in own and _TENSOR_RAW_DATA in own:
                    name = own[_TENSOR_NAME]
                    text = content[name.start : name.end].decode(errors="replace")
                    yield text, own[_TENSOR_RAW_DATA].start


def _outside(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """Name, file, start and end: what pads a tensor to its neighbour is in no chunk of it."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            start = int(entries.get("offset", 0))
            end = start + int(entries.get("length", 0))
            yield tensor.name, entries["location"], start, end
