"""Choice of the files that a bundle carries as golden pictures."""

from pathlib import Path

from edgepack.bundle.golden_pictures import MOST_PICTURES, SUFFIXES, picture_path
from edgepack.packager.tensors.sequence import Samples
from edgepack.text import counted

SIZE_LIMIT_BYTES = 2_000_000
"""Golden pictures reach every device: a few, and small."""


def choose_pictures(
    held_out: Samples, golden: tuple[int, ...]
) -> tuple[tuple[tuple[str, Path], ...], str]:
    """Return the pictures of golden samples, as many whole samples as fit in 2 MB.

    Args:
        held_out: The held-out samples.
        golden: Places of the golden samples among them.

    Returns:
        Path in the bundle and file of each picture, and a note for a person; () and "" for samples
        that are arrays.
    """
    if held_out.pictures_of is None:
        return (), ""
    chosen: list[tuple[str, Path]] = []
    left, samples = SIZE_LIMIT_BYTES, 0
    for number, place in enumerate(golden):
        files = held_out.pictures_of(place)
        size = sum(file.stat().st_size for file in files)
        is_known = all(file.suffix.lower() in SUFFIXES for file in files)
        if size > left or len(chosen) + len(files) > MOST_PICTURES or not is_known:
            continue
        left, samples = left - size, samples + 1
        chosen += [
            (picture_path(number, row, file.suffix.lower()), file) for row, file in enumerate(files)
        ]
    if not chosen:
        return (), (
            "No golden picture proves the preparation on devices: each file is larger than "
            f"{SIZE_LIMIT_BYTES // 1_000_000} MB."
        )
    return tuple(chosen), (
        f"The bundle carries {counted(len(chosen), 'picture')} of the golden samples as given, "
        "with all that is in the files, such as a place in EXIF. Devices prove their preparation "
        "with these. --leave-out-pictures leaves them out."
    )
