"""Tensors with values that stay in a file until read.

The weights of a model beyond protobuf's 2 GB are not loaded: their tensors keep the absolute path,
the offset and the length, and a copy of such a model copies only these.

`external_files` checks the files next to a model that hold its weights.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph import stored_tensors
from edgepack.tasks.arrays import Tensor

_PIECE_BYTES = 16 << 20

_PACKED_BITS: Mapping[int, int] = {
    **dict.fromkeys((TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1), 4),
    **dict.fromkeys((TensorProto.INT2, TensorProto.UINT2), 2),
}
_KNOWN_TYPES = frozenset(helper.get_all_tensor_dtypes()) - {TensorProto.STRING}


class Place(NamedTuple):
    """Place of a tensor's bytes."""

    file: Path
    offset: int
    length: int


def place(tensor: onnx.TensorProto, folder: Path = Path("/")) -> Place | None:
    """Return the place of a tensor's values outside the model; None for values inside.

    Args:
        tensor: The tensor.
        folder: Base of a relative location; unused for an absolute location.
    """
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = folder / entries["location"]
    offset = int(entries.get("offset") or 0)
    length = int(entries.get("length") or 0) or shaped_bytes(tensor)
    return Place(file, offset, file.stat().st_size - offset if length is None else length)


def shaped_bytes(tensor: onnx.TensorProto) -> int | None:
    """Return bytes that a tensor of its type and shape has; None for texts and types that are not
    known.

    Types of fewer than 8 bits are packed, the last byte filled up.
    """
    bits = _PACKED_BITS.get(tensor.data_type)
    if bits is None:
        if tensor.data_type not in _KNOWN_TYPES:
            return None
        bits = 8 * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    count = math.prod(int(size) for size in tensor.dims)
    return -(-count * bits // 8)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Return True if the values are in a file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def is_held(tensor: onnx.TensorProto) -> bool:
    """Return True if the values stay in a file that can be found wherever the model is: see
    `put`.
    """
    return any(
        entry.key == "location" and Path(entry.value).is_absolute()
        for entry in tensor.external_data
    )


def put(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Make a tensor refer to values outside the model; drop its inner values."""
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def size_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a tensor's values, inside or outside the model."""
    stored = place(tensor)
    return stored.length if stored else len(tensor.raw_data) or tensor.ByteSize()


def values(tensor: onnx.TensorProto) -> Tensor:
    """Return the values of a tensor; pages of a file are read only on access."""
    stored = place(tensor)
    if stored is None:
        return numpy_helper.to_array(tensor)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    shape = tuple(tensor.dims)
    if stored.length == dtype.itemsize * int(np.prod(shape, dtype=np.int64)) and stored.length:
        return np.memmap(stored.file, dtype, mode="r", offset=stored.offset, shape=shape)
    loaded = deepcopy(tensor)
    load(loaded)
    return numpy_helper.to_array(loaded)


def load(tensor: onnx.TensorProto, folder: Path = Path("/")) -> None:
    """Read the values of a tensor into the model; `folder` as in `place`."""
    if place(tensor, folder) is not None:
        tensor.raw_data = b"".join(pieces(tensor, folder))
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def pieces(tensor: onnx.TensorProto, folder: Path = Path("/")) -> Iterator[bytes]:
    """Yield the raw bytes of a tensor, in pieces, inside or outside the model; `folder` as in
    `place`.
    """
    stored = place(tensor, folder)
    if stored is None:
        yield tensor.raw_data
        return
    left = stored.length
    with stored.file.open("rb") as file:
        file.seek(stored.offset)
        while left:
            piece = file.read(min(left, _PIECE_BYTES))
            if not piece:
                raise OSError(f"{stored.file} ended before the values of {tensor.name!r}")
            left -= len(piece)
            yield piece


def named_tensors(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield every stored tensor of a model with its name for people.

    Initializers, and constants by their node's output; including control flow's bodies and
    model-local functions.
    """
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)
        yield from _of_attributes(function.name, function.attribute_proto)


def _of_graph(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for sparse in graph.sparse_initializer:
        yield from _of_sparse(sparse.values.name, sparse)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in nodes:
        yield from _of_attributes(node.output[0] if node.output else node.name, node.attribute)


def _of_attributes(
    name: str, attributes: Iterable[onnx.AttributeProto]
) -> Iterator[tuple[str, onnx.TensorProto]]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield name, attribute.t
        for tensor in attribute.tensors:
            yield name, tensor
        if attribute.HasField("sparse_tensor"):
            yield from _of_sparse(name, attribute.sparse_tensor)
        for sparse in attribute.sparse_tensors:
            yield from _of_sparse(name, sparse)
        if attribute.HasField("g"):
            yield from _of_graph(attribute.g)
        for body in attribute.graphs:
            yield from _of_graph(body)


def _of_sparse(name: str, sparse: onnx.SparseTensorProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    yield name, sparse.values
    yield name, sparse.indices


def external_files(path: Path, model: onnx.ModelProto) -> tuple[Path, ...]:
    """Find a model's external data files and check the files before any read.

    Args:
        path: The model's file.
        model: The parsed model.

    Returns:
        The files, sorted by their location in the model.

    Raises:
        BuildError: A file is outside the model's folder, missing or too short, or a tensor cannot
            have its stated number of bytes.
    """
    root = path.parent.resolve()
    files: dict[str, Path] = {}
    for name, tensor in stored_tensors.named_tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        file = (root / location).resolve()
        where = f"{path}, tensor {name!r}"
        refusal = partial(BuildError, found_in=where)
        if (root / location).is_symlink() and not file.is_relative_to(root):
            raise refusal(
                f"external data file {location!r} is a link to {file}, outside the model's folder",
                remedy="copy the model's folder with what its links lead to (cp -rL; the cache of "
                "Hugging Face holds links)",
            )
        if not location or Path(location).is_absolute() or not file.is_relative_to(root):
            raise refusal(
                f"the model points outside its folder for external data: {location!r}",
                remedy="save it again with onnx.save_model(…, save_as_external_data=True)",
            )
        if not file.is_file():
            raise refusal(
                f"external data file {location!r} is missing: it holds the values of "
                f"tensor {name!r}",
                remedy=f"put {location} beside {path.name} (it belongs to the same export)",
            )
        end = _external_end(where, tensor, entries)
        if end > file.stat().st_size:
            raise refusal(
                f"external data file {location!r} is truncated: tensor {name!r} ends at byte "
                f"{end:,}, the file has {file.stat().st_size:,}",
                remedy="copy the file again",
            )
        files[location] = file
    return tuple(files[location] for location in sorted(files))


def _external_end(where: str, tensor: onnx.TensorProto, entries: Mapping[str, str]) -> int:
    """Return the byte at which a tensor's external data end, at least."""
    refusal = partial(BuildError, found_in=where)
    try:
        offset, length = (int(entries.get(key) or 0) for key in ("offset", "length"))
    except ValueError as error:
        raise refusal(
            f"the offset or length of external data is not a number: {error}",
            remedy="export the model again",
        ) from error
    if offset < 0 or length < 0:
        raise refusal(
            f"the offset ({offset}) or length ({length}) of external data is negative",
            remedy="export the model again",
        )
    needed = stored_tensors.shaped_bytes(tensor)
    if length and needed is not None and length != needed:
        raise refusal(
            f"external data of {length:,} bytes cannot be a tensor of shape "
            f"{list(tensor.dims)}, which has {needed:,}",
            remedy="export the model again",
        )
    return offset + (length or needed or 0)
