"""Weights of a Hugging Face folder: `*.safetensors`, mapped into memory and read piece by piece.

A file is 8 bytes with the length of a JSON header (little-endian), the header with type, shape and
place of each tensor, and the tensors' bytes. A large model has several files and an index.
Strangers wrote all of these: each place is checked before a byte is read.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
import numpy as np

from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.tasks.arrays import Singles

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""The limit of the format's own reader."""
_PIECE_BYTES = 64 << 20

_TYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""Readable types; a bfloat16 is the upper half of a float32."""

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class StoredWeight(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a tensor.

    Attributes:
        file: Its file.
        dtype: Its type, in the words of the format.
        shape: Its shape.
        offset: First byte in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a stored matrix.

    Attributes:
        name: The tensor.
        start, stop: The rows; `stop` None for all.
    """

    name: str
    start: int = 0
    stop: int | None = None


class Weights:
    """Tensors of a folder.

    Args:
        folder: The folder.
        stored: Places by the tensors' names.
    """

    def __init__(self, folder: Path, stored: Mapping[str, StoredWeight]) -> None:
        self.folder = folder
        self._stored = stored

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            BuildError: The folder has no such tensor.
        """
        return self._find(name).shape

    def read(self, name: str) -> Singles:
        """Return a small tensor as float32.

        Raises:
            BuildError: The folder has no such tensor.
        """
        return _to_singles(self._map(name))

    def pieces(self, parts: tuple[Rows, ...], *, is_transposed: bool) -> Iterator[Singles]:
        """Yield a matrix, or a vector, in pieces of some megabytes, in the order of its elements.

        Args:
            parts: Rows of matrices with as many columns, one below the other.
            is_transposed: Whether the result is transposed: a weight is stored as (outputs,
                inputs), and a MatMul reads (inputs, outputs).

        Raises:
            BuildError: The folder has no such tensor.
        """
        arrays = [self._map(part.name)[part.start : part.stop] for part in parts]
        if not is_transposed:
            for array in arrays:
                for start, stop in _steps(len(array), array.nbytes * 2):
                    yield _to_singles(array[start:stop])
            return
        rows = sum(array.shape[0] for array in arrays)
        columns = arrays[0].shape[1]
        for start, stop in _steps(columns, rows * columns * 4):
            part = [_to_singles(array[:, start:stop].T) for array in arrays]
            yield np.ascontiguousarray(np.concatenate(part, axis=1))

    def _find(self, name: str) -> StoredWeight:
        try:
            return self._stored[name]
        except KeyError as error:
            raise BuildError(
                f"the weights have no tensor {name!a:.200}",
                found_in=str(self.folder),
                remedy="save the model again with save_pretrained",
            ) from error

    def _map(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        stored = self._find(name)
        dtype = _TYPES.get(stored.dtype)
        if dtype is None:
            raise BuildError(
                f"tensor {name!a:.200} has the type {stored.dtype!a:.40}, and weights are read of "
                f"the types {', '.join(_TYPES)}",
                found_in=str(stored.file),
                remedy="give the folder of the float model: edgepack quantizes it",
            )
        if 0 in stored.shape:
            raise BuildError(
                f"tensor {name!a:.200} of shape {list(stored.shape)} has no values",
                found_in=str(stored.file),
                remedy="save the model again with save_pretrained",
            )
        return np.memmap(stored.file, dtype, "r", stored.offset, stored.shape)


class ArrayWeights(Weights):
    """Weights that are arrays, such as parts of mapped files.

    Args:
        folder: Where they come from, for messages.
        arrays: The arrays by name; bfloat16 as uint16.
    """

    def __init__(self, folder: Path, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> None:
        super().__init__(folder, {})
        self._arrays = arrays

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; see `Weights`."""
        return tuple(self._map(name).shape)

    def _map(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        return self._arrays[name] if name in self._arrays else super()._map(name)


GPT2_MODULES = {
    "wte": "model.embed_tokens",
    "wpe": "model.embed_positions",
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_attn": "self_attn.qkv_proj",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
    "ln_f": "model.norm",
    "lm_head": "lm_head",
}
"""Modules of GPT-2, by Llama's names."""


def rename_gpt2(weights: Weights) -> Weights:
    """Return the weights of GPT-2 by Llama's names; its products store (inputs, outputs)."""
    found = {}
    for name in weights:
        path, _, kind = name.removeprefix("transformer.").rpartition(".")
        layer, module = "", path
        if path.startswith("h."):
            _, number, module = path.split(".", 2)
            layer = f"model.layers.{number}."
        if module not in GPT2_MODULES:
            continue  # masks, which old files hold
        values = weights._map(name)
        is_turned = "c_" in module and values.ndim == 2
        found[f"{layer}{GPT2_MODULES[module]}.{kind}"] = values.T if is_turned else values
    return ArrayWeights(weights.folder, found)


def _to_singles(array: np.ndarray[Any, np.dtype[Any]]) -> Singles:
    if array.dtype == np.uint16:  # bfloat16, which numpy has no type for
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(array, dtype=np.float32)


def _steps(count: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    step = max(1, count * _PIECE_BYTES // max(size_bytes, 1))
    return ((start, min(start + step, count)) for start in range(0, count, step))


def open_weights(folder: Path, file: str = FILE) -> Weights:
    """Read the headers of a folder's files, and check every tensor's place.

    Args:
        folder: The Hugging Face folder.
        file: Name of the file of a model that has a single one.

    Raises:
        BuildError: There are no safetensors files, a file of the index is missing, or a file is
            malformed.
    """
    stored: dict[str, StoredWeight] = {}
    for path in _files(folder, file):
        found = _read_header(path)
        twice = sorted(stored.keys() & found.keys())
        if twice:
            raise BuildError(
                f"tensor {twice[0]!a:.200} is in {stored[twice[0]].file.name} and in {path.name}",
                found_in=str(folder),
                remedy="leave the files of one save_pretrained only",
            )
        stored |= found
    return Weights(folder, stored)


def _files(folder: Path, file: str) -> list[Path]:
    index = folder / INDEX
    if file != FILE or not index.exists():
        if (folder / file).is_file():
            return [folder / file]
        others = sorted(path.name for path in folder.glob("*.bin"))
        raise BuildError(
            f"the folder has no {file}"
            + (f", only {others[0]}: a pickle, which may run code" if others else ""),
            found_in=str(folder),
            remedy="save the model with transformers' save_pretrained, which writes safetensors",
        )
    try:
        names = sorted(set(decode_json(index.read_bytes(), _Index).weight_map.values()))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BuildError(
            f"{INDEX} is not an index of weights: {error}",
            found_in=str(index),
            remedy="download the folder again",
        ) from error
    for name in names:
        if PurePosixPath(name).name != name or not (folder / name).is_file():
            raise BuildError(
                f"the index names {name!a:.200}, which is not a file of the folder "
                f"({len(names)} are named)",
                found_in=str(index),
                remedy="download the missing file",
            )
    return [folder / name for name in names]


def _read_header(file: Path) -> dict[str, StoredWeight]:
    size_bytes = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            if not 0 < length <= min(_MOST_HEADER_BYTES, size_bytes - _LENGTH_BYTES):
                raise _malformed(file, f"its header would have {length:,} bytes of {size_bytes:,}")
            header = decode_json(opened.read(length), dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: decode_json(bytes(raw), _Entry) for name, raw in header.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(file, f"its header cannot be read: {error}") from error
    begin = _LENGTH_BYTES + length
    for name, entry in entries.items():
        start, stop = entry.data_offsets
        dtype = _TYPES.get(entry.dtype)
        needed = math.prod(entry.shape) * dtype.itemsize if dtype else stop - start
        if stop - start != needed or begin + stop > size_bytes:
            raise _malformed(
                file,
                f"tensor {name!a:.200} of {entry.dtype!a:.40} {list(entry.shape)} has bytes "
                f"{start:,} to {stop:,} of {size_bytes - begin:,}",
            )
    return {
        name: StoredWeight(
            file=file, dtype=entry.dtype, shape=entry.shape, offset=begin + entry.data_offsets[0]
        )
        for name, entry in entries.items()
    }


def _malformed(file: Path, problem: str) -> BuildError:
    return BuildError(
        f"{file.name} is not a safetensors file: {problem}",
        found_in=str(file),
        remedy="download or save the file again",
    )
