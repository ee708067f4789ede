"""Packages for a board: wheels that fit by the tags in their names, and an archive of edgepack's
own modules (the agent's, and the packager's children).
"""

import io
import re
import tarfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import edgepack
from edgepack.errors import BuildError

_NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)"
    r"-(?P<platform>[^-]+)\.whl"
)


_OF_HOSTS = ("cli", "firmware_hooks", "fleet", "profiles")

_OF_PACKAGER = ("__init__.py", "memory.py", "progress.py", "runtime", "tensors")

_SUFFIXES = (".py", ".toml")


def choose_wheels(
    folder: Path | None, python: tuple[int, int], machine: str, libc: str
) -> tuple[Path, ...]:
    """Return the newest wheel of each package in a folder that fits a board.

    Args:
        folder: The folder; None for no wheels.
        python: Major and minor version of the board's Python.
        machine: As `uname -m` names it there.
        libc: "glibc" or "musl".

    Raises:
        BuildError: The folder cannot be read.
    """
    if folder is None:
        return ()
    try:
        paths = sorted(folder.glob("*.whl"))
    except OSError as error:
        raise BuildError(
            f"cannot read {folder}: {error.strerror}", found_in="--prove-wheels", remedy="a folder"
        ) from error
    newest: dict[str, tuple[tuple[int, ...], Path]] = {}
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if match is None or not _fits(match, python, machine, libc):
            continue
        found = (_numbers(match["version"]), path)
        name = match["name"].lower()
        newest[name] = max(found, newest.get(name, found))
    return tuple(path for _, path in newest.values())


def _fits(match: "re.Match[str]", python: tuple[int, int], machine: str, libc: str) -> bool:
    major, minor = python
    is_stable = match["abi"] == "abi3"
    fits_python = any(
        tag in (f"cp{major}{minor}", f"py{major}", f"py{major}{minor}")
        or (is_stable and re.fullmatch(rf"cp{major}(\d+)", tag) and int(tag[3:]) <= minor)
        for tag in match["python"].split(".")
    )
    prefixes = ("manylinux", "linux") if libc == "glibc" else ("musllinux", "linux")
    return fits_python and any(
        tag == "any" or (tag.startswith(prefixes) and tag.endswith(f"_{machine}"))
        for tag in match["platform"].split(".")
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


@cache
def pack_sources() -> bytes:
    """Return a compressed tar archive of modules, below `edgepack/`, with the package's version."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for name, path in _modules():
            archive.add(path, f"edgepack/{name}", recursive=False)
        ours = version("edgepack")
        metadata = f"Metadata-Version: 2.1\nName: edgepack\nVersion: {ours}\n".encode()
        entry = tarfile.TarInfo(f"edgepack-{ours}.dist-info/METADATA")
        entry.size = len(metadata)
        archive.addfile(entry, io.BytesIO(metadata))
    return content.getvalue()


def _modules() -> Iterator[tuple[str, Path]]:
    """Yield the files of modules, by their path below `edgepack`."""
    for root in map(Path, edgepack.__path__):
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            top = name.parts[0].removesuffix(".py")
            is_needed = top not in _OF_HOSTS and (
                top != "packager" or (len(name.parts) > 1 and name.parts[1] in _OF_PACKAGER)
            )
            if is_needed and path.suffix in _SUFFIXES and path.is_file():
                yield name.as_posix(), path
