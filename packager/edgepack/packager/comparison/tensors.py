"""Tensors of a model that differ from another model's, by name."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import onnx

from edgepack.packager.graph import stored_tensors


class TensorMark(msgspec.Struct, frozen=True, kw_only=True):
    """Fingerprint of a tensor."""

    sha256: bytes
    size_bytes: int


class TensorChange(msgspec.Struct, frozen=True, kw_only=True):
    """A differing tensor, by name; a length in bytes is None on a side without the tensor."""

    name: str
    a_bytes: int | None
    b_bytes: int | None


class TensorComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of two models.

    Attributes:
        equal: How many tensors both have with the same values.
        changes: Differing tensors, the longest first.
    """

    equal: int
    changes: tuple[TensorChange, ...]


def mark_tensors(model: onnx.ModelProto, folder: Path) -> dict[str, TensorMark]:
    """Return the weights of a model's main graph by name, each read by itself.

    Args:
        model: The model; external data need not be loaded.
        folder: Where its external data lies, checked (`stored_tensors.external_files`).

    Raises:
        OSError: External data cannot be read.
    """
    return {tensor.name: _mark(tensor, folder) for tensor in model.graph.initializer}


def _mark(tensor: onnx.TensorProto, folder: Path) -> TensorMark:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    stored_tensors.load(copy, folder.resolve())
    size_bytes = len(copy.raw_data)
    for field in ("name", "doc_string", "external_data", "data_location"):
        copy.ClearField(field)
    content = copy.SerializeToString(deterministic=True)
    return TensorMark(
        sha256=hashlib.sha256(content).digest(), size_bytes=size_bytes or len(content)
    )


def compare_tensors(
    a: Mapping[str, TensorMark] | None, b: Mapping[str, TensorMark] | None
) -> TensorComparison | None:
    """Compare the weights of two models; return None if either model's weights are unknown."""
    if a is None or b is None:
        return None
    changes = tuple(_changes(a, b))
    return TensorComparison(
        equal=sum(b.get(name) == mark for name, mark in a.items()),
        changes=tuple(
            sorted(changes, key=lambda one: (-(one.b_bytes or one.a_bytes or 0), one.name))
        ),
    )


def _changes(a: Mapping[str, TensorMark], b: Mapping[str, TensorMark]) -> Iterator[TensorChange]:
    for name in dict.fromkeys([*a, *b]):
        one, other = a.get(name), b.get(name)
        if one != other:
            yield TensorChange(
                name=name,
                a_bytes=one.size_bytes if one else None,
                b_bytes=other.size_bytes if other else None,
            )
