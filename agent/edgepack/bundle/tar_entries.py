"""Reading POSIX tar entries, strictly: regular files with safe names, and nothing else.

`tarfile` reads much more (links, devices, GNU and pax extensions, damaged headers), all of which
a bundle never has and an attacker might.
"""

import re
import tarfile
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import msgspec

from edgepack.bundle.paths import check_path
from edgepack.errors import BundleError

_BLOCK = tarfile.BLOCKSIZE
_MAGIC = b"ustar\x0000"
_PIECE_BYTES = 1024 * 1024
_REMEDY = "name the .edgepack file that edgepack build wrote; or fetch it again"
_OCTAL = re.compile(rb"[0-7]+[ \0]*")

_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "a directory",
    b"6": "a named pipe",
    b"x": "a pax header",
    b"g": "a pax header",
}


class TarEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Regular file of an archive; its content follows in the source."""

    path: str
    size_bytes: int

    def content(self, source: BinaryIO, *, found_in: str) -> Iterator[bytes]:
        """Read the content piece by piece, and then the padding.

        Raises:
            BundleError: The archive ends before.
        """
        left = self.size_bytes
        while left:
            piece = source.read(min(left, _PIECE_BYTES))
            if not piece:
                raise _truncated(f"within '{self.path}'", found_in)
            left -= len(piece)
            yield piece
        padding = -self.size_bytes % _BLOCK
        if source.read(padding) != bytes(padding):
            raise _truncated(f"after '{self.path}'", found_in)


def read_entry(
    source: BinaryIO, links: Mapping[str, str] = {}, *, found_in: str
) -> TarEntry | None:
    """Read a header.

    Args:
        source: The archive, at a block's start.
        links: Paths that must be hard links, each with the only path that the link may name.
        found_in: Name of the archive, for messages.

    Returns:
        The entry, or None at the end marker (after its first block).

    Raises:
        BundleError: This is not a tar, is truncated, or the entry is anything but a regular file
            with a safe name.
    """
    header = source.read(_BLOCK)
    if len(header) != _BLOCK:
        if source.tell() == len(header):
            raise BundleError(
                "this is not a bundle's archive: it is too short", found_in=found_in, remedy=_REMEDY
            )
        raise _truncated("before its end marker", found_in)
    if not header.strip(b"\0"):
        return None
    if header[257:265] != _MAGIC or _number(header[148:156]) != _checksum(header):
        raise BundleError(
            "not a bundle: not a POSIX (ustar) archive, or damaged",
            found_in=f"{found_in}, byte {source.tell() - _BLOCK}",
            remedy=_REMEDY,
        )
    name, prefix = (_text(header[:100], found_in), _text(header[345:500], found_in))
    path = f"{prefix}/{name}" if prefix else name
    kind = header[156:157]
    is_link = path in links
    if is_link and (kind != b"1" or _text(header[157:257], found_in) != links[path]):
        raise BundleError(f"{path!a} must be a hard link to {links[path]!a}", found_in=found_in)
    if kind != b"0" and not is_link:
        what = _KINDS.get(kind, f"of the unknown type {kind!r}")
        raise BundleError(f"{path!a} is {what}; a bundle has only regular files", found_in=found_in)
    check_path(path, found_in=found_in)
    size_bytes = _number(header[124:136])
    if size_bytes is None or (is_link and size_bytes):
        what = "not a number" if size_bytes is None else f"{size_bytes}, and is a link"
        raise BundleError(f"'{path}' has a size that is {what}", found_in=found_in)
    return TarEntry(path=path, size_bytes=size_bytes)


def check_end(source: BinaryIO, *, found_in: str) -> None:
    """Check that nothing but the zeros of the last record follows the end marker.

    Raises:
        BundleError: Something follows, or the archive is truncated.
    """
    at = source.tell()
    expected = _BLOCK + -(at + _BLOCK) % tarfile.RECORDSIZE
    rest = source.read(expected + 1)
    if len(rest) < expected:
        raise _truncated("within its end marker", found_in)
    if len(rest) > expected or rest.strip(b"\0"):
        raise BundleError(
            "something follows the end of the archive", found_in=f"{found_in}, byte {at}"
        )


def _text(field: bytes, found_in: str) -> str:
    text, _, rest = field.partition(b"\0")
    if rest.strip(b"\0"):
        raise BundleError("a file name has something behind its end", found_in=found_in)
    return text.decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int | None:
    return int(field.strip(b" \0"), 8) if _OCTAL.fullmatch(field) else None


def _checksum(header: bytes) -> int:
    return sum(header[:148]) + 8 * ord(" ") + sum(header[156:])


def _truncated(where: str, found_in: str) -> BundleError:
    return BundleError(
        f"the archive is truncated or damaged {where}",
        found_in=found_in,
        remedy="fetch the bundle again",
    )
