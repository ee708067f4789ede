"""Archives whose bytes depend on nothing but content, names and executable bits."""

import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO


def write_tar(
    folder: Path,
    output: IO[bytes],
    *,
    epoch: int,
    owned: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> None:
    """Write the content of a folder as a tar archive, in the order of names.

    Files belong to root, if no other owner is given. Modes are 755 for folders and executables and
    644 for others, as Debian's policy asks.

    Args:
        folder: The content; its own name is not in the archive.
        output: Receives the archive.
        epoch: Time of each file, seconds since 1970.
        owned: Name in the folder -> numbers of user and group.
    """
    with tarfile.open(fileobj=output, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in (folder, *walk(folder)):
            name = path.relative_to(folder).as_posix()
            entry = archive.gettarinfo(path, "./" if path == folder else f"./{name}")
            # `gettarinfo` makes a second name of a file a hard link.
            if entry.islnk():
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
            is_open = entry.isdir() or bool(entry.mode & 0o100)
            entry.mode = 0o777 if entry.issym() else 0o755 if is_open else 0o644
            entry.uid, entry.gid = owned.get(name, (0, 0))
            entry.uname = entry.gname = "" if name in owned else "root"
            entry.mtime = epoch
            if entry.isreg():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)


def walk(folder: Path) -> Iterator[Path]:
    """Yield all that is below a folder, a folder before its content, in the order of names."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk(path)
