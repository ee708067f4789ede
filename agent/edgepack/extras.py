"""Commands that install the optional parts of edgepack."""

import re
import sys
from pathlib import Path

_ADDED = Path(__file__).parents[1] / "added.pth"
"""Exists in the environment of a system package; names the folder for added distributions."""
_EXTRA = re.compile(r"""^([^;]+?)\s*;.*\bextra\s*==\s*["']([a-z0-9]+)["']""")


def install_command(extra: str) -> str:
    """Return the command that installs an extra into the running environment.

    Args:
        extra: Such as `images`.

    Returns:
        A command of pip. In a system package's environment, which belongs to the package, the
        command installs into the folder for added distributions.
    """
    from importlib import metadata

    try:
        folder = _ADDED.read_text(encoding="utf-8").strip()
        found = [_EXTRA.match(line) for line in metadata.requires("edgepack") or ()]
    except (OSError, UnicodeDecodeError, metadata.PackageNotFoundError):
        return f"pip install 'edgepack[{extra}]'"
    needed = " ".join(f"'{match[1]}'" for match in found if match and match[2] == extra)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"{python} -m pip install --target {folder} {needed}"
