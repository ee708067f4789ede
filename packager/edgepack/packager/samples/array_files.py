"""Reader of single files of arrays, with errors for unreadable files."""

import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from edgepack.errors import BuildError
from edgepack.tasks.arrays import Tensor


def read_npz(path: Path) -> dict[str, Tensor]:
    """Return the arrays of a .npz, by name.

    Raises:
        BuildError: The file has another format, is damaged, or holds Python objects.
    """
    refuse_special(path)
    try:
        with path.open("rb") as file:  # np.load leaves a file that it cannot read open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise BuildError(f"{path.name} is a .npy array, not a .npz", found_in=str(path))
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error) from error


def read_npy(path: Path) -> Tensor:
    """Return the array of a .npy, read from the file on access.

    Raises:
        BuildError: The file has another format, is damaged, or holds Python objects.
    """
    refuse_special(path)
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(array, np.ndarray):
        raise BuildError(f"{path.name} is a .npz archive, not a .npy", found_in=str(path))
    return array


def read_tensor(path: Path) -> tuple[onnx.TensorProto, Tensor]:
    """Return a tensor of ONNX test data, and its values.

    Raises:
        BuildError: The file has another format, is damaged, or its values lie elsewhere.
    """
    refuse_special(path)
    try:
        tensor = onnx.TensorProto()
        tensor.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise _unreadable(path, error) from error
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise BuildError("the file holds no tensor", found_in=str(path), remedy="export it again")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise BuildError(
            f"the values of {path.name} lie in another file",
            found_in=str(path),
            remedy="save the tensor with its values inside",
        )
    try:
        return tensor, onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(path, error) from error


def refuse_special(path: Path) -> None:
    """Reject a path other than a regular file: a reader of a pipe may wait for ever.

    Raises:
        BuildError: The path is a pipe, a folder or a device.
    """
    if path.exists() and not path.is_file():
        raise BuildError(
            f"{path.name} is not a file", found_in=str(path), remedy="remove it from the samples"
        )


def _unreadable(path: Path, error: Exception) -> BuildError:
    refusal = partial(BuildError, found_in=str(path))
    if "allow_pickle" in str(error) and not _begins_as_array(path):
        return refusal(
            f"{path.name} is not a NumPy file",
            remedy="save arrays: np.savez(path, name=array.astype('float32'))",
        )
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return refusal(
            f"{path.name} holds Python objects, not numbers",
            remedy="save plain arrays: np.savez(path, name=array.astype('float32'))",
        )
    if "mmap" in str(error) or "truncat" in str(error) or isinstance(error, EOFError):
        return refusal(f"{path.name} is truncated", remedy="write or copy it again")
    return refusal(f"{path.name} cannot be read: {error}", remedy="write or copy it again")


def _begins_as_array(path: Path) -> bool:
    """Return True for a .npy, a .npz or a pickle; NumPy takes any other file for a pickle too."""
    with path.open("rb") as file:
        return file.read(6).startswith((b"\x93NUMPY", b"PK", b"\x80"))
