"""Choice of the wheels that fit a board, by the tags in their names."""

import re
from pathlib import Path

from edgepack.errors import BuildError

_NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)"
    r"-(?P<platform>[^-]+)\.whl"
)


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
