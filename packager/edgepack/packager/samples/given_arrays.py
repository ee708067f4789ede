"""Samples given as arrays, a dictionary each: kept on disk, and read like any other files."""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from edgepack.errors import BuildError
from edgepack.tasks.arrays import Tensor


def write_arrays(samples: Iterable[Mapping[str, Tensor]], folder: Path) -> Path:
    """Write each sample as a .npz of its own, so that memory does not depend on their number.

    Args:
        samples: By input name an array, a dictionary per sample; read once.
        folder: Is made.

    Returns:
        The folder.

    Raises:
        BuildError: A sample is not a dictionary of arrays, or there are no samples.
    """
    folder.mkdir(parents=True)
    count = 0
    for count, sample in enumerate(samples, start=1):
        if not isinstance(sample, Mapping):
            raise BuildError(
                f"sample {count - 1} is a {type(sample).__name__}, not arrays by input name",
                found_in="calibration or evaluation",
                remedy='an iterable of dictionaries, e.g. [{"images": array}, …]',
            )
        _write(sample, folder / f"sample-{count - 1:06d}.npz", count - 1)
    if not count:
        raise BuildError(
            "the iterable of samples is empty",
            found_in="calibration or evaluation",
            remedy="give a list, or an iterator that was not read before",
        )
    return folder


def _write(sample: Mapping[str, Tensor], path: Path, number: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in sample.items():
            array = np.asanyarray(value)
            if array.dtype.hasobject:
                raise BuildError(
                    f"sample {number} has no numbers for input {name!r}",
                    found_in="calibration or evaluation",
                    remedy="an array of the input's dtype",
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
