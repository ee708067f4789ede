"""Names of files inside a bundle: a single spelling for each, and no way out of the folder."""

from pathlib import PurePosixPath

from edgepack.errors import BundleError

MAX_PATH_BYTES = 240
"""Holds in the header of a USTAR archive and in every file system."""

GIT_NAMES = (".git", ".gitattributes", ".github", ".gitignore")
"""At the root of a bundle the OMS signature leaves these out, so nothing may be named so."""


def check_path(path: str, *, found_in: str) -> str:
    """Return the path if safe, normal, relative and POSIX.

    Args:
        path: As written in a manifest, signature or archive.
        found_in: Source of the path, for messages.

    Raises:
        BundleError: The path is empty, absolute, too long or not UTF-8; has `.`, `..`, an empty
            part, a backslash or a control character; or names a file that the signature ignores.
    """
    because = _why_refused(path)
    if because:
        raise BundleError(f"the file name {path!a} {because}", found_in=found_in)
    return path


def sort_key(path: str) -> tuple[str, ...]:
    """Order paths as the OMS signature does: part by part."""
    return PurePosixPath(path).parts


def _why_refused(path: str) -> str:
    try:
        length = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "is not UTF-8"
    parts = path.split("/")
    if not path:
        return "is empty"
    if path.startswith("/"):
        return "is absolute"
    if length > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if ".." in parts:
        return "leads out of its folder with '..'"
    if "" in parts or "." in parts:
        return "has an empty part or '.', so it is not the only spelling of that name"
    if "\\" in path:
        return "has a backslash"
    if not path.isprintable():
        return "has a control character"
    if parts[0] in GIT_NAMES:
        return "is one that an OMS signature leaves unsigned"
    return ""
