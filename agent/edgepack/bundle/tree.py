"""Listing of a folder's files, and rejection of entries that no bundle may hold."""

import os
from collections.abc import Iterator
from pathlib import Path

from edgepack.bundle.paths import check_path, sort_key
from edgepack.durable import disk_remedy, is_disk_fault
from edgepack.errors import BundleError

MAX_FILES = 10_000


def list_files(folder: Path) -> tuple[str, ...]:
    """Return POSIX paths of all files below a folder, in the order of the signature.

    Raises:
        BundleError: There is no such folder, the folder cannot be read or has more than 10,000
            files, or an entry is a link, a device, a pipe or badly named.
    """
    if not folder.is_dir():
        raise BundleError("this is not a folder", found_in=str(folder))
    found: list[str] = []
    for path in _walk(folder, ""):
        found.append(path)
        if len(found) > MAX_FILES:
            raise BundleError(f"the folder has more than {MAX_FILES} files", found_in=str(folder))
    return tuple(sorted(found, key=sort_key))


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            items = list(entries)
    except OSError as error:
        raise BundleError(
            f"cannot list the folder: {error.strerror}",
            found_in=str(folder),
            remedy=disk_remedy(error) if is_disk_fault(error) else None,
        ) from error
    for item in items:
        path = check_path(f"{prefix}{item.name}", found_in=ascii(item.path).strip("'"))
        if item.is_symlink():
            raise BundleError(f"'{path}' is a symbolic link", found_in=item.path)
        if item.is_dir(follow_symlinks=False):
            yield from _walk(folder / item.name, f"{path}/")
        elif item.is_file(follow_symlinks=False):
            yield path
        else:
            raise BundleError(f"'{path}' is not a regular file", found_in=item.path)
