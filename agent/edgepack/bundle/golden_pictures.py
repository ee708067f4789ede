"""Golden pictures and sounds: files that golden samples were prepared from, as a person gave them.

A golden picture lies in `golden/pictures/SAMPLE-ROW.SUFFIX`: the number of the golden sample, and
the picture's place in the sample's batch. A golden sound lies in `golden/sounds/SAMPLE-0.wav`.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from edgepack.bundle.metadata import FileEntry
from edgepack.errors import BundleError

GOLDEN_FILE = "golden/golden.npz"
PICTURES_FOLDER = "golden/pictures"
SOUNDS_FOLDER = "golden/sounds"
MOST_PICTURES = 64
MOST_PICTURE_BYTES = 8_000_000
"""Of all golden pictures of a bundle, as a device accepts; a build adds less."""

SOUND_SUFFIX = ".wav"
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"})

_SUFFIXES = {PICTURES_FOLDER: SUFFIXES, SOUNDS_FOLDER: frozenset({SOUND_SUFFIX})}
_PATH = re.compile(rf"({'|'.join(_SUFFIXES)})/(\d{{1,3}})-(\d{{1,3}})(\.[a-z]{{3,4}})")
_BEGINNINGS = tuple(f"{folder}/" for folder in _SUFFIXES)


class GoldenPicture(NamedTuple):
    """A golden picture or sound.

    Attributes:
        path: POSIX path in the bundle.
        sample: Number of the golden sample.
        row: Place in the sample's batch.
    """

    path: str
    sample: int
    row: int


def is_golden(path: str) -> bool:
    """Return True for the golden samples, and for the files that they were prepared from."""
    return path == GOLDEN_FILE or path.startswith(_BEGINNINGS)


def picture_path(sample: int, row: int, suffix: str) -> str:
    """Return the path of a golden picture in a bundle."""
    return f"{PICTURES_FOLDER}/{sample}-{row}{suffix}"


def sound_path(sample: int) -> str:
    """Return the path of a golden sound in a bundle."""
    return f"{SOUNDS_FOLDER}/{sample}-0{SOUND_SUFFIX}"


def golden_pictures(files: Iterable[FileEntry], *, found_in: str) -> tuple[GoldenPicture, ...]:
    """Return the golden pictures or sounds of a bundle, by sample and row.

    Args:
        files: Files of the bundle.
        found_in: Place for errors.

    Raises:
        BundleError: A file of the folder has another name, or there are too many or too long files.
    """
    found: list[GoldenPicture] = []
    size_bytes = 0
    for entry in files:
        if not entry.path.startswith(_BEGINNINGS):
            continue
        known = _PATH.fullmatch(entry.path)
        if known is None or known[4] not in _SUFFIXES[known[1]]:
            raise BundleError(
                f"{entry.path!a:.200} is not a golden picture or sound", found_in=found_in
            )
        found.append(GoldenPicture(entry.path, int(known[2]), int(known[3])))
        size_bytes += entry.size_bytes
    if len(found) > MOST_PICTURES or size_bytes > MOST_PICTURE_BYTES:
        raise BundleError(
            f"{len(found)} golden files have {size_bytes} bytes, at most {MOST_PICTURES} may "
            f"have {MOST_PICTURE_BYTES}",
            found_in=found_in,
        )
    if len({(one.sample, one.row) for one in found}) < len(found):
        raise BundleError("two golden files are for one sample", found_in=found_in)
    return tuple(sorted(found, key=lambda one: (one.sample, one.row)))
