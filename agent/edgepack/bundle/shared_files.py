"""Files of a bundle outside its variants: those that every device needs, and their modes."""

from edgepack.bundle.generation import is_asset
from edgepack.bundle.golden_pictures import is_golden

HOOKS_FOLDER = "hooks"
FIRMWARE_FOLDER = "firmware"


def is_needed(path: str) -> bool:
    """Return True for a shared file that a device needs with each variant.

    These are the golden samples with their pictures, the hooks, and the files for the generation of
    texts. A device decides about firmware by its own hardware, and needs no reports.
    """
    return is_golden(path) or is_executable(path) or is_asset(path)


def is_executable(path: str) -> bool:
    """Return True if a file of a bundle is executable: all below `hooks/` are, nothing else is."""
    return path.startswith(f"{HOOKS_FOLDER}/")
