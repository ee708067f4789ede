"""Small files of the kernel, below `/sys`."""

from pathlib import Path

_MAX_BYTES = 64


def read_text(path: Path) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_number(path: Path, base: int = 10) -> int | None:
    """Return a file's number; None if there is none."""
    try:
        return int(read_text(path), base)
    except ValueError:
        return None
