"""Hook files on the disk: which there are, and whether each may and can run."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from edgepack.errors import DeviceError

HOOK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where hooks find programs, whatever started the agent."""
MAX_LINKS = 40
"""As many as Linux follows."""


def find_hooks(folder: Path, stage_folder: str, *, known_names: frozenset[str]) -> list[Path]:
    """List the hooks of a stage by name.

    A misspelt stage folder would be a guard that never runs, so a misspelt name rejects the whole
    folder.

    Args:
        folder: A hook folder; a missing folder has no hooks.
        stage_folder: Name of the stage's folder, e.g. `staged.before.d`.
        known_names: Every name that a stage folder may have.

    Returns:
        Every entry of the stage's folder without a leading dot.

    Raises:
        DeviceError: A stage folder's name is none, or a folder cannot be read or trusted.
    """
    if not folder.exists():
        return []
    try:
        for entry in sorted(folder.iterdir()):
            if entry.name.endswith(".d") and entry.name not in known_names:
                raise DeviceError(
                    f"hook folder {entry.name!r} names no stage; "
                    f"there are {', '.join(sorted(known_names))}",
                    found_in=str(entry),
                )
        stage = folder / stage_folder
        if not stage.exists():
            return []
        for checked in (folder, stage):
            if problem := why_not_trusted(checked):
                raise DeviceError(f"hook folder {checked.name!r} {problem}", found_in=str(checked))
        return sorted(entry for entry in stage.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DeviceError(
            f"the hook folder cannot be read: {error.strerror}", found_in=str(folder)
        ) from error


def why_not_runnable(hook: Path) -> str:
    """State why a hook may not or cannot run, as the rest of a sentence that begins with its name.

    Returns:
        The reason; "" if the hook can run.
    """
    try:
        if not hook.exists():
            return "is a link to nothing" if hook.is_symlink() else "does not exist"
        if not hook.is_file():
            return "is a folder or a device, not a file"
        if problem := why_not_trusted(hook):
            return problem
        if not os.access(hook, os.X_OK):
            return "is not executable (chmod +x makes it so)"
        return _why_no_interpreter(hook)
    except OSError as error:
        return f"cannot be examined: {error.strerror}"


def why_not_trusted(path: Path) -> str:
    """State why the agent must not run this path, as the rest of a sentence; "" if allowed.

    A hook has the agent's rights, so nobody but the agent's user and root may be able to replace
    the file: at the path itself, in any folder above, or through a link.

    Raises:
        OSError: Something on the way cannot be looked at.
    """
    for place in _way_to(path):
        found = place.lstat()
        is_last = place == path
        if found.st_uid not in (0, os.geteuid()):
            return (
                f"cannot be trusted: {place} belongs to user {found.st_uid}, who could make the "
                f"agent run anything (chown root {place} mends it)"
            )
        # In a folder like /tmp nobody can rename what is not theirs.
        is_guarded = stat.S_ISLNK(found.st_mode) or (
            stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX and not is_last
        )
        if is_guarded:
            continue
        for bit, who, is_open in (
            (stat.S_IWOTH, "every user", True),
            (stat.S_IWGRP, f"group {found.st_gid}", found.st_gid not in (0, os.getegid())),
        ):
            if found.st_mode & bit and is_open:
                return (
                    f"cannot be trusted: {place} can be written by {who}, who could make the agent "
                    f"run anything (chmod go-w {place} mends it)"
                )
    return ""


def _way_to(path: Path) -> Iterator[Path]:
    """Yield every folder, link and file on the path to a file, the file and its target included.

    Raises:
        OSError: Links lead in a circle, or something on the way cannot be looked at.
    """
    here, links = Path("/"), 0
    ahead = list(reversed(path.absolute().parts[1:]))
    yield here
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = here.parent
            continue
        here /= name
        yield here
        if here.is_symlink():
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = here.readlink()
            here = Path("/") if target.is_absolute() else here.parent
            ahead += reversed([part for part in target.parts if part != "/"])


def _why_no_interpreter(hook: Path) -> str:
    """Return the missing interpreter: the kernel's error, "no such file", would name the hook,
    which exists.
    """
    with hook.open("rb") as file:
        first_line = file.readline(256)
    if not first_line.startswith(b"#!"):
        return ""
    words = first_line[2:].decode(errors="replace").split()
    if not words or not Path(words[0]).is_file():
        return f"names an interpreter that is not there: {words[0] if words else '(none)'}"
    if (
        Path(words[0]).name == "env"
        and len(words) == 2
        and shutil.which(words[1], path=HOOK_PATH) is None
    ):
        return f"names an interpreter that is not there: {words[1]}"
    return ""
