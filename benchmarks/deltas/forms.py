"""Forms to send the changes of a file, and their sizes.

Chunks and their old bytes follow the bundle format: a chunk that starts in a tensor belongs to the
tensor of the same name, at the same distance from its start.
"""

import lzma
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import bsdiff4
import numpy as np
import onnx
import zstandard

from edgepack.bundle.chunks import chunk_digests, offsets
from edgepack.bundle.manifest import FileEntry

_LEVEL = 19
Compress = Callable[[bytes], bytes]


def _zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(content)


def _deflate(content: bytes) -> bytes:
    return zlib.compress(content, 9)


def _lzma(content: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
    return lzma.compress(content, format=lzma.FORMAT_RAW, filters=filters)


COMPRESSORS: dict[str, Compress] = {"zlib": _deflate, "zstd": _zstd, "lzma": _lzma}


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A variant's model in a bundle.

    Attributes:
        entry: The manifest's entry.
        content: Its bytes.
        tensors: Where each tensor starts and how wide its items are, both in bytes, by name.
    """

    entry: FileEntry
    content: bytes
    tensors: dict[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A missing chunk of a device: its bytes, its old bytes, and their items.

    Attributes:
        old: As long as `new`; zeros where there is nothing old.
        width: Length of an item of its tensor, bytes.
    """

    new: bytes
    old: bytes
    width: int


def read_model(folder: Path, entry: FileEntry) -> ModelFile:
    """Read a variant's model file and the places of its tensors."""
    path = folder / entry.path
    content = path.read_bytes()
    tensors: dict[str, tuple[int, int]] = {}
    at = 0
    for tensor in onnx.load(path).graph.initializer:
        if len(tensor.raw_data) >= 256 and (start := content.find(tensor.raw_data, at)) >= 0:
            items = int(np.prod(tensor.dims))
            tensors[tensor.name] = (start, len(tensor.raw_data) // items)
            at = start + len(tensor.raw_data)
    return ModelFile(entry=entry, content=content, tensors=tensors)


def lacking(old: ModelFile, new: ModelFile) -> tuple[Piece, ...]:
    """Return the chunks that a device with the old file must fetch."""
    return tuple(_pieces(old, new))


def _pieces(old: ModelFile, new: ModelFile) -> Iterator[Piece]:
    there = set(chunk_digests(old.entry.chunks))
    index = new.entry.chunks
    placed = sorted((start, name, width) for name, (start, width) in new.tensors.items())
    starts = [start for start, _, _ in placed]
    for digest, at, size in zip(chunk_digests(index), offsets(index), index.sizes, strict=True):
        if digest in there:
            continue
        there.add(digest)
        before = bisect_right(starts, at) - 1
        base, width = b"", 1
        if before >= 0:
            start, name, width = placed[before]
            if name in old.tensors:
                begin = old.tensors[name][0] + at - start
                base = old.content[begin : begin + size]
        yield Piece(new=new.content[at : at + size], old=base.ljust(size, b"\0"), width=width)


def _xored(piece: Piece) -> bytes:
    new, old = (np.frombuffer(side, np.uint8) for side in (piece.new, piece.old))
    return _planes(new ^ old, piece.width)


def _subtracted(piece: Piece) -> bytes:
    """Return new minus old as integers of the items' width, folded so that small values have small
    bits.
    """
    width = piece.width
    whole = len(piece.new) // width * width
    kind = np.dtype(f"<i{width}")
    new, old = (np.frombuffer(side[:whole], kind) for side in (piece.new, piece.old))
    with np.errstate(over="ignore"):
        off = new - old
        folded = (off << 1) ^ (off >> (8 * width - 1))
    return _planes(folded.view(np.uint8), width) + piece.new[whole:]


def _planes(values: np.ndarray[tuple[int], np.dtype[np.uint8]], width: int) -> bytes:
    """Return the first bytes of all items first: exponents are adjacent, and so are last digits."""
    whole = len(values) // width * width
    return values[:whole].reshape(-1, width).T.tobytes() + values[whole:].tobytes()


def costs(old: ModelFile, new: ModelFile) -> dict[str, int]:
    """Return the bytes of each form for the update."""
    pieces = lacking(old, new)
    found = {
        "all of it": len(new.content),
        "all, zstd": len(_zstd(new.content)),
        "chunks": sum(len(piece.new) for piece in pieces),
    }
    for name, compress in COMPRESSORS.items():
        found[f"chunks, {name}"] = _least(pieces, lambda piece: piece.new, compress)
    for name, compress in COMPRESSORS.items():
        found[f"XOR, {name}"] = _least(pieces, _xored, compress)
    for name, compress in COMPRESSORS.items():
        found[f"difference, {name}"] = _least(pieces, _subtracted, compress)
    found["bsdiff4"] = len(bsdiff4.diff(old.content, new.content))
    found["zstd, old as dictionary"] = _patch(old.content, new.content)
    return found


def _least(pieces: tuple[Piece, ...], change: Callable[[Piece], bytes], compress: Compress) -> int:
    """Return each chunk by itself, compressed only if shorter."""
    return sum(min(len(piece.new), len(compress(change(piece)))) for piece in pieces)


def _patch(old: bytes, new: bytes) -> int:
    """Return the size of `zstd --patch-from`: the old file is the dictionary of the new file."""
    known = zstandard.ZstdCompressionDict(old, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    window = max(10, (len(old) + len(new)).bit_length())
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=min(window, 27), enable_ldm=True
    )
    compressor = zstandard.ZstdCompressor(dict_data=known, compression_params=parameters)
    return len(compressor.compress(new))
