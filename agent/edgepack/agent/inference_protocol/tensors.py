"""Tensors of the Open Inference Protocol: datatypes, binary and JSON content.

Content from a socket is checked before numpy sees a size: datatype, axes, and the product of the
axes against the number of bytes or values.
"""

from math import prod
from typing import Any

import numpy as np

from edgepack.agent.inference_protocol.messages import MAX_AXES
from edgepack.agent.runtime.sessions import SessionTensor, Tensor

_DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "FP16": np.dtype("<f2"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype.name: name for name, dtype in _DTYPES.items()}
_BY_DTYPE = {dtype: name for name, dtype in _DTYPES.items()}
_FITTING: dict[str, set[type]] = {"f": {float, int}, "i": {int}, "u": {int}, "b": {bool}}
"""Types of JSON values that a kind of dtype accepts."""


def datatype_of(dtype: str) -> str:
    """Return the protocol's name of a numpy dtype; the dtype itself if the protocol has none."""
    return _NAMES.get(dtype, dtype)


def datatype_of_array(array: Tensor) -> str:
    """Return the protocol's name of an array's dtype.

    Raises:
        ValueError: The protocol has none.
    """
    try:
        return _BY_DTYPE[array.dtype]
    except KeyError:
        raise ValueError(f"the protocol has no datatype for {array.dtype}") from None


def dtype_of(name: str, datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype of an input's datatype.

    Raises:
        ValueError: The server has no such datatype.
    """
    try:
        return _DTYPES[datatype]
    except KeyError:
        raise ValueError(
            f"input '{name[:100]}' has datatype {datatype[:20]!a}, known are {', '.join(_DTYPES)}"
        ) from None


def count_values(name: str, shape: list[int]) -> int:
    """Return the number of values of a tensor.

    Raises:
        ValueError: The shape is none.
    """
    if len(shape) > MAX_AXES or (shape and min(shape) < 0):
        raise ValueError(
            f"input '{name[:100]}' has no valid shape: at most {MAX_AXES} axes, each 0 or more"
        )
    return prod(shape)


def read_binary(name: str, dtype: np.dtype[Any], shape: list[int], content: memoryview) -> Tensor:
    """Return a tensor of little-endian, C-ordered bytes; without a copy if aligned.

    Raises:
        ValueError: The number of bytes does not fit the shape.
    """
    expected = count_values(name, shape) * dtype.itemsize
    if len(content) != expected:
        raise ValueError(
            f"input '{name[:100]}' has {len(content)} bytes, its shape and datatype need {expected}"
        )
    array = np.frombuffer(content, dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def read_json(name: str, dtype: np.dtype[Any], shape: list[int], data: object) -> Tensor:
    """Return a tensor of a flat or nested list.

    Raises:
        ValueError: The list does not fit the shape or the datatype.
    """
    expected = count_values(name, shape)
    values = np.array(data, dtype=object)  # References alone: a long text needs no room here.
    if values.ndim == 0 or values.size != expected:
        raise ValueError(
            f"input '{name[:100]}' has {values.size} values, its shape needs {expected}"
        )
    if not set(map(type, values.ravel().tolist())) <= _FITTING[dtype.kind]:
        raise ValueError(f"input '{name[:100]}' has values of another type than {dtype.name}")
    try:
        with np.errstate(over="ignore"):
            return values.astype(dtype).reshape(shape)
    except OverflowError as error:
        raise ValueError(
            f"input '{name[:100]}' has values beyond the range of {dtype.name}"
        ) from error


def describe_shape(tensor: SessionTensor) -> list[int]:
    """Return the shape of a model's tensor in the protocol's form: -1 for a free dimension."""
    return [size if isinstance(size, int) else -1 for size in tensor.shape]
